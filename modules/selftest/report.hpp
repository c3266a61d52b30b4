// The table of a self-test: a line for each thing that was looked at, said as soon as it is known.
#pragma once

#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace fourfold::selftest {

// none: there is nothing of the kind here. skipped: what it needs has failed. note: it works, with a remark.
enum class Verdict { ok, none, skipped, note, failed };

struct Finding {
  std::string item;  // "parallel HDF5"
  Verdict verdict = Verdict::ok;
  std::string seen;                 // what was seen, figures with their units
  std::string fix = {};             // failed: what to type
  ExitCode code = ExitCode::error;  // failed: what the program leaves with
};

class Report {
 public:
  // `speaks`: on rank 0. The others' findings are not looked at.
  explicit Report(bool speaks) : speaks_(speaks) {}
  void add(const Finding& finding);
  // The last line, after `seconds`.
  void end(double seconds) const;
  // That of the first line that failed; done where none did.
  ExitCode code() const { return code_; }

 private:
  bool speaks_;
  int looked_at_ = 0;
  std::vector<std::string> failed_;
  ExitCode code_ = ExitCode::done;
};

// What ranks have to say, on all ranks the same: "rank 2 on nid001: cannot write ... (and 3 more ranks)"; empty where
// none has. Collective.
std::string gathered(const Communicator& world, const std::string& host, const std::string& problem);

}  // namespace fourfold::selftest
