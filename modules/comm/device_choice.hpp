// Which of a node's GPUs a rank uses: one each, by its place among the node's ranks. Arithmetic and agreement; what
// there is comes from the caller.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace fourfold {

struct DeviceChoice {
  int device = -1;      // of those that this process sees
  std::string refusal;  // why there is none
};

// For the rank at `place` (from 0) of a node's `ranks`, which sees `visible` devices. One that is seen alone may have
// been given to this rank by the launcher, or be the only one there is: device ids tell.
DeviceChoice choose_device(int place, int ranks, int visible, bool share);

// The first two ranks that have one device, by the ids of all ranks' devices ("node 0, 0000:3b:00.0"): why that is
// refused; empty where each has its own.
std::string shared_device(const std::vector<std::string>& ids);

// What to ask of this process's GPUs.
struct DeviceQuery {
  std::function<int()> visible;        // how many it sees
  std::function<std::string(int)> id;  // the same device has the same id in every process of a node
  bool share = false;                  // several ranks on one are meant (FOURFOLD_SHARE_GPUS=1)
};

struct AgreedDevice {
  int device = 0;
  bool shared = false;  // some ranks of the job have one together
};

// Collective. Errors: Error of all ranks (launch) that says what to type.
AgreedDevice agree_on_device(const Communicator& world, const DeviceQuery& query);

}  // namespace fourfold
