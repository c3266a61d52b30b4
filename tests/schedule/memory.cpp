// Activation memory, offload, and the operations that serve the computing ones.
#include <utility>

#include "schedule/closed_forms.hpp"
#include "schedule/transfers.hpp"
#include "schedule_support.hpp"

namespace fourfold::test {

using Bytes = std::vector<std::int64_t>;

ActivationLimits bytes_of(const Schedule& schedule, const ActivationBytes& bytes) {
  return {std::vector<ActivationBytes>(static_cast<std::size_t>(schedule.chunks()), bytes), {}};
}

TEST(Memory, PeakIsSetsTimesBytes) {
  for (const char* builder : {"gpipe", "1f1b"}) {
    const Schedule schedule = build(builder, 4, 8);
    const ScheduleReport report = check_schedule(schedule, bytes_of(schedule, {100, 0, 0, 0, 0}));
    for (std::size_t s = 0; s < 4; ++s) EXPECT_EQ(report.peak_bytes[s], 100 * schedule.in_flight[s]);
  }
  // Recompute: the inputs stay, the rest is there while one backward runs.
  const Schedule schedule = build("1f1b", 4, 8);
  EXPECT_EQ(check_schedule(schedule, bytes_of(schedule, {10, 0, 0, 90, 0})).peak_bytes, (Bytes{130, 120, 110, 100}));
}

TEST(Memory, SplitBackwardKeepsAPart) {
  // Stage s has P - s whole sets before an input gradient, and s halves that wait for their weight product.
  const Schedule schedule = build("zero_bubble", 4, 16);
  EXPECT_EQ(check_schedule(schedule, bytes_of(schedule, {100, 30, 0, 0, 0})).peak_bytes, (Bytes{400, 330, 260, 190}));
  // Whole and split backwards have an extra each.
  EXPECT_EQ(check_schedule(build("zero_bubble", 1, 2), {{{10, 5, 0, 900, 7}}, {}}).peak_bytes, (Bytes{17}));
}

TEST(Memory, BeyondWhatIsDeclared) {
  const Schedule schedule = build("1f1b", 2, 4);
  ActivationLimits limits = bytes_of(schedule, {100, 0, 0, 0, 0});
  limits.most = {200, 100};
  EXPECT_TRUE(check_schedule(schedule, limits).faults.empty());
  limits.most = {199, 100};
  expect_refused(schedule, {"operation", "of stage 0 (F1) makes 200 bytes of activations, but 199 are declared"},
                 limits);
  EXPECT_THROW(require_sound(schedule, limits), Error);
}

TEST(Memory, Offload) {
  for (const ScheduleRequest& request : requests(3, 5)) {
    for (const int ahead : {1, 2, 100}) {
      Schedule schedule = build_schedule(request);
      std::vector<bool> chunks(static_cast<std::size_t>(schedule.chunks()), true);
      chunks.back() = false;
      add_offload(schedule, chunks, ahead);
      const ScheduleReport report = check_schedule(schedule);
      EXPECT_TRUE(report.faults.empty()) << text_of(request) << " " << all_text(report.faults);
      // Where a set is not moved, no more is computed between its forward and its backward than the load is ahead.
      std::size_t moved = 0;
      for (const auto& list : schedule.lists) {
        for (std::size_t i = 0; i < list.size(); ++i) {
          const StageOperation& operation = list[i];
          if (operation.kind != Kind::forward || operation.chunk + 1 == schedule.chunks()) continue;
          bool away = false;
          int computed = 0;
          for (std::size_t k = i + 1; k < list.size(); ++k) {
            const bool own = list[k].chunk == operation.chunk && list[k].micro_batch == operation.micro_batch;
            away = away || (own && list[k].kind == Kind::offload);
            if (own && makes_gradient(list[k].kind)) break;
            if (is_compute(list[k].kind)) ++computed;
          }
          moved += away ? 1 : 0;
          EXPECT_EQ(away, computed > ahead) << text_of(request) << " " << name_of(schedule, operation);
        }
      }
      EXPECT_EQ(moved > 0, ahead < 100) << text_of(request);
    }
  }
  // One stage, three micro-batches: the next set comes back while one backward runs.
  Schedule schedule = build("gpipe", 1, 3);
  add_offload(schedule, {true}, 1);
  std::string text;
  for (const StageOperation& operation : schedule.list(0)) text += name_of(schedule, operation) + " ";
  EXPECT_EQ(text,
            "F0 offload 0 F1 offload 1 load 0 F2 offload 2 load 1 B0 load 2 B1 B2 reduce gradients of chunk 0 step ");
  EXPECT_EQ(check_schedule(schedule, bytes_of(schedule, {100, 0, 100, 0, 0})).peak_bytes, (Bytes{200}));
  const ScheduleReport part = check_schedule(schedule, bytes_of(schedule, {100, 0, 60, 0, 0}));
  EXPECT_EQ(part.peak_bytes, (Bytes{240}));
  EXPECT_EQ(part.peak_away, (Bytes{120}));
}

TEST(Memory, ServiceRules) {
  Schedule schedule = build("gpipe", 1, 3);
  add_offload(schedule, {true}, 1);
  auto& list = schedule.lists[0];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(schedule, 0, Kind::load, 0)));
  expect_refused(schedule, {"of stage 0 (B0): its activation set was offloaded and not loaded again"});
  schedule = build("layered", 1, 2);
  schedule.lists[0].erase(schedule.lists[0].begin());
  expect_refused(schedule, {"(release weights of chunk 0): its weights are not gathered"});
  schedule = build("1f1b", 1, 2);
  std::swap(schedule.lists[0][find(schedule, 0, Kind::backward, 1)],
            schedule.lists[0][find(schedule, 0, Kind::reduce_gradients, -1)]);
  expect_refused(schedule, {"(reduce gradients of chunk 0): 1 weight gradients of its chunk come after it"});
  schedule = build("1f1b", 1, 1);
  schedule.lists[0].pop_back();
  expect_refused(schedule, {"stage 0: no step at the end"});
}

TEST(Memory, ReceivesThatWait) {
  EXPECT_EQ(check_schedule(build("1f1b", 4, 16)).receives[0], 1);
  EXPECT_EQ(check_schedule(build("1f1b", 1, 16)).receives[0], 0);
  // A stage that is all backward before it comes to what others send it has all of it waiting.
  for (const ScheduleRequest& request : requests(4, 8)) {
    for (const int receives : check_schedule(build_schedule(request)).receives) {
      EXPECT_LE(receives, request.builder == "modular" || request.builder == "layered" ? 16 : 5) << text_of(request);
    }
  }
}

void expect_counts(const Schedule& schedule, const std::vector<std::int64_t>& layers, const StepCounts& wanted) {
  const ScheduleCounts counts = count(schedule, layers);
  EXPECT_EQ(counts.gathers, wanted.gathers) << schedule.builder;
  EXPECT_EQ(counts.reduce_scatters, wanted.reduce_scatters) << schedule.builder;
  EXPECT_EQ(counts.messages, wanted.messages) << schedule.builder;
}

// 2L gathers instead of 2LM, L scatters instead of LM, messages at every layer instead of at every stage.
TEST(Memory, LayeredCounts) {
  const std::int64_t cases[][3] = {{8, 4, 4}, {8, 4, 8}, {16, 4, 4}, {16, 4, 16}, {24, 4, 8}, {32, 8, 8}, {12, 1, 5}};
  for (const auto& [layers, stages, micro_batches] : cases) {
    const ScheduleRequest request{"layered", stages, micro_batches, 1, layers, {}, {}};
    expect_counts(build_schedule(request), std::vector<std::int64_t>(static_cast<std::size_t>(layers), 1),
                  layered_counts(layers, stages, micro_batches));
    for (const char* builder : {"gpipe", "1f1b", "zero_bubble"}) {
      expect_counts(build(builder, stages, micro_batches),
                    std::vector<std::int64_t>(static_cast<std::size_t>(stages), layers / stages),
                    standard_counts(layers, stages, micro_batches));
    }
  }
}

}  // namespace fourfold::test
