#include "checkpoint/stage.hpp"

#include <cstdint>
#include <exception>
#include <optional>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"

namespace fourfold::checkpoint {

void run_stage(const Communicator& world, const std::string& title, const std::function<void()>& work) {
  std::optional<std::string> failure;
  try {
    work();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  std::int64_t lowest = failure ? world.size() - world.rank() : 0;
  all_reduce_max<std::int64_t>(world, {&lowest, 1}, Phase::checkpoint);
  if (lowest == 0) return;
  const int rank = world.size() - static_cast<int>(lowest);
  const std::string text = broadcast_string(world, failure.value_or(""), rank);
  const std::string who = world.size() > 1 ? " (rank " + std::to_string(rank) + ")" : "";
  fail_all(ExitCode::storage, title + who + ": " + text);
}

}  // namespace fourfold::checkpoint
