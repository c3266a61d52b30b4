#include "data/file_list.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.hpp"

namespace fourfold {

namespace {

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());  // by bytes: the same on every host, whatever its locale
  return paths;
}

// One name a file: links and dots resolved as far as the path exists.
std::string canonical(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, ignored);
  return resolved.empty() ? path : resolved.string();
}

}  // namespace

std::vector<std::string> expand_files(const std::vector<std::string>& entries, const std::string& key) {
  std::vector<std::string> files;
  std::set<std::string> seen;
  std::string faults;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string where = key + "[" + std::to_string(i) + "]: " + entries[i];
    std::vector<std::string> paths{entries[i]};
    std::error_code ignored;  // a file whose very name holds a bracket is taken as it stands
    if (entries[i].find_first_of("*?[") != std::string::npos && !std::filesystem::exists(entries[i], ignored)) {
      paths = matches(entries[i]);
      if (paths.empty()) faults += where + ": no file matches\n";
    }
    for (const std::string& path : paths) {
      if (seen.insert(canonical(path)).second) {
        files.push_back(path);
      } else {
        faults += where + ": " + path + " is named twice\n";
      }
    }
  }
  if (entries.empty()) faults = key + ": names no file\n";
  if (!faults.empty()) {
    faults.pop_back();
    fail_all(ExitCode::input, faults);
  }
  return files;
}

void require_disjoint(const std::vector<std::string>& train, const std::vector<std::string>& valid) {
  std::set<std::string> trained;
  for (const std::string& path : train) trained.insert(canonical(path));
  for (const std::string& path : valid) {
    if (trained.count(canonical(path)) != 0) {
      fail_all(ExitCode::input, "data.valid: " + path + " is also in data.train; held-out text must not be trained on");
    }
  }
}

}  // namespace fourfold
