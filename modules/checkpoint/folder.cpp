#include "checkpoint/folder.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "base/error.hpp"
#include "checkpoint/posix.hpp"

namespace fourfold::checkpoint {

namespace {

constexpr const char* kData = ".h5";
constexpr const char* kCommit = ".commit";
constexpr const char* kRejected = ".rejected";
constexpr const char* kTemporary = ".tmp";

std::string base_name(const std::string& folder, std::int64_t step) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "/step_%08lld", static_cast<long long>(step));
  return folder + name.data();
}

}  // namespace

StepFiles::StepFiles(const std::string& folder, std::int64_t step)
    : data(base_name(folder, step) + kData),
      commit(base_name(folder, step) + kCommit),
      rejected(base_name(folder, step) + kRejected),
      temporary(data + kTemporary) {}

std::optional<std::int64_t> step_named(const std::string& name, const std::string& ending) {
  constexpr std::string_view start = "step_";
  if (name.size() < start.size() + ending.size() || !name.starts_with(start) || !name.ends_with(ending))
    return std::nullopt;
  std::int64_t step = 0;
  const char* end = name.data() + name.size() - ending.size();
  const auto [stop, error] = std::from_chars(name.data() + start.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? std::optional(step) : std::nullopt;
}

std::vector<std::int64_t> steps_with(const std::string& folder, const std::string& ending) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : file_names(folder))
    if (const auto step = step_named(name, ending)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

CommitRecord verified_record(const std::string& folder, std::int64_t step) {
  const StepFiles files(folder, step);
  const CommitRecord record = CommitRecord::from_text(read_file(files.commit));
  if (record.step != step) fail_one(ExitCode::storage, "its commit record is of step " + std::to_string(record.step));
  const auto size = file_size(files.data);
  if (!size) fail_one(ExitCode::storage, "the file is missing");
  if (*size != record.bytes)
    fail_one(ExitCode::storage, "the file has " + std::to_string(*size) + " bytes, its commit record says " +
                                    std::to_string(record.bytes));
  if (checksum_outside(files.data, record) != record.outside)
    fail_one(ExitCode::storage, "the checksum of the bytes outside the datasets differs");
  return record;
}

std::vector<std::string> remove_leftovers(const std::string& folder) {
  std::vector<std::string> notes;
  const auto remove = [&](const std::string& path, const char* what) {
    if (remove_file(path)) notes.push_back("removed " + path + ": " + what);
  };
  for (const std::string& name : file_names(folder)) {
    if (step_named(name, std::string(kData) + kTemporary) || step_named(name, std::string(kCommit) + kTemporary))
      remove(folder + "/" + name, "left by an interrupted save");
  }
  for (const std::int64_t step : steps_with(folder, kData)) {
    const StepFiles files(folder, step);
    if (!file_size(files.commit)) remove(files.data, "not committed, left by an interrupted save");
  }
  for (const std::int64_t step : steps_with(folder, kCommit)) {
    const StepFiles files(folder, step);
    if (!file_size(files.data)) remove(files.commit, "its file is missing");
  }
  return notes;
}

std::vector<std::string> rotate(const std::string& folder, std::int64_t saved, const SaveOptions& options) {
  std::vector<std::string> notes;
  if (options.keep <= 0) return notes;
  std::vector<std::int64_t> ours;
  for (const std::int64_t step : steps_with(folder, kCommit)) {
    const StepFiles files(folder, step);
    if (step > saved || file_size(files.rejected)) continue;
    try {
      if (CommitRecord::from_text(read_file(files.commit)).run == options.run) ours.push_back(step);
    } catch (const Error& error) {
      notes.push_back("left alone: " + files.commit + ": " + error.what());
    }
  }
  const auto stay = static_cast<std::size_t>(options.keep);
  if (ours.size() > stay)
    ours.resize(ours.size() - stay);
  else
    ours.clear();
  for (const std::int64_t step : ours) {
    if (step == options.resumed_from) continue;
    const StepFiles files(folder, step);
    try {
      uncommit(folder, step);
      remove_file(files.data);
      notes.push_back("removed " + files.data + ": keep is " + std::to_string(options.keep));
    } catch (const Error& error) {
      notes.emplace_back(error.what());
    }
  }
  return notes;
}

void uncommit(const std::string& folder, std::int64_t step) {
  const StepFiles files(folder, step);
  if (remove_file(files.commit)) sync_folder(folder);
  remove_file(files.rejected);
}

}  // namespace fourfold::checkpoint
