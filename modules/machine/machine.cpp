#include "machine/machine.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace fourfold {

std::int64_t Machine::flops(NumberType type) const {
  switch (type) {
    case NumberType::fp64:
      return fp64;
    case NumberType::fp32:
      return fp32;
    case NumberType::bf16:
      break;
  }
  return bf16;
}

Machine free_machine(std::int64_t ranks) {
  Machine machine;
  machine.name = "free links";
  machine.ranks_per_node = ranks;
  machine.inside = machine.between = {0, kUnlimited};
  return machine;
}

Picoseconds time_at_rate(std::int64_t amount, std::int64_t rate) {
  FOURFOLD_ASSERT(amount >= 0 && rate > 0, "work is not negative, rates are positive");
  // 10^12 ps in a second: the product needs more than 64 bits from 9.2 MB on.
  __extension__ using Wide = unsigned __int128;
  const Wide exact =
      (static_cast<Wide>(amount) * 1'000'000'000'000u + static_cast<Wide>(rate) - 1) / static_cast<Wide>(rate);
  constexpr Picoseconds most = std::numeric_limits<Picoseconds>::max();
  return exact > static_cast<Wide>(most) ? most : static_cast<Picoseconds>(exact);
}

Picoseconds saturating_add(Picoseconds a, Picoseconds b) {
  Picoseconds sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<Picoseconds>::max() : sum;
}

Picoseconds transfer_time(const Link& link, std::int64_t bytes) {
  return link.bandwidth == kUnlimited ? 0 : time_at_rate(bytes, link.bandwidth);
}

Picoseconds kernel_time(const Machine& machine, NumberType type, std::int64_t flops, std::int64_t bytes) {
  return std::max(time_at_rate(flops, machine.flops(type)), time_at_rate(bytes, machine.memory_bandwidth));
}

Picoseconds collective_time(const Link& link, std::int64_t ring_bytes, std::int64_t steps) {
  // Latencies are up to a second, so that their sum fits; what does not fit together stays at the largest number.
  return saturating_add(transfer_time(link, ring_bytes), steps * link.latency);
}

}  // namespace fourfold
