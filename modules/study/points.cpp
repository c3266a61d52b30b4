#include "study/points.hpp"

#include <algorithm>
#include <limits>

#include "study/measure.hpp"

namespace fourfold::study {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

void measure(Point& point) {
  if (point.rows.empty()) return;
  point.clock = trials::text(*point.rows.front(), "clock");
  // One oversubscribed trial makes the point one.
  for (const trials::Row* row : point.rows) {
    if (trials::text(*row, "clock") == "oversubscribed") point.clock = "oversubscribed";
  }
  point.step_seconds = point.median_of("step_seconds");
  point.tokens_per_second = point.median_of("tokens_per_step") / point.step_seconds;
  point.least = std::numeric_limits<double>::infinity();
  for (const trials::Row* row : point.rows) {
    point.least = std::min(point.least, trials::number(*row, "step_seconds_least"));
    point.most = std::max(point.most, trials::number(*row, "step_seconds_most"));
  }
}

void compare(Point& point, const std::vector<Point>& all) {
  point.speed_up = point.efficiency = kNone;
  if (point.rows.empty() || point.clock == "oversubscribed") return;
  const Point* base = nullptr;
  for (const Point& other : all) {
    if (other.rows.empty() || other.name != point.name || other.clock != point.clock) continue;
    if (base == nullptr || other.ranks < base->ranks) base = &other;
  }
  point.base_ranks = base->ranks;
  point.speed_up = point.tokens_per_second / base->tokens_per_second;
  point.efficiency = point.speed_up * static_cast<double>(base->ranks) / static_cast<double>(point.ranks);
}

}  // namespace

double Point::median_of(const std::string& column) const {
  std::vector<double> values;
  for (const trials::Row* row : rows) {
    if (const double value = trials::number(*row, column); value == value) values.push_back(value);
  }
  return median(std::move(values));
}

std::string Point::text_of(const std::string& column) const {
  return rows.empty() ? "" : trials::text(*rows.front(), column);
}

std::vector<Point> make_points(const ListedStudy& study, const std::map<std::string, trials::TrialState>& states) {
  std::vector<Point> points;
  for (const ListedTrial& trial : study.trials) {
    auto found = std::find_if(points.begin(), points.end(), [&](const Point& point) {
      return point.name == trial.point && point.ranks == trial.ranks;
    });
    if (found == points.end()) {
      Point point;
      point.name = trial.point;
      point.strategy = trial.strategy;
      point.ranks = trial.ranks;
      points.push_back(std::move(point));
      found = points.end() - 1;
    }
    ++found->wanted;
    const auto state = states.find(trial.key);
    if (state != states.end() && state->second.outcome == trials::TrialState::Outcome::done) {
      found->rows.push_back(&state->second.row);
    }
  }
  for (Point& point : points) measure(point);
  for (Point& point : points) compare(point, points);
  return points;
}

}  // namespace fourfold::study
