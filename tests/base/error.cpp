#include "base/error.hpp"

#include <gtest/gtest.h>

namespace fourfold {
namespace {

template <class Function>
Error caught(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ExitCode::done, Caller::all_ranks, "");
}

TEST(Error, CarriesCodeCallerAndMessage) {
  const Error all = caught([] { fail_all(ExitCode::input, "bad deck"); });
  EXPECT_EQ(all.code(), ExitCode::input);
  EXPECT_EQ(all.caller(), Caller::all_ranks);
  EXPECT_STREQ(all.what(), "bad deck");
  const Error one = caught([] { fail_one(ExitCode::storage, "disk full"); });
  EXPECT_EQ(one.code(), ExitCode::storage);
  EXPECT_EQ(one.caller(), Caller::one_rank);
}

TEST(Error, ExitCodesAreTheDocumentedOnes) {
  EXPECT_EQ(static_cast<int>(ExitCode::done), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::error), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::input), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::launch), 3);
  EXPECT_EQ(static_cast<int>(ExitCode::storage), 4);
  EXPECT_EQ(static_cast<int>(ExitCode::again), 75);
}

TEST(Error, AssertionNamesConditionFileAndReason) {
  const int rows = -1;
  const Error error = caught([&] { FOURFOLD_ASSERT(rows >= 0, "rows come from the loader"); });
  const std::string text = error.what();
  EXPECT_EQ(error.caller(), Caller::one_rank);
  EXPECT_NE(text.find("rows >= 0"), std::string::npos) << text;
  EXPECT_NE(text.find("rows come from the loader"), std::string::npos) << text;
  EXPECT_EQ(text.rfind("base/error.cpp:", 0), 0u) << text;
  FOURFOLD_ASSERT(rows < 0, "holds: nothing is thrown");
}

}  // namespace
}  // namespace fourfold
