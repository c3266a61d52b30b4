#include "base/log.hpp"

#include <gtest/gtest.h>

#include <regex>

namespace fourfold {
namespace {

TEST(Log, OnlyRankZeroPrints) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  set_log_rank(3);
  log_info("from rank 3");
  log_error("from rank 3");
  set_log_rank(0);
  log_info("loss {0.5} %d");
  log_warn("slow");
  log_error("gone");
  const std::string out = testing::internal::GetCapturedStdout();
  const std::string err = testing::internal::GetCapturedStderr();
  // No colour codes: neither stream is a terminal here.
  EXPECT_TRUE(std::regex_match(out, std::regex(R"(\d\d:\d\d:\d\d loss \{0\.5\} %d\n)"))) << out;
  EXPECT_TRUE(std::regex_match(err, std::regex(R"(\d\d:\d\d:\d\d warning: slow\n\d\d:\d\d:\d\d error: gone\n)")))
      << err;
}

}  // namespace
}  // namespace fourfold
