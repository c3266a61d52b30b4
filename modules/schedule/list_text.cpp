#include "schedule/list_text.hpp"

#include <charconv>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "schedule/rules.hpp"

namespace fourfold {
namespace {

// Digits at the front of `text`, which are taken away; nothing if there are none or the number is too large.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

class ListReader {
 public:
  explicit ListReader(Schedule& schedule) : schedule_(schedule) {}

  void read(int stage, const std::string& text) {
    const std::vector<int> chunks = chunks_of_stage(schedule_, stage);
    std::vector<StageOperation>& list = schedule_.lists[static_cast<std::size_t>(stage)];
    std::istringstream words(text);
    std::string word;
    for (int entry = 1; words >> word; ++entry) {
      const std::string fault = read_entry(word, chunks, list);
      if (!fault.empty()) {
        faults_.push_back({stage, "stage " + std::to_string(stage) + ", entry " + std::to_string(entry) + " '" + word +
                                      "': " + fault});
      }
    }
  }
  std::vector<ListFault> faults_;

 private:
  // "" or what is wrong.
  std::string read_entry(std::string_view text, const std::vector<int>& chunks,
                         std::vector<StageOperation>& list) const {
    static constexpr char kLetters[] = "FBIW";
    static constexpr OperationKind kKinds[] = {OperationKind::forward, OperationKind::backward,
                                               OperationKind::backward_input, OperationKind::backward_weight};
    const char* letter = std::strchr(kLetters, text.front());
    if (letter == nullptr || *letter == '\0') return "wanted F, B, I or W and a micro-batch, such as F0";
    text.remove_prefix(1);
    const std::optional<int> first = take_number(text);
    if (!first) return std::string("wanted a micro-batch after ") + *letter + ", such as " + *letter + "0";
    std::optional<int> last = first;
    if (take(text, '-')) last = take_number(text);
    std::optional<int> chunk = 0;
    if (take(text, '.')) chunk = take_number(text);
    if (!last || !chunk || !text.empty())
      return std::string("wanted ") + *letter + "0, " + *letter + "0-3 or " + *letter + "0.1";
    const std::string most = std::to_string(schedule_.micro_batches - 1);
    if (*first > *last) return "the range runs backwards";
    if (*last >= schedule_.micro_batches) return "micro-batches are 0 to " + most;
    if (*chunk >= static_cast<int>(chunks.size())) {
      return "chunks of a stage are 0 to " + std::to_string(chunks.size() - 1) + " (parallel.interleave)";
    }
    for (int i = *first; i <= *last; ++i) {
      list.push_back({kKinds[letter - kLetters], chunks[static_cast<std::size_t>(*chunk)], i, -1});
    }
    return "";
  }

  Schedule& schedule_;
};

}  // namespace

std::vector<ListFault> read_lists(Schedule& schedule, const std::vector<std::string>& texts) {
  schedule.lists.assign(static_cast<std::size_t>(schedule.stages), {});
  ListReader reader(schedule);
  for (int stage = 0; stage < schedule.stages; ++stage) reader.read(stage, texts[static_cast<std::size_t>(stage)]);
  std::vector<ListFault> faults = std::move(reader.faults_);
  if (!faults.empty()) return faults;
  for (std::string& fault : compute_faults(schedule)) faults.push_back({-1, std::move(fault)});
  if (!faults.empty()) return faults;
  for (const std::vector<StageOperation>& list : schedule.lists) schedule.in_flight.push_back(peak_sets(list).most);
  return faults;
}

}  // namespace fourfold
