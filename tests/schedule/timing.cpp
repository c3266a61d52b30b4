// Evaluated lists against the closed forms, to the tick.
#include <random>

#include "schedule/closed_forms.hpp"
#include "schedule/timeline.hpp"
#include "schedule_support.hpp"
#include "test_support.hpp"

namespace fourfold::test {

// tF, tI, tW: all small ones, and some in picoseconds.
std::vector<PassTimes> all_times() {
  std::vector<PassTimes> times;
  const std::int64_t most = full() ? 5 : 3;
  for (std::int64_t f = 1; f <= most; ++f) {
    for (std::int64_t i = 1; i <= most; ++i) {
      for (std::int64_t w = 1; w <= most; ++w) times.push_back({f, i, w});
    }
  }
  times.push_back({7, 3, 11});
  times.push_back({3'000'000'000'001, 2'999'999'999'999, 1'234'567'890'123});
  return times;
}

std::int64_t makespan(const Schedule& schedule, const PassTimes& times) {
  return evaluate(schedule, equal_durations(schedule, times)).makespan;
}

TEST(Timing, GpipeAnd1f1b) {
  EXPECT_EQ(pipeline_makespan(4, 16, {1, 1, 1}), 57);
  for (std::int64_t stages = 1; stages <= 6; ++stages) {
    for (std::int64_t micro_batches = 1; micro_batches <= 17; ++micro_batches) {
      const Schedule gpipe = build("gpipe", stages, micro_batches), plain = build("1f1b", stages, micro_batches);
      for (const PassTimes& times : all_times()) {
        const std::int64_t wanted = pipeline_makespan(stages, micro_batches, times);
        ASSERT_EQ(makespan(gpipe, times), wanted) << stages << " " << micro_batches;
        ASSERT_EQ(makespan(plain, times), wanted) << stages << " " << micro_batches;
      }
    }
  }
}

TEST(Timing, InterleavedAndModular) {
  for (std::int64_t stages = 1; stages <= 6; ++stages) {
    for (std::int64_t chunks = 1; chunks <= 4; ++chunks) {
      for (std::int64_t micro_batches = stages; micro_batches <= 17; ++micro_batches) {
        const Schedule modular = build("modular", stages, micro_batches, chunks);
        const Schedule interleaved = build("interleaved", stages, micro_batches, chunks);
        for (const PassTimes& times : {PassTimes{1, 1, 1}, PassTimes{2, 3, 1}, PassTimes{5, 1, 1}}) {
          const std::int64_t wanted = interleaved_makespan(stages, chunks, micro_batches, times);
          ASSERT_EQ(makespan(modular, times), wanted) << stages << " " << micro_batches << " " << chunks;
          ASSERT_EQ(makespan(interleaved, times), wanted) << stages << " " << micro_batches << " " << chunks;
        }
      }
    }
  }
}

// The bubble of the modular pipeline is (S - 1) S/(M L) of the ideal: the seven triples of the paper's check, and more.
TEST(Timing, ModularBubble) {
  const std::int64_t cases[][3] = {{8, 4, 4},  {8, 4, 8},   {16, 4, 4}, {16, 4, 16}, {24, 4, 8},
                                   {32, 8, 8}, {32, 8, 16}, {12, 2, 3}, {12, 3, 5},  {30, 5, 7}};
  for (const auto& [layers, stages, micro_batches] : cases) {
    const ScheduleRequest request{"layered", stages, micro_batches, 1, layers, {}, {}};
    const Schedule schedule = build_schedule(request);
    const Timeline timeline = evaluate(schedule, equal_durations(schedule, {1, 1, 1}));
    const std::int64_t ideal = layers / stages * micro_batches * 3;
    EXPECT_EQ((timeline.makespan - ideal) * micro_batches * layers, ideal * (stages - 1) * stages);
    for (int stage = 0; stage < stages; ++stage) EXPECT_EQ(timeline.busy(stage), ideal);
    const double bubble = static_cast<double>((stages - 1) * stages) / static_cast<double>(micro_batches * layers);
    EXPECT_NEAR(timeline.idle_share(), bubble / (1 + bubble), 1e-15);
  }
}

TEST(Timing, ZeroBubble) {
  for (std::int64_t stages = 1; stages <= 6; ++stages) {
    for (std::int64_t micro_batches = stages; micro_batches <= 12; ++micro_batches) {
      const Schedule schedule = build("zero_bubble", stages, micro_batches);
      for (const PassTimes& times : all_times()) {
        ASSERT_EQ(makespan(schedule, times), zero_bubble_makespan(stages, micro_batches, times))
            << stages << " " << micro_batches << ": " << times.forward << " " << times.input << " " << times.weight;
      }
    }
  }
}

std::int64_t makespan_with_latency(const Schedule& schedule, const PassTimes& times, std::int64_t boundary,
                                   std::int64_t latency) {
  Durations durations = equal_durations(schedule, times);
  durations.latency.assign(durations.chunks.size() - 1, 0);
  durations.latency[static_cast<std::size_t>(boundary)] = latency;
  return evaluate(schedule, durations).makespan;
}

Schedule geo(std::int64_t stages, std::int64_t micro_batches, std::int64_t boundary, std::int64_t extra) {
  ScheduleRequest request{"geo", stages, micro_batches, 1, 1, {}, {}};
  request.extra_in_flight.assign(static_cast<std::size_t>(stages - 1), 0);
  request.extra_in_flight[static_cast<std::size_t>(boundary)] = extra;
  return build_schedule(request);
}

TEST(Timing, GeoTable) {
  const PassTimes times{1, 1, 1};
  // latency, 1f1b, geo, geo with one less in flight (0: there is none)
  const std::int64_t table[][4] = {{0, 57, 57, 0}, {1, 73, 59, 73}, {2, 89, 61, 65}, {6, 153, 69, 75}};
  for (const auto& [latency, plain, wanted, one_less] : table) {
    const std::int64_t extra = extra_for_latency(times, latency);
    EXPECT_EQ(extra, (2 * latency + 2) / 3);
    EXPECT_EQ(makespan_with_latency(build("1f1b", 4, 16), times, 1, latency), plain);
    EXPECT_EQ(plain, 57 + 16 * latency);
    EXPECT_EQ(wanted, 57 + 2 * latency);
    const Schedule schedule = geo(4, 16, 1, extra);
    EXPECT_EQ(makespan_with_latency(schedule, times, 1, latency), wanted);
    const int delta = static_cast<int>(extra);
    EXPECT_EQ(check_schedule(schedule).in_flight, (std::vector<int>{4 + delta, 3 + delta, 2, 1}));
    if (one_less > 0) {
      EXPECT_EQ(makespan_with_latency(geo(4, 16, 1, extra - 1), times, 1, latency), one_less);
    }
  }
}

TEST(Timing, GeoAndLatency) {
  for (std::int64_t stages = 2; stages <= 5; ++stages) {
    for (std::int64_t boundary = 0; boundary + 1 < stages; ++boundary) {
      for (const std::int64_t micro_batches : {1, 2, 3, 5, 8, 16, 17}) {
        const Schedule plain = build("1f1b", stages, micro_batches);
        for (const PassTimes& times : {PassTimes{1, 1, 1}, PassTimes{2, 2, 1}, PassTimes{3, 1, 2}}) {
          for (const std::int64_t latency : {0, 1, 2, 3, 5, 9, 40}) {
            EXPECT_EQ(makespan_with_latency(plain, times, boundary, latency),
                      latency_makespan(stages, micro_batches, times, boundary, latency))
                << stages << " " << boundary << " " << micro_batches << " " << latency;
            const Schedule schedule = geo(stages, micro_batches, boundary, extra_for_latency(times, latency));
            EXPECT_EQ(makespan_with_latency(schedule, times, boundary, latency),
                      geo_makespan(stages, micro_batches, times, latency));
          }
        }
      }
    }
  }
}

// Unequal chunks: stages run their operations in order, without overlap, after what they need.
TEST(Timing, SpansAreConsistent) {
  std::mt19937_64 engine(seed());
  for (const ScheduleRequest& request : requests(3, 5)) {
    const Schedule schedule = build_schedule(request);
    Durations durations = equal_durations(schedule, {});
    for (PassTimes& times : durations.chunks) {
      times = {static_cast<std::int64_t>(engine() % 9), static_cast<std::int64_t>(engine() % 9),
               static_cast<std::int64_t>(engine() % 9)};
    }
    durations.latency.assign(durations.chunks.size() - 1, 4);
    const Timeline timeline = evaluate(schedule, durations);
    std::int64_t last = 0;
    std::vector<std::int64_t> forward_end(durations.chunks.size() * 5, -1);
    for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
      std::int64_t now = 0;
      for (const Span& span : timeline.stages[s]) {
        const StageOperation& operation = schedule.lists[s][span.operation];
        EXPECT_GE(span.begin, now);
        now = span.end;
        if (operation.kind == Kind::forward)
          forward_end[static_cast<std::size_t>(operation.chunk * 5 + operation.micro_batch)] = now;
      }
      last = std::max(last, now);
    }
    EXPECT_EQ(timeline.makespan, last);
    for (std::size_t s = 0; s < timeline.stages.size(); ++s) {
      for (const Span& span : timeline.stages[s]) {
        const StageOperation& operation = schedule.lists[s][span.operation];
        if (operation.kind != Kind::forward || operation.chunk == 0) continue;
        const std::int64_t before =
            forward_end[static_cast<std::size_t>((operation.chunk - 1) * 5 + operation.micro_batch)];
        EXPECT_GE(span.begin, before + (schedule.crosses(operation.chunk - 1) ? 4 : 0));
      }
    }
  }
}

}  // namespace fourfold::test
