// Whether to stop early: a signal on any rank or the file <folder>/STOP, agreed by all ranks: they
// leave after the same step, with one checkpoint.
#pragma once

#include <string>

#include "comm/communicator.hpp"

namespace fourfold {

class StopRequest {
 public:
  StopRequest(const Communicator& world, std::string folder);

  // Collective: true on all ranks once any rank has a reason, and for ever after.
  bool agreed();
  // "SIGUSR1", "the file runs/a/STOP"; empty before agreed() was true.
  const std::string& reason() const { return reason_; }
  // Collective: removes the stop file once it has been obeyed, so that the next run goes on.
  void clear_file() const;

 private:
  std::string file() const { return folder_ + "/STOP"; }

  const Communicator& world_;
  std::string folder_;
  std::string reason_;
};

}  // namespace fourfold
