// Wall-clock time from the steady clock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

// Named phases of a step, in the order of their first use. At any moment at most one phase is charged, the innermost
// open one, so the phases never overlap: sum() + unaccounted() = wall(), and unaccounted() is what nobody named.
class PhaseTimes {
 public:
  struct Phase {
    std::string name;
    std::int64_t ns = 0;
  };
  // Charges `name` while it lives (and is innermost).
  class Scope {
   public:
    Scope(PhaseTimes& times, std::string_view name) : times_(times), outer_(times.enter(name)) {}
    ~Scope() { times_.leave(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseTimes& times_;
    int outer_;
  };

  PhaseTimes() { reset(); }
  // Zero everywhere, wall clock from now; phases keep their names and order. Only while no scope is open.
  void reset();

  double seconds(std::string_view name) const;  // 0 for a name that was never used
  double sum() const;
  double wall() const;  // since reset()
  double unaccounted() const { return wall() - sum(); }
  const std::vector<Phase>& phases() const { return phases_; }

 private:
  int enter(std::string_view name);  // returns the phase that was charged until now (-1: none)
  void leave(int outer);
  void charge(std::int64_t until_ns);

  std::vector<Phase> phases_;
  int open_ = -1;
  std::int64_t start_ns_ = 0, charged_until_ns_ = 0;
};

}  // namespace fourfold
