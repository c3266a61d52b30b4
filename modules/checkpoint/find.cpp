#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/posix.hpp"
#include "checkpoint/stage.hpp"
#include "comm/agree.hpp"

namespace fourfold::checkpoint {

namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// Rank 0's search.
Found search(const std::string& folder, const std::vector<std::int64_t>& exclude) {
  std::vector<std::int64_t> steps = steps_with(folder, ".commit");
  for (const char* ending : {".h5", ".h5.tmp"})
    for (const std::int64_t step : steps_with(folder, ending)) steps.push_back(step);
  std::sort(steps.rbegin(), steps.rend());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  Found found;
  for (const std::int64_t step : steps) {
    const StepFiles files(folder, step);
    if (std::find(exclude.begin(), exclude.end(), step) != exclude.end()) continue;
    if (!file_size(files.commit)) {
      const std::string path = file_size(files.data) ? files.data : files.temporary;
      found.rejected.push_back({path, "not committed: its save was interrupted", false});
      continue;
    }
    try {
      if (file_size(files.rejected))
        fail_one(ExitCode::storage, "found damaged before (remove " + files.rejected +
                                        " to have it tried again): " + first_line(read_file(files.rejected)));
      found.newest = Committed{step, files.data, verified_record(folder, step).run};
      return found;
    } catch (const Error& error) {
      found.rejected.push_back({files.data, error.what(), true});
    }
  }
  return found;
}

}  // namespace

Found find_newest(const Communicator& world, const std::string& folder, const std::vector<std::int64_t>& exclude) {
  Found found;
  nlohmann::json answer;
  run_stage(world, "no checkpoint found", [&] {
    if (world.rank() != 0) return;
    found = search(folder, exclude);
    answer["rejected"] = nlohmann::json::array();
    for (const Rejected& one : found.rejected) answer["rejected"].push_back({one.path, one.why, one.committed});
    if (found.newest) answer["newest"] = {found.newest->step, found.newest->path, found.newest->run};
  });
  // A damaged record is quoted as it is.
  const auto quoted = [](const nlohmann::json& any) {
    return any.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  answer = nlohmann::json::parse(broadcast_string(world, world.rank() == 0 ? quoted(answer) : ""));
  found = {};
  for (const auto& one : answer["rejected"])
    found.rejected.push_back({one[0].get<std::string>(), one[1].get<std::string>(), one[2].get<bool>()});
  if (const auto newest = answer.find("newest"); newest != answer.end())
    found.newest =
        Committed{(*newest)[0].get<std::int64_t>(), (*newest)[1].get<std::string>(), (*newest)[2].get<std::string>()};
  return found;
}

}  // namespace fourfold::checkpoint
