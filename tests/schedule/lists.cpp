// Schedules by hand.
#include "schedule_support.hpp"

namespace fourfold::test {

ScheduleRequest by_hand(std::int64_t micro_batches, std::vector<std::string> lists, std::int64_t interleave = 1) {
  const auto stages = static_cast<std::int64_t>(lists.size());
  return {"list", stages, micro_batches, interleave, 1, {}, std::move(lists)};
}

std::vector<std::string> texts_of(const Schedule& schedule) {
  std::vector<std::string> texts;
  for (const auto& list : schedule.lists) {
    texts.emplace_back();
    for (const StageOperation& operation : list) {
      if (is_compute(operation.kind)) texts.back() += name_of(schedule, operation) + " ";
    }
  }
  return texts;
}

// What a builder computes, written by hand, is the same schedule (but for gathers, which lists by hand leave to the
// products).
TEST(Lists, RoundTrip) {
  for (const ScheduleRequest& request : requests(3, 5)) {
    if (request.builder == "modular" || request.builder == "layered") continue;
    const Schedule schedule = build_schedule(request);
    const Schedule copy = build_schedule(by_hand(5, texts_of(schedule), request.interleave));
    EXPECT_EQ(copy.lists, schedule.lists) << text_of(request);
    EXPECT_EQ(copy.in_flight, schedule.in_flight);
    EXPECT_TRUE(check_schedule(copy).faults.empty());
  }
}

TEST(Lists, RangesAndChunks) {
  const Schedule schedule = build_schedule(by_hand(3, {"F0-1 F2 B0-2", "F0-2 I0-2 W0-2"}));
  EXPECT_EQ(texts_of(schedule)[0], "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(texts_of(schedule)[1], "F0 F1 F2 I0 I1 I2 W0 W1 W2 ");
  const Schedule chunks = build_schedule(by_hand(2, {"F0-1.0 F0-1.1 B0-1.1 B0-1"}, 2));
  EXPECT_EQ(texts_of(chunks)[0], "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0 ");
  EXPECT_EQ(chunks.in_flight, (std::vector<int>{4}));
}

void expect_refusal(const ScheduleRequest& request, const std::vector<std::string>& parts) {
  const std::string text = refusal(request);
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in: " << text;
  }
}

TEST(Lists, FaultsNameStageAndEntry) {
  expect_refusal(by_hand(2, {"F0 X1 B0", "F0 F1 B0 B1"}), {"stage 0, entry 2 'X1': wanted F, B, I or W"});
  expect_refusal(by_hand(2, {"F0 F", "f0"}), {"stage 0, entry 2 'F': wanted a micro-batch after F, such as F0",
                                              "stage 1, entry 1 'f0': wanted F, B, I or W"});
  for (const char* word : {"F0.", "F0x", "F0-", "F0.1x", "F0--1", "F0,"}) {
    expect_refusal(by_hand(2, {word}), {std::string("stage 0, entry 1 '") + word + "': wanted F0, F0-3 or F0.1"});
  }
  expect_refusal(by_hand(2, {"F1-0"}), {"entry 1 'F1-0': the range runs backwards"});
  expect_refusal(by_hand(2, {"F2"}), {"entry 1 'F2': micro-batches are 0 to 1"});
  expect_refusal(by_hand(2, {"F99999999999"}), {"'F99999999999': wanted a micro-batch after F"});
  expect_refusal(by_hand(2, {"F0.1"}), {"entry 1 'F0.1': chunks of a stage are 0 to 0 (parallel.interleave)"});
}

TEST(Lists, ProductsOnce) {
  expect_refusal(by_hand(2, {"F0 F1 B0", ""}), {"B1 of stage 0 is missing", "F0 of stage 1 is missing"});
  expect_refusal(by_hand(1, {"F0 F0 B0"}), {"operation 2 of stage 0 (F0) is there twice, first as operation 1"});
  expect_refusal(by_hand(1, {"F0 B0 W0"}), {"(B0) and operation 3 of stage 0 (W0) make the same gradient"});
  expect_refusal(by_hand(1, {"F0 I0"}), {"W0 of stage 0 is missing"});
  expect_refusal(by_hand(1, {"F0 W0"}), {"I0 of stage 0 is missing"});
  expect_refusal(by_hand(1, {"B0 F0"}), {"operation 1 of stage 0 (B0) stands before operation 2 of stage 0 (F0)"});
  expect_refusal(by_hand(2, {"F0 F1 B1 B0"}), {"(B1) stands before", "ascending micro-batch order"});
}

TEST(Lists, CirclesAreNamed) {
  // Stage 0 wants the gradient of 0 before it sends 1, stage 1 wants 1 before it makes the gradient of 0.
  expect_refusal(by_hand(2, {"F0 B0 F1 B1", "F0 F1 B0 B1"}),
                 {"the stages wait for each other; stage 0 stands at entry 2 (B0), which needs B0 of stage 1; stage 1 "
                  "stands at entry 2 (F1), which needs F1 of stage 0"});
  expect_refusal(by_hand(1, {"F0.1 F0.0 B0.1 B0.0"}, 2), {"(F0.1) stands before", "(F0.0), which it needs"});
}

}  // namespace fourfold::test
