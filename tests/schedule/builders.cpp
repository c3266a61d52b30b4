// Every builder: the check finds nothing, and the lists are what their papers say.
#include <algorithm>
#include <map>
#include <set>

#include "schedule_support.hpp"
#include "test_support.hpp"

namespace fourfold::test {

std::vector<std::int64_t> micro_batch_counts() {
  return full() ? std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 24}
                : std::vector<std::int64_t>{1, 2, 3, 5, 8, 16};
}

TEST(Builders, EveryBuilderIsSound) {
  int combinations = 0;
  for (std::int64_t stages = 1; stages <= (full() ? 9 : 6); ++stages) {
    for (const std::int64_t micro_batches : micro_batch_counts()) {
      for (const ScheduleRequest& request : requests(stages, micro_batches)) {
        SCOPED_TRACE(text_of(request));
        const Schedule schedule = build_schedule(request);
        const ScheduleReport report = check_schedule(schedule);
        ASSERT_TRUE(report.faults.empty()) << all_text(report.faults);
        EXPECT_EQ(report.in_flight, schedule.in_flight);  // exactly what is declared
        ++combinations;
      }
    }
  }
  EXPECT_GE(combinations, 300);
}

// Not by the checker's own rule: each chunk's gradients, as the stage's list makes them.
TEST(Builders, GradientsAscend) {
  for (const ScheduleRequest& request : requests(3, 8)) {
    const Schedule schedule = build_schedule(request);
    for (const auto& list : schedule.lists) {
      std::map<std::pair<int, bool>, std::vector<int>> order;
      for (const StageOperation& operation : list) {
        if (makes_gradient(operation.kind)) order[{operation.chunk, true}].push_back(operation.micro_batch);
        if (ends_set(operation.kind)) order[{operation.chunk, false}].push_back(operation.micro_batch);
      }
      for (const auto& [which, micro_batches] : order) {
        ASSERT_EQ(micro_batches.size(), 8u);
        EXPECT_TRUE(std::is_sorted(micro_batches.begin(), micro_batches.end())) << text_of(request);
      }
    }
  }
}

// Computing operations of a stage, in the notation of lists by hand.
std::string computes(const Schedule& schedule, int stage) {
  std::string text;
  for (const StageOperation& operation : schedule.list(stage)) {
    if (is_compute(operation.kind)) text += (text.empty() ? "" : " ") + name_of(schedule, operation);
  }
  return text;
}

TEST(Builders, KnownLists) {
  EXPECT_EQ(computes(build("gpipe", 2, 3), 0), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(computes(build("1f1b", 3, 4), 0), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(computes(build("1f1b", 3, 4), 2), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(computes(build("1f1b", 4, 2), 0), "F0 F1 B0 B1");  // fewer micro-batches than stages
  EXPECT_EQ(computes(build("zero_bubble", 2, 3), 0), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
  EXPECT_EQ(computes(build("zero_bubble", 2, 3), 1), "F0 I0 F1 I1 W0 F2 I2 W1 W2");
  EXPECT_EQ(computes(build("modular", 2, 2, 2), 1), "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
  // Figure 4 of Narayanan et al. 2021, device 1 and 2 of two: the same order of forwards, warm-up 4 and 2.
  EXPECT_EQ(computes(build("interleaved", 2, 4, 2), 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(computes(build("interleaved", 2, 4, 1), 0), computes(build("1f1b", 2, 4), 0));
}

TEST(Builders, TransfersOfOneStageList) {
  const Schedule schedule = build("1f1b", 2, 2);
  std::string text;
  for (const StageOperation& operation : schedule.list(1)) text += name_of(schedule, operation) + "; ";
  EXPECT_EQ(text,
            "receive activation for F0 from stage 0; receive activation for F1 from stage 0; F0; B0; "
            "send gradient 0 to stage 0; F1; B1; send gradient 1 to stage 0; reduce gradients of chunk 1; step; ");
}

TEST(Builders, InFlight) {
  using Sets = std::vector<int>;
  EXPECT_EQ(build("gpipe", 3, 5).in_flight, (Sets{5, 5, 5}));
  EXPECT_EQ(build("1f1b", 4, 16).in_flight, (Sets{4, 3, 2, 1}));
  EXPECT_EQ(build("1f1b", 4, 2).in_flight, (Sets{2, 2, 2, 1}));
  EXPECT_EQ(build("zero_bubble", 4, 16).in_flight, (Sets{4, 4, 4, 4}));
  EXPECT_EQ(build("modular", 2, 4, 3).in_flight, (Sets{12, 12}));
  EXPECT_EQ(build("interleaved", 4, 8, 2).in_flight, (Sets{11, 9, 7, 5}));
  ScheduleRequest geo{"geo", 4, 16, 1, 1, {0, 2, 0}, {}};
  EXPECT_EQ(build_schedule(geo).in_flight, (Sets{6, 5, 2, 1}));
  geo.extra_in_flight = {1, 0, 3};
  EXPECT_EQ(build_schedule(geo).in_flight, (Sets{8, 6, 5, 1}));
  geo.extra_in_flight = {1'000'000'000'000, 0, 0};
  EXPECT_EQ(build_schedule(geo).in_flight, (Sets{16, 3, 2, 1}));
}

TEST(Builders, TransferIdsAreTags) {
  for (const char* builder : {"interleaved", "modular"}) {
    const Schedule schedule = build(builder, 3, 4, 2);
    std::map<std::int64_t, int> ends;
    for (const auto& list : schedule.lists) {
      for (const StageOperation& operation : list) {
        if (!is_transfer(operation.kind)) continue;
        const std::int64_t id = transfer_id(schedule, operation);
        EXPECT_GE(id, 0);
        EXPECT_LT(id, 2 * schedule.chunks() * schedule.micro_batches);
        ends[id] += is_send(operation.kind) ? 1 : 100;
      }
    }
    EXPECT_EQ(ends.size(), 2u * 5 * 4);  // five boundaries, four micro-batches, there and back
    for (const auto& [id, both] : ends) EXPECT_EQ(both, 101) << id;
  }
}

TEST(Builders, Refusals) {
  const auto refused = [](const ScheduleRequest& request, const std::string& part) {
    const std::string text = refusal(request);
    EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in: " << text;
  };
  refused({"1f1", 2, 4, 1, 1, {}, {}},
          "no schedule is called 1f1; legal: gpipe, 1f1b, interleaved, modular, layered, zero_bubble, geo, list");
  refused({"1f1b", 0, 4, 1, 1, {}, {}}, "stages 0: 1 or more");
  refused({"1f1b", 2, 0, 1, 1, {}, {}}, "micro-batches 0: 1 or more");
  refused({"interleaved", 2, 4, 0, 1, {}, {}}, "interleave 0: 1 or more");
  refused({"zero_bubble", 2, 4, 2, 1, {}, {}},
          "interleave 2 has no meaning for zero_bubble; legal: 1, or one of interleaved, modular, list");
  refused({"layered", 4, 4, 1, 3, {}, {}}, "it has 3; legal: 1 to 3 stages");
  refused({"1f1b", 2, 4, 1, 1, {1}, {}}, "extra in flight has no meaning for 1f1b; legal: geo");
  refused({"geo", 3, 4, 1, 1, {1}, {}}, "wanted 2 numbers of 0 or more, one a boundary between stages; there are 1");
  refused({"geo", 2, 4, 1, 1, {-1}, {}}, "wanted 1 numbers of 0 or more");
  refused({"gpipe", 1, 1, 1, 1, {}, {"F0 B0"}}, "lists by hand have no meaning for gpipe; legal: list");
  refused({"list", 2, 1, 1, 1, {}, {"F0 B0"}}, "wanted 2 lists, one a stage; there are 1");
  refused({"1f1b", 1 << 20, 1LL << 40, 1, 1, {}, {}}, "chunks x micro-batches is more than 5000000");
  refused({"modular", 4, 8, 1LL << 62, 1, {}, {}}, "chunks x micro-batches is more than 5000000");
}

}  // namespace fourfold::test
