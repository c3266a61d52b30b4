// comm.check_calls: what the members of a group are about to do, compared before they do it.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.hpp"
#include "comm/call.hpp"
#include "comm/comm_state.hpp"
#include "comm/hang_report.hpp"

namespace fourfold {

namespace {

constexpr useconds_t kOddFirstMicro = 2000000;  // the odd one's message is the job's first

struct Card {
  std::int64_t operation, elements, element_size, line;
  char file[32];
};

auto key_of(const Card& card) {
  const bool own_counts = static_cast<Operation>(card.operation) == Operation::all_to_all;
  return std::tuple(card.operation, own_counts ? 0 : card.elements, card.element_size);
}

std::string text_of(const Card& card) {
  return std::string(operation_name(static_cast<Operation>(card.operation))) + " of " + std::to_string(card.elements) +
         " x " + std::to_string(card.element_size) + " bytes (" + card.file + ":" + std::to_string(card.line) + ")";
}

}  // namespace

void Call::compare_with_members(std::int64_t elements, std::int64_t element_size) {
  Card mine{static_cast<std::int64_t>(key_.operation), elements, element_size, site_.where.line, {}};
  std::string file = site_.where.file;
  if (const auto slash = file.rfind('/'); slash != std::string::npos) file = file.substr(slash + 1);
  std::strncpy(mine.file, file.c_str(), sizeof mine.file - 1);
  std::vector<Card> cards(static_cast<std::size_t>(size_));
  post([&](MPI_Request* request) {
    return MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, cards.data(), sizeof mine, MPI_BYTE, comm(), request);
  });
  wait();
  const auto agreeing = [&](const Card& with) {
    return std::count_if(cards.begin(), cards.end(), [&](const Card& card) { return key_of(card) == key_of(with); });
  };
  const auto fewer = [&](const Card& a, const Card& b) { return agreeing(a) < agreeing(b); };
  const Card usual = *std::max_element(cards.begin(), cards.end(), fewer);
  std::vector<std::int64_t> odd;
  const Card* first_odd = nullptr;
  for (int r = 0; r < size_; ++r) {
    const Card& card = cards[static_cast<std::size_t>(r)];
    if (key_of(card) == key_of(usual)) continue;
    odd.push_back(world_ranks_[static_cast<std::size_t>(r)]);
    if (first_odd == nullptr) first_odd = &card;
  }
  if (odd.empty()) return;
  if (key_of(mine) == key_of(usual)) usleep(kOddFirstMicro);
  fail_one(ExitCode::error, "comm.check_calls: in group '" + key_.group + "' rank(s) " + rank_list(odd) + " came to " +
                                text_of(*first_odd) + ", the other(s) to " + text_of(usual));
}

}  // namespace fourfold
