// The virtual clock (emulate.machine in a deck): the real program moves real data, while each rank carries the
// picoseconds that the described machine would have spent. Kernels and operations advance it by modelled costs only,
// so it is the same in every run, whatever the host does.
//
//   - A kernel takes kernel_time of its FLOPs and bytes.
//   - Each rank has two channels, inside its node and between nodes; a group with members on several nodes uses the
//     latter. Operations hold their channel in the order in which they were posted.
//   - A message of n bytes holds its sender's channel for n beta and arrives alpha later; the receiver waits until
//   then.
//   - A collective starts when every member has posted it and every member's channel is free, holds all their channels
//     for collective_time, and then ends. Waiting for an operation advances the clock to its end.
//
// Counted are the phases forward, backward, gradient, update and evaluate; what surrounds the work (setup, checkpoint,
// control) is free, as is everything while a Pause lives.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/phase.hpp"
#include "machine/machine.hpp"

namespace fourfold {

template <class T>
inline constexpr NumberType kNumberType = sizeof(T) == sizeof(double)  ? NumberType::fp64
                                          : sizeof(T) == sizeof(float) ? NumberType::fp32
                                                                       : NumberType::bf16;

class VirtualClock {
 public:
  // From zero, on this machine. Without it nothing is counted and nothing costs anything.
  void start(const Machine& machine);
  bool emulates() const { return machine_.has_value(); }
  const Machine& machine() const { return *machine_; }
  bool counts(Phase phase) const;

  // A kernel's work, on operands of this type: FLOPs, and bytes read and written.
  void compute(NumberType type, std::int64_t flops, std::int64_t bytes) {
    if (pauses_ > 0) return;
    flops_ += flops;
    bytes_ += bytes;
    if (machine_ && kernels_cost_) now_ = saturating_add(now_, kernel_time(*machine_, type, flops, bytes));
  }
  // Kernels cost nothing from now on; what they take is spent as a whole (emulate.stage_times).
  void use_given_times() { kernels_cost_ = false; }
  void spend(Picoseconds time) {
    if (machine_ && pauses_ == 0) now_ = saturating_add(now_, time);
  }
  Picoseconds now() const { return now_; }
  // All work of this rank so far, with a machine or without.
  std::int64_t flops() const { return flops_; }
  std::int64_t bytes() const { return bytes_; }
  // Waits until `end`; returns for how long.
  Picoseconds advance_to(Picoseconds end);

  // Work that is none of the machine's: evaluations, measurements. All ranks pause at the same places.
  class Pause {
   public:
    explicit Pause(VirtualClock& clock) : clock_(clock) { ++clock_.pauses_; }
    ~Pause() { --clock_.pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    VirtualClock& clock_;
  };

 private:
  std::optional<Machine> machine_;
  Picoseconds now_ = 0;
  std::int64_t flops_ = 0, bytes_ = 0;
  int pauses_ = 0;
  bool kernels_cost_ = true;
};

}  // namespace fourfold
