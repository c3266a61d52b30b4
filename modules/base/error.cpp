#include "base/error.hpp"

#include <fmt/format.h>

#include <string_view>

namespace fourfold {

void fail_all(ExitCode code, const std::string& message) {
  throw Error(code, Caller::all_ranks, message);
}

void fail_one(ExitCode code, const std::string& message) {
  throw Error(code, Caller::one_rank, message);
}

void assertion_failed(const char* condition, const char* file, int line, const std::string& message) {
  // Only the module and file: the build machine's folders say nothing to a user.
  std::string_view path = file;
  if (const auto slash = path.rfind('/'); slash != std::string_view::npos && slash > 0) {
    const auto folder = path.rfind('/', slash - 1);
    if (folder != std::string_view::npos) path.remove_prefix(folder + 1);
  }
  throw Error(ExitCode::error, Caller::one_rank,
              fmt::format("{}:{}: '{}' does not hold: {} (this is a bug in Fourfold, not in the deck)", path, line,
                          condition, message));
}

}  // namespace fourfold
