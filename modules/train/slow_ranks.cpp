#include "train/slow_ranks.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "comm/agree.hpp"
#include "comm/ledger.hpp"

namespace fourfold {

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

bool of_steps(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::gradient || phase == Phase::update;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

double seconds_waited(const Communicator& world) {
  double waiting = 0;
  for (const auto& [key, sums] : world.ledger().sums()) waiting += of_steps(key.phase) ? sums.seconds : 0;
  return waiting;
}

SlowRanks slow_ranks(const Communicator& world, StepSeconds seconds, std::int64_t steps) {
  const auto each = static_cast<double>(std::max<std::int64_t>(steps, 1));
  const std::vector<std::string> cards =
      gather_strings(world, fmt::format("{} {} {}", std::max(seconds.all - seconds.waiting, 0.0) / each,
                                        seconds.waiting / each, host_name()));
  SlowRanks report;
  report.steps = steps;
  std::vector<double> computing_of, waiting_of;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    std::istringstream words(cards[rank]);
    std::string host;
    words >> computing_of.emplace_back() >> waiting_of.emplace_back() >> host;
    if (rank > 0 && computing_of.back() <= report.largest) continue;
    report.largest = computing_of.back();
    report.slowest = static_cast<int>(rank);
    report.host = host;
  }
  if (cards.empty()) return report;  // not rank 0
  report.least = *std::min_element(computing_of.begin(), computing_of.end());
  report.waiting_largest = *std::max_element(waiting_of.begin(), waiting_of.end());
  report.median = median(std::move(computing_of));
  report.waiting_median = median(std::move(waiting_of));
  return report;
}

std::string slow_ranks_text(const SlowRanks& report) {
  return fmt::format(
      "a rank computes {:.4g} ms of a step ({:.4g} to {:.4g}, rank {} on {} longest) and waits for others {:.4g} ms "
      "(at most {:.4g})",
      report.median * 1e3, report.least * 1e3, report.largest * 1e3, report.slowest, report.host,
      report.waiting_median * 1e3, report.waiting_largest * 1e3);
}

}  // namespace fourfold
