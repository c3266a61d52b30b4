// A communicator has one owner: this move-only class makes one in its constructor and frees it in its destructor.
// Everyone else takes `const Communicator&`. MPI itself shows only in comm/mpi_handle.hpp (for HDF5).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fourfold {

class CommLedger;
class DeviceGroup;
class SharedGroup;
class Trace;
class VirtualClock;
struct CommState;  // comm/comm_state.hpp
struct MpiHandle;  // comm/mpi_handle.hpp

class Communicator {
 public:
  // Collective over `parent`'s members that are in `ranks` (ranks of parent, in the order wanted; this rank included).
  // `name` shows in ledgers, traces and hang reports: "data", "row", "world". One rank alone makes no MPI communicator.
  // Errors: assertion when this rank is not in `ranks`.
  Communicator(const Communicator& parent, const std::vector<int>& ranks, std::string name);
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  CommLedger& ledger() const;
  VirtualClock& clock() const;
  // Where every operation of this launch leaves its event: the exposed time on the group's track, and its flight from
  // the start to the end. It outlives them or is taken away; nullptr: a trace that is off.
  Trace& trace() const;
  void set_trace(Trace* trace) const;
  const MpiHandle& handle() const { return *handle_; }
  int node_of(int rank) const { return nodes_[static_cast<std::size_t>(rank)]; }  // nodes are numbered over the world
  bool between_nodes() const { return between_nodes_; }                           // members on more than one node
  int world_rank_of(int rank) const { return world_ranks_[static_cast<std::size_t>(rank)]; }

 private:
  friend class Launch;
  friend class GridComms;
  friend class Call;         // comm/call.hpp
  friend class SharedGroup;  // comm/shared_group.hpp
  // `nodes[r]`, `world_ranks[r]`: of member r.
  Communicator(std::shared_ptr<const MpiHandle> handle, std::string name, std::vector<int> nodes,
               std::vector<int> world_ranks, CommState* state);
  void set_nodes(std::vector<int> nodes);
  void make_device_group();
  void make_shared_group();
  // The same members under another name, on the same MPI communicator.
  Communicator alias(std::string name) const;

  std::shared_ptr<const MpiHandle> handle_;  // shared with aliases only
  std::shared_ptr<DeviceGroup> device_;      // likewise; where the launch has a device and it has groups
  std::shared_ptr<SharedGroup> shared_;      // likewise; where its ranks read each other's memory
  int rank_ = 0;
  int size_ = 1;
  std::string name_;
  std::vector<int> nodes_, world_ranks_;
  std::uint64_t id_ = 0;  // the same on all members, of this name and these members alone
  bool between_nodes_ = false;
  CommState* state_ = nullptr;
};

}  // namespace fourfold
