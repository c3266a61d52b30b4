#include "study/measure.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/files.hpp"
#include "grid/partition.hpp"

namespace fourfold::study {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

NumberType number_type(Precision precision) {
  return precision == Precision::fp64   ? NumberType::fp64
         : precision == Precision::fp32 ? NumberType::fp32
                                        : NumberType::bf16;
}

std::string spelled(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

// The axes of all sessions: bytes of the last step, times of all.
std::map<std::string, AxisUse> together(const std::vector<SessionReport>& sessions) {
  std::map<std::string, AxisUse> axes;
  for (const SessionReport& session : sessions) {
    for (const auto& [name, use] : session.axes) {
      AxisUse& all = axes[name];
      all.messages = use.messages;
      all.bytes = use.bytes;
      all.bytes_between = use.bytes_between;
      all.exposed += use.exposed;
      all.virtual_time += use.virtual_time;
    }
  }
  return axes;
}

// Virtual seconds by step.
std::map<std::int64_t, double> virtual_seconds(const std::vector<SessionReport>& sessions) {
  std::map<std::int64_t, double> seconds;
  for (const SessionReport& session : sessions) {
    for (std::size_t i = 0; i < session.virtual_steps.size(); ++i) {
      seconds[session.first_step + static_cast<std::int64_t>(i)] =
          static_cast<double>(session.virtual_steps[i]) * 1e-12;
    }
  }
  return seconds;
}

}  // namespace

RunLog read_run_log(const std::string& file) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 34;
  std::istringstream lines(read_text_file(file, kMostBytes));
  std::map<std::int64_t, StepLine> steps;
  std::map<std::string, double> phases;
  std::vector<std::string> names;
  RunLog log;
  std::int64_t cold = kWarmUpSteps;
  std::string text;
  while (std::getline(lines, text)) {
    const Json line = Json::parse(text, nullptr, false);
    if (!line.is_object()) continue;
    const std::string event = line.value("event", std::string());
    if (event == "restart") cold = kWarmUpSteps;
    if (event == "eval") {
      log.eval_loss = line.at("loss").get<double>();
      log.evaluated = true;
    }
    if (event == "phases") {
      for (const auto& [name, seconds] : line.at("mean").items()) {
        if (!phases.contains(name)) names.push_back(name);
        phases[name] += seconds.get<double>();
      }
    }
    if (!event.empty()) continue;
    StepLine step;
    step.step = line.at("step").get<std::int64_t>();
    step.tokens = line.at("tokens").get<std::int64_t>();
    step.loss = line.at("loss").get<double>();
    step.seconds = line.at("seconds").get<double>();
    const double rate = line.at("model_flops_per_second").get<double>();
    step.model_flops = rate * step.seconds;
    if (line.contains("utilisation")) step.ceiling = rate / line.at("utilisation").get<double>();
    step.warm = cold <= 0;
    --cold;
    steps[step.step] = step;
  }
  for (const auto& [number, step] : steps) log.steps.push_back(step);
  for (const std::string& name : names) log.phases.emplace_back(name, phases[name]);
  return log;
}

double median(std::vector<double> values) {
  if (values.empty()) return kNone;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<double> window_means(const std::vector<double>& times) {
  const auto count = static_cast<std::int64_t>(times.size());
  const std::int64_t windows = std::min<std::int64_t>(count, count >= 30 ? 10 : count >= 15 ? 5 : 3);
  std::vector<double> means;
  for (std::int64_t w = 0; w < windows; ++w) {
    const Range window = part(count, windows, w);
    means.push_back(std::accumulate(times.begin() + window.begin, times.begin() + window.end, 0.0) /
                    static_cast<double>(window.size()));
  }
  return means;
}

bool is_timing(const std::string& column) {
  return column == "hosts" || column == "utilisation" || column.starts_with("step_seconds") ||
         column.ends_with("_seconds") || column.ends_with("_per_second");
}

trials::Row make_row(const Trial& trial, const StudyDeck& study, const std::vector<SessionReport>& sessions,
                     const std::string& run_folder, const Place& place, const Predicted& predicted) {
  const Deck& deck = *trial.deck;
  const RunLog log = read_run_log(run_folder + "/metrics.jsonl");
  const std::map<std::int64_t, double> emulated = virtual_seconds(sessions);
  const bool is_virtual = !emulated.empty();
  trials::Row row;
  const auto add = [&](const std::string& column, trials::Cell cell) { row.emplace_back(column, std::move(cell)); };

  add("trial", trial.key);
  add("strategy", trial.strategy);
  for (const auto& [key, value] : trial.swept) add(key, value);
  add("ranks", std::int64_t{trial.ranks});
  add("nodes", place.nodes);
  add("seed", trial.seed);
  add("repeat", trial.repeat);
  add("layout", trial.layout());
  add("global_batch", deck.batch.global);
  add("micro_batches", deck.batch.micro_batches);
  add("clock", std::string(is_virtual ? "virtual" : place.oversubscribed ? "oversubscribed" : "wall"));
  add("machine", is_virtual && deck.emulate.description ? deck.emulate.description->name : std::string());

  // Times.
  const auto seconds_of = [&](const StepLine& step) {
    const auto found = emulated.find(step.step);
    return !is_virtual ? step.seconds : found == emulated.end() ? kNone : found->second;
  };
  const bool any_warm = std::any_of(log.steps.begin(), log.steps.end(), [](const StepLine& s) { return s.warm; });
  std::vector<double> times;
  double elapsed = 0;
  double to_target = kNone;
  std::int64_t target_step = -1;
  for (const StepLine& step : log.steps) {
    if (step.warm || !any_warm) times.push_back(seconds_of(step));
    elapsed += seconds_of(step);
    if (study.target_loss && target_step < 0 && step.loss <= *study.target_loss) {
      target_step = step.step;
      to_target = elapsed;
    }
  }
  const std::vector<double> windows = window_means(times);
  const double step_seconds = median(windows);
  const StepLine last = log.steps.empty() ? StepLine{} : log.steps.back();
  add("steps", static_cast<std::int64_t>(log.steps.size()));
  add("windows", static_cast<std::int64_t>(windows.size()));
  add("step_seconds", step_seconds);
  add("step_seconds_least", windows.empty() ? kNone : *std::min_element(windows.begin(), windows.end()));
  add("step_seconds_most", windows.empty() ? kNone : *std::max_element(windows.begin(), windows.end()));
  add("tokens_per_step", last.tokens);
  add("tokens_per_second", static_cast<double>(last.tokens) / step_seconds);
  add("model_flops_per_second", last.model_flops / step_seconds);
  double ceiling = last.ceiling;
  if (is_virtual) {
    ceiling = !deck.emulate.description
                  ? 0
                  : static_cast<double>(deck.emulate.description->flops(number_type(deck.precision))) * trial.ranks;
  }
  add("utilisation", ceiling > 0 ? last.model_flops / step_seconds / ceiling : kNone);

  // Communication, of a step.
  std::int64_t steps_seen = 0;
  for (const SessionReport& session : sessions) steps_seen += session.steps;
  const double seen = static_cast<double>(std::max<std::int64_t>(steps_seen, 1));
  double exposed = 0;
  std::int64_t bytes = 0;
  for (const auto& [name, axis] : together(sessions)) {
    add(name + ":bytes", axis.bytes);
    add(name + ":bytes_between", axis.bytes_between);
    add(name + ":messages", axis.messages);
    add(name + ":exposed_seconds", axis.exposed / seen);
    if (is_virtual) add(name + ":virtual_exposed", axis.virtual_time / seen);
    exposed += (is_virtual ? axis.virtual_time : axis.exposed) / seen;
    bytes += axis.bytes;
  }
  add("bytes", bytes);
  add("exposed_seconds", exposed);
  for (const auto& [name, seconds] : log.phases) {
    static const std::vector<std::string> kOfSteps = {"input", "forward", "backward", "gradient sum", "norm", "update"};
    if (std::find(kOfSteps.begin(), kOfSteps.end(), name) == kOfSteps.end()) continue;
    add("phase_" + spelled(name) + "_seconds", seconds / seen);
  }

  // Memory, of the rank that has most.
  SessionReport most;
  for (const SessionReport& session : sessions) {
    for (std::size_t tag = 0; tag < most.peaks.size(); ++tag) {
      most.peaks[tag] = std::max(most.peaks[tag], session.peaks[tag]);
    }
    most.peak_total = std::max(most.peak_total, session.peak_total);
  }
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    add("memory_" + std::string(memory_tag_name(static_cast<MemoryTag>(tag))),
        most.peaks[static_cast<std::size_t>(tag)]);
  }
  add("memory_peak", most.peak_total);
  add("predicted_parameters", predicted.parameters);
  add("predicted_gradients", predicted.gradients);
  add("predicted_optimizer", predicted.optimizer);

  // Learning.
  add("final_loss", last.loss);
  add("eval_loss", log.evaluated ? log.eval_loss : kNone);
  if (study.target_loss) {
    add("steps_to_target", target_step < 0 ? trials::Cell(kNone) : trials::Cell(target_step));
    add("to_target_seconds", to_target);
  }
  add("version", place.version);
  add("mpi", place.mpi);
  add("hosts", place.hosts);
  return row;
}

}  // namespace fourfold::study
