// The files that `data.train` and `data.valid` name: paths and globs.
#pragma once

#include <string>
#include <vector>

namespace fourfold {

// Entries in their order; an entry with *, ? or [ stands for its matches in byte order of their names.
// Errors (Error, input; all in one message, each with `key`): a pattern without a match, a file named twice.
std::vector<std::string> expand_files(const std::vector<std::string>& entries, const std::string& key);

// Errors (Error, input): a file in both lists, whatever the spelling of its path (held-out text must not be trained
// on).
void require_disjoint(const std::vector<std::string>& train, const std::vector<std::string>& valid);

}  // namespace fourfold
