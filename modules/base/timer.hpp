// Wall-clock time from the steady clock.
#pragma once

#include <cstdint>

namespace fourfold {

std::int64_t now_ns();  // since an arbitrary start, the same for all of this process

class Stopwatch {
 public:
  Stopwatch() : start_ns_(now_ns()) {}
  void restart() { start_ns_ = now_ns(); }
  double seconds() const { return static_cast<double>(now_ns() - start_ns_) * 1e-9; }

 private:
  std::int64_t start_ns_;
};

}  // namespace fourfold
