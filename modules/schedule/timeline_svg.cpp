#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "schedule/drawing.hpp"
#include "schedule/rules.hpp"

namespace fourfold {
namespace {

struct Paint {
  OperationKind kind;
  const char* colour;
  const char* meaning;
};
constexpr std::array<Paint, 4> kPaints = {{{OperationKind::forward, "#3b6fb6", "forward"},
                                           {OperationKind::backward, "#d9822b", "backward"},
                                           {OperationKind::backward_input, "#c44e52", "input gradient"},
                                           {OperationKind::backward_weight, "#3c8d6e", "weight gradient"}}};
// Pixels.
constexpr double kLeft = 84, kRight = 150, kTop = 78, kRow = 34, kGap = 8, kBottom = 52;
constexpr double kNarrowest = 720, kWidest = 2400;  // of the rows
constexpr double kDigit = 6.6;                      // width of a digit of the operations' numbers

const Paint& paint_of(OperationKind kind) {
  return *std::find_if(kPaints.begin(), kPaints.end(), [&](const Paint& paint) { return paint.kind == kind; });
}

// So wide that the shortest operation has room for a number of two digits, within the limits.
double width_of_rows(const Timeline& timeline) {
  std::int64_t shortest = timeline.makespan;
  for (const auto& spans : timeline.stages) {
    for (const Span& span : spans) {
      if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
    }
  }
  if (shortest == 0) return kNarrowest;
  return std::clamp(20.0 * static_cast<double>(timeline.makespan) / static_cast<double>(shortest), kNarrowest, kWidest);
}

// The smallest of 1, 2, 5 x 10^n that cuts `length` into at most `most` parts.
double nice_step(double length, int most) {
  double step = std::pow(10, std::floor(std::log10(length / most)));
  for (const double factor : {2.0, 2.5, 2.0}) {
    if (length / step <= most) break;
    step *= factor;
  }
  return step;
}

class Svg {
 public:
  Svg(const Schedule& schedule, const Timeline& timeline, const TickUnit& unit)
      : schedule_(schedule),
        timeline_(timeline),
        unit_(unit),
        rows_(width_of_rows(timeline)),
        bottom_(kTop + schedule.stages * (kRow + kGap)) {}

  std::string text() {
    head();
    axis();
    for (int stage = 0; stage < schedule_.stages; ++stage) row(stage);
    return text_ + "</svg>\n";
  }

 private:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    text_ += fmt::format(format, std::forward<Values>(values)...) + "\n";
  }
  double x(std::int64_t tick) const {
    return kLeft +
           rows_ * static_cast<double>(tick) / static_cast<double>(std::max<std::int64_t>(1, timeline_.makespan));
  }

  void head() {
    const double width = kLeft + rows_ + kRight, height = bottom_ + kBottom;
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
        R"(font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">)",
        width, height);
    add(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    const int chunks = schedule_.chunks();
    add(R"(<text x="{}" y="26" font-size="16" font-weight="bold">{}: {} stages, {} micro-batches{}</text>)", kLeft,
        schedule_.builder, schedule_.stages, schedule_.micro_batches,
        chunks > schedule_.stages ? fmt::format(", {} chunks", chunks) : "");
    add(R"(<text x="{:.1f}" y="26" text-anchor="end">{}, idle {:.1f} %</text>)", kLeft + rows_,
        in_unit(static_cast<double>(timeline_.makespan), unit_), 100 * timeline_.idle_share());
    double left = kLeft;
    for (const Paint& paint : kPaints) {
      if (!has(paint.kind)) continue;
      legend(left, paint.colour, paint.meaning);
    }
    legend(left, "#eceff3", "idle");
    add(R"(<text x="{:.1f}" y="55" fill="#555">numbers: micro-batches{}</text>)", left,
        schedule_.chunks() > schedule_.stages ? "; paler: later chunks of the stage" : "");
  }
  void legend(double& left, const char* colour, const std::string& meaning) {
    add(R"(<rect x="{:.1f}" y="44" width="14" height="14" rx="2" fill="{}"/>)", left, colour);
    add(R"(<text x="{:.1f}" y="55">{}</text>)", left + 20, meaning);
    left += 44 + kDigit * static_cast<double>(meaning.size());
  }
  bool has(OperationKind kind) const {
    return std::any_of(schedule_.lists.begin(), schedule_.lists.end(), [kind](const auto& list) {
      return std::any_of(list.begin(), list.end(), [kind](const StageOperation& o) { return o.kind == kind; });
    });
  }

  void axis() {
    const double length = static_cast<double>(timeline_.makespan);
    if (length == 0) return;
    const double step = nice_step(length * unit_.per_tick, static_cast<int>(rows_ / 90)) / unit_.per_tick;
    for (int i = 0; i * step <= length * (1 + 1e-12); ++i) {
      const double at = kLeft + rows_ * i * step / length;
      add(R"(<line x1="{0:.2f}" y1="{1:.1f}" x2="{0:.2f}" y2="{2:.1f}" stroke="#c9ced6" stroke-dasharray="2 3"/>)", at,
          kTop - 6, bottom_ + 4);
      add(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle" fill="#555">{}</text>)", at, bottom_ + 20,
          i == 0 ? "0" : in_unit(i * step, unit_));
    }
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle" fill="#555">time</text>)", kLeft + rows_ / 2, bottom_ + 40);
  }

  void row(int stage) {
    const double top = kTop + stage * (kRow + kGap), baseline = top + kRow / 2 + 4;
    add(R"(<text x="{}" y="{:.1f}" text-anchor="end">stage {}</text>)", kLeft - 12, baseline, stage);
    add(R"(<rect x="{}" y="{:.1f}" width="{:.2f}" height="{}" fill="#eceff3"/>)", kLeft, top, rows_, kRow);
    for (const Span& span : timeline_.stages[static_cast<std::size_t>(stage)]) {
      if (span.end > span.begin) operation(schedule_.list(stage)[span.operation], span, top, baseline);
    }
    const double idle = timeline_.makespan == 0
                            ? 0
                            : 1 - static_cast<double>(timeline_.busy(stage)) / static_cast<double>(timeline_.makespan);
    add(R"(<text x="{:.1f}" y="{:.1f}" fill="#555">idle {:.1f} %, {} in flight</text>)", kLeft + rows_ + 10, baseline,
        100 * idle, peak_sets(schedule_.list(stage)).most);
  }

  void operation(const StageOperation& operation, const Span& span, double top, double baseline) {
    const double begin = x(span.begin), width = x(span.end) - begin;
    const int local = local_chunk(schedule_, operation.chunk);
    const int chunks = static_cast<int>(chunks_of_stage(schedule_, schedule_.stage_of(operation.chunk)).size());
    const double opacity = chunks == 1 ? 1 : 1 - 0.5 * local / (chunks - 1);
    add(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{}" fill="{}" fill-opacity="{:.2f}" stroke="#ffffff" )"
        R"(stroke-width="{}"><title>{}: {} to {}</title></rect>)",
        begin, top, width, kRow, paint_of(operation.kind).colour, opacity, width > 4 ? "0.8" : "0",
        name_of(schedule_, operation), in_unit(static_cast<double>(span.begin), unit_),
        in_unit(static_cast<double>(span.end), unit_));
    const std::string number = std::to_string(operation.micro_batch);
    if (kDigit * static_cast<double>(number.size()) + 3 > width) return;
    add(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle" font-size="11" fill="{}">{}</text>)", begin + width / 2,
        baseline, opacity > 0.6 ? "#ffffff" : "#222222", number);
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  const TickUnit& unit_;
  double rows_, bottom_;
  std::string text_;
};

}  // namespace

std::string draw_svg(const Schedule& schedule, const Timeline& timeline, const TickUnit& unit) {
  return Svg(schedule, timeline, unit).text();
}

}  // namespace fourfold
