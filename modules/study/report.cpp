#include "study/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/files.hpp"
#include "study/measure.hpp"

namespace fourfold::study {

namespace {

using Outcome = trials::TrialState::Outcome;

const char* const kPhases[] = {"input", "forward", "backward", "gradient_sum", "norm", "update"};
const char* const kMemory[] = {"parameters", "gradients", "optimizer", "activations", "buffers"};

std::string or_dash(double value, const char* format) {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}

std::string milliseconds(double seconds) {
  return or_dash(seconds * 1e3, "{:.4g}");
}

// "1.5 k", as the console writes counts.
std::string short_count(double value) {
  if (std::isnan(value)) return "-";
  static const char* const kUnits[] = {"", " k", " M", " G", " T", " P"};
  int unit = 0;
  for (; value >= 1000 && unit < 5; ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{:.4g}", value) : fmt::format("{:.2f}{}", value, kUnits[unit]);
}

std::string state_of(const Report& report, const ListedTrial& trial) {
  const auto found = report.states.find(trial.key);
  return state_text(found == report.states.end() ? nullptr : &found->second, report.study.attempts);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

bool any_point(const Report& report, const std::string& clock) {
  return std::any_of(report.points.begin(), report.points.end(), [&](const Point& p) { return p.clock == clock; });
}

TextTable speed_table(const Report& report) {
  TextTable table{"Speed",
                  "Step: median over trials of the median over windows; the first two steps of a session are left out. "
                  "Spread: the least and the largest window. Efficiency against the smallest rank count of the same "
                  "row name.",
                  {"point", "ranks", "nodes", "layout", "batch", "step [ms]", "spread [ms]", "tokens/s", "per rank",
                   "speed-up", "efficiency", "FLOP/s", "utilisation", "clock", "trials"},
                  {}};
  for (const Point& point : report.points) {
    if (point.rows.empty()) continue;
    table.rows.push_back(
        {point.name, std::to_string(point.ranks), point.text_of("nodes"), point.text_of("layout"),
         point.text_of("global_batch"), milliseconds(point.step_seconds),
         milliseconds(point.least) + " - " + milliseconds(point.most), short_count(point.tokens_per_second),
         short_count(point.tokens_per_second / static_cast<double>(point.ranks)), or_dash(point.speed_up, "{:.2f}"),
         or_dash(100 * point.efficiency, "{:.1f} %"), short_count(point.median_of("model_flops_per_second")),
         or_dash(100 * point.median_of("utilisation"), "{:.1f} %"), point.clock,
         fmt::format("{} of {}", point.rows.size(), point.wanted)});
  }
  if (any_point(report, "oversubscribed")) {
    table.note +=
        " OVERSUBSCRIBED: those ranks shared cores; their times measure no scaling, so they have no speed-up.";
  }
  if (any_point(report, "virtual")) {
    std::set<std::string> machines;
    for (const Point& point : report.points) {
      if (point.clock == "virtual") machines.insert(point.text_of("machine"));
    }
    std::string names;
    for (const std::string& name : machines) names += (names.empty() ? "" : ", ") + name;
    table.note += " VIRTUAL: times of the virtual clock on the machine file " + names + ", not of this machine.";
  }
  return table;
}

TextTable phase_table(const Report& report) {
  TextTable table{"Phases of a step",
                  "Milliseconds of a step, a rank's mean. Exposed: inside communication and waits for it, part of the "
                  "phases. A virtual point has two rows: its phases on the host's clock (they tell where this machine "
                  "spends its time), and what is exposed on the virtual one.",
                  {"point", "ranks", "input", "forward", "backward", "gradient sum", "norm", "update", "exposed",
                   "of the step", "clock"},
                  {}};
  for (const Point& point : report.points) {
    if (point.rows.empty()) continue;
    std::vector<std::string> row = {point.name, std::to_string(point.ranks)};
    for (const char* phase : kPhases)
      row.push_back(milliseconds(point.median_of("phase_" + std::string(phase) + "_seconds")));
    const double exposed = point.median_of("exposed_seconds");
    const std::vector<std::string> waits = {milliseconds(exposed),
                                            or_dash(100 * exposed / point.step_seconds, "{:.1f} %")};
    if (point.clock == "virtual") {
      row.insert(row.end(), {"-", "-", "host"});
      table.rows.push_back(std::move(row));
      row = {point.name, std::to_string(point.ranks)};
      row.insert(row.end(), std::size(kPhases), "-");
    }
    row.insert(row.end(), waits.begin(), waits.end());
    row.push_back(point.clock);
    table.rows.push_back(std::move(row));
  }
  return table;
}

// The axes that some row has.
std::vector<std::string> axes_of(const Report& report) {
  std::set<std::string> names;
  for (const Point& point : report.points) {
    for (const trials::Row* row : point.rows) {
      for (const auto& [column, cell] : *row) {
        if (column.ends_with(":bytes")) names.insert(column.substr(0, column.size() - 6));
      }
    }
  }
  return {names.begin(), names.end()};
}

TextTable bytes_table(const Report& report) {
  const std::vector<std::string> axes = axes_of(report);
  TextTable table{"Bytes of a step by axis", "Sent by all ranks on rings, in the last step.", {"point", "ranks"}, {}};
  for (const std::string& axis : axes) table.header.push_back(axis);
  table.header.insert(table.header.end(), {"all", "between nodes"});
  for (const Point& point : report.points) {
    if (point.rows.empty()) continue;
    std::vector<std::string> row = {point.name, std::to_string(point.ranks)};
    double between = 0;
    for (const std::string& axis : axes) {
      row.push_back(short_count(point.median_of(axis + ":bytes")));
      const double part = point.median_of(axis + ":bytes_between");
      between += std::isnan(part) ? 0 : part;
    }
    row.push_back(short_count(point.median_of("bytes")));
    row.push_back(short_count(between));
    table.rows.push_back(std::move(row));
  }
  return table;
}

TextTable memory_table(const Report& report) {
  TextTable table{
      "Memory of a rank",
      "Bytes at the peak of each kind, of the rank with the most. Formula: whether parameters, gradients and "
      "optimizer are, to the byte, what fourfold check reckons.",
      {"point", "ranks", "parameters", "gradients", "optimizer", "activations", "buffers", "together", "formula"},
      {}};
  for (const Point& point : report.points) {
    if (point.rows.empty()) continue;
    std::vector<std::string> row = {point.name, std::to_string(point.ranks)};
    bool exact = true;
    for (const char* tag : kMemory) {
      const double bytes = point.median_of("memory_" + std::string(tag));
      const double predicted = point.median_of("predicted_" + std::string(tag));
      exact = exact && (std::isnan(predicted) || predicted == bytes);
      row.push_back(short_count(bytes));
    }
    row.push_back(short_count(point.median_of("memory_peak")));
    row.push_back(exact ? "equal" : "DIFFERS");
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<double> losses_of(const Report& report, const std::string& key) {
  std::vector<double> losses;
  for (const StepLine& step : read_run_log(report.folder + "/trials/" + key + "/metrics.jsonl").steps) {
    losses.push_back(step.loss);
  }
  return losses;
}

// "equal" where every step has the same bits, else the largest relative difference.
std::string beside(const std::vector<double>& losses, const std::vector<double>& reference) {
  if (losses == reference) return "equal";
  if (losses.size() != reference.size()) return "other steps";
  double most = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    most = std::max(most, std::abs(losses[i] - reference[i]) / std::max(std::abs(reference[i]), 1e-300));
  }
  return fmt::format("{:.1e}", most);
}

// A trial is compared with the first one of the same seed and swept values, whatever its ranks and strategy.
TextTable learning_table(const Report& report) {
  TextTable table{"Learning",
                  "Beside the first: the losses of all steps against those of the first trial with equal settings and "
                  "seed; equal: the same bits, else the largest relative difference.",
                  {"point", "ranks", "seed", "steps", "final loss", "evaluation", "beside the first"},
                  {}};
  const bool target = std::any_of(report.points.begin(), report.points.end(), [](const Point& point) {
    return !point.rows.empty() && trials::find(*point.rows.front(), "steps_to_target") != nullptr;
  });
  if (target) table.header.insert(table.header.end(), {"steps to target", "time to target [s]"});
  std::map<std::string, std::vector<double>> first;
  for (const Point& point : report.points) {
    for (const trials::Row* row : point.rows) {
      if (trials::text(*row, "repeat") != "1") continue;
      std::string same = trials::text(*row, "seed");
      for (const std::string& key : report.study.swept) same += " " + trials::text(*row, key);
      const std::vector<double> losses = losses_of(report, trials::text(*row, "trial"));
      const auto [reference, fresh] = first.emplace(same, losses);
      std::vector<std::string> cells = {point.name,
                                        std::to_string(point.ranks),
                                        trials::text(*row, "seed"),
                                        trials::text(*row, "steps"),
                                        or_dash(trials::number(*row, "final_loss"), "{:.8g}"),
                                        or_dash(trials::number(*row, "eval_loss"), "{:.8g}"),
                                        fresh ? "(the first)" : beside(losses, reference->second)};
      if (target) {
        cells.push_back(or_dash(trials::number(*row, "steps_to_target"), "{:.0f}"));
        cells.push_back(or_dash(trials::number(*row, "to_target_seconds"), "{:.4g}"));
      }
      table.rows.push_back(std::move(cells));
    }
  }
  return table;
}

TextTable left_table(const Report& report) {
  TextTable table{"Not done", "", {"trial", "state"}, {}};
  for (const ListedTrial& trial : report.study.trials) {
    const std::string state = state_of(report, trial);
    if (state != "done") table.rows.push_back({trial.label, first_line(state)});
  }
  return table;
}

void write_file(const std::string& path, const std::string& text) {
  NewFile file(path);
  file.append(text);
  file.finish();
}

std::string table_csv(const Report& report) {
  std::vector<std::string> columns;
  for (const Point& point : report.points) {
    for (const trials::Row* row : point.rows) {
      for (const auto& [name, cell] : *row) {
        if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
      }
    }
  }
  std::string csv = csv_line(columns);
  for (const Point& point : report.points) {
    for (const trials::Row* row : point.rows) {
      std::vector<std::string> cells;
      for (const std::string& column : columns) cells.push_back(trials::text(*row, column));
      csv += csv_line(cells);
    }
  }
  return csv;
}

std::string number_text(double value) {
  return std::isnan(value) ? "" : fmt::format("{:.12g}", value);
}

std::string points_csv(const Report& report) {
  const std::vector<std::string> axes = axes_of(report);
  std::vector<std::string> columns = {
      "point", "strategy", "ranks",      "base_ranks",        "clock",  "step_seconds",    "least",
      "most",  "speed_up", "efficiency", "tokens_per_second", "trials", "exposed_seconds", "to_target_seconds"};
  for (const char* phase : kPhases) columns.push_back("phase:" + std::string(phase));
  for (const char* tag : kMemory) columns.push_back("memory:" + std::string(tag));
  for (const std::string& axis : axes) columns.push_back("bytes:" + axis);
  for (const std::string& axis : axes) columns.push_back("exposed:" + axis);
  std::string csv = csv_line(columns);
  for (const Point& point : report.points) {
    if (point.rows.empty()) continue;
    std::vector<std::string> cells = {point.name,
                                      point.strategy,
                                      std::to_string(point.ranks),
                                      std::to_string(point.base_ranks),
                                      point.clock,
                                      number_text(point.step_seconds),
                                      number_text(point.least),
                                      number_text(point.most),
                                      number_text(point.speed_up),
                                      number_text(point.efficiency),
                                      number_text(point.tokens_per_second),
                                      std::to_string(point.rows.size()),
                                      number_text(point.median_of("exposed_seconds")),
                                      number_text(point.median_of("to_target_seconds"))};
    for (const char* phase : kPhases)
      cells.push_back(number_text(point.median_of("phase_" + std::string(phase) + "_seconds")));
    for (const char* tag : kMemory) cells.push_back(number_text(point.median_of("memory_" + std::string(tag))));
    for (const std::string& axis : axes) cells.push_back(number_text(point.median_of(axis + ":bytes")));
    const char* exposed = point.clock == "virtual" ? ":virtual_exposed" : ":exposed_seconds";
    for (const std::string& axis : axes) cells.push_back(number_text(point.median_of(axis + exposed)));
    csv += csv_line(cells);
  }
  return csv;
}

// Time: of the host's clock, or on virtual points the median step's.
std::string losses_csv(const Report& report) {
  std::string csv = csv_line({"trial", "point", "ranks", "seed", "clock", "step", "loss", "time"});
  for (const Point& point : report.points) {
    for (const trials::Row* row : point.rows) {
      if (trials::text(*row, "repeat") != "1") continue;
      const std::string key = trials::text(*row, "trial");
      const std::string clock = trials::text(*row, "clock");
      double time = 0;
      for (const StepLine& step : read_run_log(report.folder + "/trials/" + key + "/metrics.jsonl").steps) {
        time += clock == "virtual" ? trials::number(*row, "step_seconds") : step.seconds;
        csv += csv_line({key, point.name, std::to_string(point.ranks), trials::text(*row, "seed"), clock,
                         std::to_string(step.step), number_text(step.loss), number_text(time)});
      }
    }
  }
  return csv;
}

std::string summary_line(const Report& report) {
  return fmt::format("{} of {} trials done, {} failed, {} missing", report.done, report.study.trials.size(),
                     report.failed, report.missing);
}

std::string kind_text(const ListedStudy& study) {
  return study.kind == "scaling" ? study.scaling + " scaling" : study.kind;
}

// The machines and programs that the rows name.
TextTable machine_table(const Report& report) {
  TextTable table{"Where it ran", "", {"hosts x ranks", "machine file", "MPI", "fourfold", "trials"}, {}};
  std::map<std::vector<std::string>, std::int64_t> places;
  for (const Point& point : report.points) {
    for (const trials::Row* row : point.rows) {
      ++places[{trials::text(*row, "hosts"), trials::text(*row, "machine"), trials::text(*row, "mpi"),
                trials::text(*row, "version")}];
    }
  }
  for (const auto& [place, count] : places) {
    std::vector<std::string> cells = place;
    if (cells[1].empty()) cells[1] = "-";
    cells.push_back(std::to_string(count));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

// Without what stands before the <svg> element.
std::string svg_element(const std::string& file) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;
  const std::string text = read_text_file(file, kMostBytes);
  const std::size_t begin = text.find("<svg");
  return begin == std::string::npos ? "" : text.substr(begin);
}

}  // namespace

Report read_report(const std::string& folder) {
  Report report;
  report.folder = folder;
  report.study = read_plan(folder + "/study.json");
  report.states = trials::read_trials(folder);
  report.points = make_points(report.study, report.states);
  for (const ListedTrial& trial : report.study.trials) {
    const std::string state = state_of(report, trial);
    ++(state == "done" ? report.done : state.starts_with("failed") ? report.failed : report.missing);
  }
  return report;
}

std::vector<TextTable> tables_of(const Report& report) {
  std::vector<TextTable> tables = {speed_table(report),  phase_table(report),    bytes_table(report),
                                   memory_table(report), learning_table(report), left_table(report)};
  std::erase_if(tables, [](const TextTable& table) { return table.rows.empty(); });
  return tables;
}

void write_report(const Report& report, const std::vector<TextTable>& tables) {
  write_file(report.folder + "/table.csv", table_csv(report));
  write_file(report.folder + "/points.csv", points_csv(report));
  write_file(report.folder + "/losses.csv", losses_csv(report));
  std::string text =
      "# " + report.study.name + ": " + kind_text(report.study) + "\n\n" + summary_line(report) + ".\n\n";
  for (const TextTable& table : tables) text += as_markdown(table);
  text += as_markdown(machine_table(report));
  text += "## Deck\n\n`" + report.study.command + "`\n\n```yaml\n" + report.study.deck + "```\n";
  write_file(report.folder + "/report.md", text);
}

void write_page(const Report& report, const std::vector<TextTable>& tables, const std::vector<std::string>& plots) {
  const std::string title = html_escaped(report.study.name + ": " + kind_text(report.study));
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" + title +
      "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n"
      "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:78rem;padding:0 1rem;"
      "color:#222;background:#fff}\nh1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}\n"
      "table{border-collapse:collapse;font-size:13px}th,td{padding:.25rem .6rem;text-align:left;"
      "border-bottom:1px solid #ddd;white-space:nowrap}\nth{border-bottom:2px solid #888}"
      "td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}\n"
      ".scroll{overflow-x:auto}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(30rem,1fr));"
      "gap:1rem}.plots svg{width:100%;height:auto}\npre{background:#f5f5f5;padding:1rem;overflow-x:auto;"
      "font-size:13px}\n</style></head><body>\n<h1>" +
      title + "</h1>\n<p>" + html_escaped(summary_line(report)) + "</p>\n<div class=\"plots\">\n";
  for (const std::string& plot : plots) page += "<figure>" + svg_element(plot) + "</figure>\n";
  page += "</div>\n";
  for (const TextTable& table : tables) page += as_html(table);
  page += as_html(machine_table(report));
  page += "<h2>Deck</h2>\n<p><code>" + html_escaped(report.study.command) + "</code></p>\n<pre>" +
          html_escaped(report.study.deck) + "</pre>\n</body></html>\n";
  write_file(report.folder + "/report.html", page);
}

}  // namespace fourfold::study
