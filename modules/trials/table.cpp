#include "trials/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "trials/line_file.hpp"

namespace fourfold::trials {

namespace {

using Json = nlohmann::ordered_json;

double time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Json to_json(const Cell& cell) {
  return std::visit([](const auto& value) { return Json(value); }, cell);
}

Cell to_cell(const Json& json) {
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_string()) return json.get<std::string>();
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();  // JSON has no nan
}

// The lines of all files, in the order of their times.
std::vector<Json> all_lines(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("trials") && name.ends_with(".jsonl")) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  std::vector<Json> lines;
  for (const std::string& file : files) {
    const std::string all = whole_lines(file);
    int number = 0;
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t end = all.find('\n', begin);
      ++number;
      Json line = Json::parse(all.begin() + static_cast<std::ptrdiff_t>(begin),
                              all.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
      if (!line.is_object() || !line.contains("trial") || !line.contains("time")) {
        fail_one(ExitCode::input, fmt::format("{}:{}: is no line of a trial table", file, number));
      }
      lines.push_back(std::move(line));
      begin = end + 1;
    }
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Json& a, const Json& b) { return a["time"].get<double>() < b["time"].get<double>(); });
  return lines;
}

void apply(const Json& line, TrialState& state) {
  if (state.outcome == TrialState::Outcome::done) return;
  if (line.contains("attempt")) {
    state.attempts = state.died ? state.attempts + 1 : 1;
    state.died = true;
    state.outcome = TrialState::Outcome::none;
    if (!line.contains("resumed")) state.sessions.clear();
    return;
  }
  state.died = false;
  state.attempts = 0;
  if (line.contains("session")) state.sessions.push_back(line["session"].dump());
  if (line.contains("failed")) {
    state.outcome = TrialState::Outcome::failed;
    state.message = line["failed"].get<std::string>();
  }
  if (line.contains("done")) {
    state.outcome = TrialState::Outcome::done;
    for (const Json& column : line["done"]) state.row.emplace_back(column[0].get<std::string>(), to_cell(column[1]));
  }
}

}  // namespace

const Cell* find(const Row& row, const std::string& column) {
  for (const auto& [name, cell] : row) {
    if (name == column) return &cell;
  }
  return nullptr;
}

double number(const Row& row, const std::string& column) {
  const Cell* cell = find(row, column);
  if (cell == nullptr) return std::numeric_limits<double>::quiet_NaN();
  if (const auto* whole = std::get_if<std::int64_t>(cell)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(cell)) return *real;
  return std::numeric_limits<double>::quiet_NaN();
}

std::string text(const Row& row, const std::string& column) {
  const Cell* cell = find(row, column);
  return cell == nullptr ? "" : cell_text(*cell);
}

std::string cell_text(const Cell& cell) {
  if (const auto* whole = std::get_if<std::int64_t>(&cell)) return std::to_string(*whole);
  if (const auto* real = std::get_if<double>(&cell)) return std::isnan(*real) ? "" : fmt::format("{:.12g}", *real);
  return std::get<std::string>(cell);
}

std::string trial_key(const std::string& canonical) {
  return fmt::format("{:016x}", hash_bytes(canonical));
}

std::map<std::string, TrialState> read_trials(const std::string& folder) {
  std::map<std::string, TrialState> states;
  for (const Json& line : all_lines(folder)) apply(line, states[line["trial"].get<std::string>()]);
  return states;
}

TrialTable::TrialTable(const std::string& folder, const std::string& part)
    : file_(std::make_unique<LineFile>(folder + (part.empty() ? "/trials.jsonl" : "/trials." + part + ".jsonl"))) {}

TrialTable::~TrialTable() = default;

void TrialTable::attempt(const std::string& key, std::int64_t number, bool resumed) {
  Json line{{"trial", key}, {"attempt", number}};
  if (resumed) line["resumed"] = true;
  line["time"] = time_now();
  file_->add(line.dump());
}

void TrialTable::session(const std::string& key, const std::string& json) {
  file_->add(Json{{"trial", key}, {"session", Json::parse(json)}, {"time", time_now()}}.dump());
}

void TrialTable::done(const std::string& key, const Row& row) {
  Json columns = Json::array();
  for (const auto& [name, cell] : row) columns.push_back(Json::array({name, to_json(cell)}));
  file_->add(Json{{"trial", key}, {"done", columns}, {"time", time_now()}}.dump());
}

void TrialTable::failed(const std::string& key, const std::string& message) {
  file_->add(Json{{"trial", key}, {"failed", message}, {"time", time_now()}}.dump());
}

}  // namespace fourfold::trials
