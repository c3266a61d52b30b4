// Timelines as text and as pictures.
#include "schedule/drawing.hpp"

#include <regex>
#include <set>

#include "schedule_support.hpp"

namespace fourfold::test {

Timeline timeline_of(const Schedule& schedule, const PassTimes& times) {
  return evaluate(schedule, equal_durations(schedule, times));
}

TEST(Drawing, Text) {
  const Schedule schedule = build("1f1b", 2, 3);
  EXPECT_EQ(draw_text(schedule, timeline_of(schedule, {1, 1, 1}), {1e-6, "s"}, 100),
            "stage 0 |F0F1    B0==F2B1==  B2==| idle 25.0 %, 2 in flight\n"
            "stage 1 |  F0B0==F1B1==F2B2==    | idle 25.0 %, 1 in flight\n"
            "time    0         6 us      12 us   idle 25.0 % of all\n"
            "legend  F forward --, B backward ==; the number is the micro-batch (none: no room)\n");
  const Schedule halves = build("zero_bubble", 2, 3);
  const std::string text = draw_text(halves, timeline_of(halves, {2, 3, 3}), {1e-6, "s"}, 100);
  for (const char* part : {"I0~", "W0+", "legend  F forward --, I input gradients ~~, W weight gradients ++;"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  const Schedule chunks = build("interleaved", 2, 2, 2);
  EXPECT_NE(draw_text(chunks, timeline_of(chunks, {1, 1, 1}), {1e-6, "s"}, 100).find("behind the point the chunk"),
            std::string::npos);
}

// A name that does not fit is cut to its letter, never to another number.
TEST(Drawing, NarrowText) {
  const Schedule schedule = build("gpipe", 1, 12);
  const std::string text = draw_text(schedule, timeline_of(schedule, {1, 1, 1}), {1, "FLOP"}, 20);
  EXPECT_EQ(text.substr(0, 30), "stage 0 |FFFFFFBBB2BBBBBBBBB=|");  // 12 ticks of 1 and 12 of 2 in 20 columns
}

TEST(Drawing, Units) {
  EXPECT_EQ(in_unit(0, {1, "s"}), "0 s");
  EXPECT_EQ(in_unit(57, {1e-12, "s"}), "57 ps");
  EXPECT_EQ(in_unit(1'500'000, {1e-12, "s"}), "1.5 us");
  EXPECT_EQ(in_unit(999'999, {1e-12, "s"}), "1 us");
  EXPECT_EQ(in_unit(2.5e12, {4, "FLOP"}), "10 TFLOP");
}

// Every operation is a box of its length, at its place.
TEST(Drawing, Svg) {
  for (const ScheduleRequest& request : requests(3, 12)) {
    const Schedule schedule = build_schedule(request);
    const Timeline timeline = timeline_of(schedule, {1, 2, 1});
    const std::string svg = draw_svg(schedule, timeline, {1e-6, "s"});
    static const std::regex kBox(
        "<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"([0-9.]+)\" [^>]*><title>([FBIW])([0-9]+)[^<]*</title></rect>");
    double sum = 0, right = 0;
    std::size_t boxes = 0;
    for (std::sregex_iterator box(svg.begin(), svg.end(), kBox), end; box != end; ++box, ++boxes) {
      sum += std::stod((*box)[3]);
      right = std::max(right, std::stod((*box)[1]) + std::stod((*box)[3]));
    }
    std::size_t operations = 0;
    double busy = 0;
    for (std::size_t s = 0; s < 3; ++s) {
      operations += timeline.stages[s].size();
      busy += static_cast<double>(timeline.busy(static_cast<int>(s)));
    }
    EXPECT_EQ(boxes, operations);
    const double left = 84;
    EXPECT_NEAR(sum / (right - left), busy / static_cast<double>(timeline.makespan), 0.01);
    const bool split = request.builder == "zero_bubble";
    EXPECT_EQ(svg.find(">input gradient<") != std::string::npos, split);
    EXPECT_EQ(svg.find(">backward<") != std::string::npos, !split);
    EXPECT_EQ(svg.find("paler") != std::string::npos, schedule.chunks() > 3);
    for (const char* part : {"micro-batches", "stage 2", ">time<", ">idle<", "in flight", "</svg>\n"}) {
      EXPECT_NE(svg.find(part), std::string::npos) << part;
    }
  }
}

}  // namespace fourfold::test
