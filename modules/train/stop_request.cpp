#include "train/stop_request.hpp"

#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/stop_flag.hpp"
#include "comm/collectives.hpp"

namespace fourfold {

StopRequest::StopRequest(const Communicator& world, std::string folder) : world_(world), folder_(std::move(folder)) {}

bool StopRequest::agreed() {
  if (!reason_.empty()) return true;
  // 0: go on; a signal's number; 1000: the stop file, which only rank 0 looks for.
  constexpr std::int32_t kFile = 1000;
  std::int32_t wish = stop_signal();
  std::error_code ignored;
  if (world_.rank() == 0 && wish == 0 && std::filesystem::exists(file(), ignored)) wish = kFile;
  all_reduce_max<std::int32_t>(world_, {&wish, 1}, Phase::control);
  if (wish == 0) return false;
  reason_ = wish == kFile ? "the file " + file() : signal_name(wish);
  return true;
}

void StopRequest::clear_file() const {
  std::error_code ignored;
  if (world_.rank() == 0) std::filesystem::remove(file(), ignored);
}

}  // namespace fourfold
