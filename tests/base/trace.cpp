#include "base/trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace fourfold {
namespace {

TEST(Trace, OffByDefaultRecordsNothing) {
  Trace trace;
  { const TraceScope scope(trace, "all_reduce", "comm", 8); }
  EXPECT_FALSE(trace.on());
  EXPECT_TRUE(trace.events().empty());
  EXPECT_EQ(trace.dropped(), 0);
}

TEST(Trace, KeepsAtMostItsCapacityAndCountsTheRest) {
  Trace trace(2);
  for (int i = 0; i < 5; ++i) trace.record({"op", "comm", i, i + 1, 0, i});
  EXPECT_EQ(trace.events().size(), 2u);
  EXPECT_EQ(trace.dropped(), 3);
}

TEST(Trace, TheFileIsAChromeTrace) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < 3; ++rank) {
    Trace trace(10);
    trace.set_origin();
    { const TraceScope scope(trace, "all \"reduce\"\n\xff", "comm", std::int64_t{1} << 40, 7); }
    if (rank != 1) trace.record({"gemm", "forward", now_ns(), now_ns() + 2500, 0, 1});
    texts.push_back(trace.json_events(rank));
  }
  texts.emplace_back();  // a rank that sent nothing
  const std::string path = testing::TempDir() + "fourfold_trace_" + std::to_string(getpid()) + ".json";
  write_trace(path, texts);
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  std::remove(path.c_str());
  int complete = 0;
  std::vector<int> events_of_rank(3, 0);
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    ++complete;
    ++events_of_rank[event.at("pid").get<std::size_t>()];
    EXPECT_GE(event.at("ts").get<double>(), 0.0);
    if (event.at("cat") == "comm") {
      EXPECT_EQ(event.at("args").at("bytes").get<std::int64_t>(), std::int64_t{1} << 40);
      EXPECT_EQ(event.at("args").at("tag"), 7);
    } else {
      EXPECT_GE(event.at("dur").get<double>(), 2.5);
      EXPECT_LT(event.at("dur").get<double>(), 1000.0) << "durations are in microseconds";
    }
  }
  EXPECT_EQ(complete, 5);
  EXPECT_EQ(events_of_rank, (std::vector<int>{2, 1, 2}));
}

TEST(Trace, AFolderThatIsNotThereIsAStorageError) {
  try {
    write_trace("/nonexistent/trace.json", {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/trace.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace fourfold
