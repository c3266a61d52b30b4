#include "base/trace.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

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
  for (int i = 0; i < 5; ++i) trace.record({"op", "comm", i, i + 1, 0, i, "", false});
  EXPECT_EQ(trace.events().size(), 2u);
  EXPECT_EQ(trace.dropped(), 3);
}

TEST(Trace, TheFileIsAChromeTrace) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < 3; ++rank) {
    Trace trace(10);
    trace.set_origin();
    { const TraceScope scope(trace, "all \"reduce\"\n\xff", "comm", std::int64_t{1} << 40, 7); }
    if (rank != 1) trace.record({"gemm", "forward", now_ns(), now_ns() + 2500, 0, 1, "", false});
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

TEST(Trace, PhasesAddUpToItsAge) {
  const Stopwatch before;
  Trace trace;
  const Stopwatch watch;
  const auto spend = [](double seconds) {
    const Stopwatch spent;
    while (spent.seconds() < seconds) {
    }
  };
  spend(0.002);
  EXPECT_EQ(trace.enter(WorkPhase::between), WorkPhase::start);
  {
    const PhaseScope outer(trace, WorkPhase::forward);
    spend(0.004);
    const PhaseScope inner(trace, WorkPhase::norm);
    spend(0.008);
  }
  EXPECT_EQ(trace.enter(WorkPhase::between), WorkPhase::between);
  const double inside = watch.seconds();
  const auto seconds = trace.phase_seconds();
  const double outside = before.seconds();
  const auto of = [&](WorkPhase phase) { return seconds[static_cast<std::size_t>(phase)]; };
  EXPECT_GE(of(WorkPhase::start), 0.002);
  EXPECT_GE(of(WorkPhase::forward), 0.004);
  EXPECT_GE(of(WorkPhase::norm), 0.008);
  EXPECT_EQ(of(WorkPhase::backward), 0.0);
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  EXPECT_GE(sum, inside);
  EXPECT_LE(sum, outside);
}

TEST(Trace, TracksAndFlights) {
  Trace trace(10);
  trace.record({"all_reduce", "backward", 1000, 5000, 8, 0, "row", true});
  trace.record({"all_reduce", "backward", 4000, 5000, 8, 0, "row", false});
  trace.record({"update", "update", 6000, 7000, 0, 1, "", false});
  const nlohmann::json events = nlohmann::json::parse("[" + trace.json_events(3) + "]");
  std::map<std::string, nlohmann::json> by_kind;
  std::map<int, std::string> threads;
  for (const auto& event : events) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("ph") == "M" && event.at("name") == "thread_name")
      threads[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") != "M") by_kind[event.at("ph").get<std::string>() + event.at("name").get<std::string>()] = event;
  }
  EXPECT_EQ(threads, (std::map<int, std::string>{{0, "work"}, {1, "row"}}));
  EXPECT_EQ(by_kind.at("Xall_reduce").at("tid"), 1);
  EXPECT_EQ(by_kind.at("Xupdate").at("tid"), 0);
  const auto& begin = by_kind.at("brow in flight: all_reduce");
  const auto& end = by_kind.at("erow in flight: all_reduce");
  EXPECT_EQ(begin.at("id"), end.at("id"));
  EXPECT_NEAR(end.at("ts").get<double>() - begin.at("ts").get<double>(), 4.0, 1e-6);
}

std::vector<std::string> regions;

TEST(Trace, ScopesAreRegionsOfOtherTools) {
  set_region_hooks({[](const std::string& name) { regions.push_back(name); }, [] { regions.push_back("end"); }});
  Trace off;
  {
    const PhaseScope scope(off, WorkPhase::gradient_sum);
    const TraceScope inner(off, "layers.0", "backward");
  }
  set_region_hooks({});
  { const TraceScope nobody(off, "layers.1", "backward"); }
  EXPECT_EQ(regions, (std::vector<std::string>{"gradient sum", "layers.0", "end", "end"}));
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
