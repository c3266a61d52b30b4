// What the ranks of a run told each other, axis by axis: the ledgers of all ranks together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "machine/machine.hpp"

namespace fourfold {

// One group of axes ("data", "row", "data+depth", "world"). Counts are sums over the ranks of the job; exposed is the
// time inside calls and waits, of a rank: the mean and the largest.
struct AxisTraffic {
  std::string axis;
  std::int64_t operations = 0, messages = 0;
  std::int64_t bytes_inside = 0, bytes_between = 0;  // sent on rings inside nodes, and in groups of several nodes
  double exposed_mean = 0, exposed_largest = 0;      // seconds
  double virtual_mean = 0, virtual_largest = 0;      // seconds of the virtual clock
};

struct TrafficReport {
  std::vector<AxisTraffic> axes;        // by name; those that moved something
  std::optional<Picoseconds> makespan;  // of the training steps, where a machine is emulated: the latest rank's clock
};

// Collective; the report is rank 0's, others get the makespan alone.
TrafficReport traffic_report(const Communicator& world);

// A table for people, a line an axis.
std::string traffic_table(const TrafficReport& report);

}  // namespace fourfold
