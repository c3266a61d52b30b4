// A communicator has one owner: this move-only class duplicates or splits in its constructor and frees in its destructor.
// Everyone else takes `const Communicator&`. MPI itself shows only in comm/mpi_handle.hpp (for HDF5).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grid/axes.hpp"

namespace fourfold {

class CommLedger;
struct MpiHandle;  // comm/mpi_handle.hpp

class Communicator {
 public:
  // Collective over `parent`'s members that are in `ranks` (ranks of parent, in the order wanted; this rank included).
  // `name` shows in ledgers, traces and hang reports: "data", "row", "world".
  Communicator(const Communicator& parent, const std::vector<int>& ranks, std::string name);
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }
  CommLedger& ledger() const { return *ledger_; }
  const MpiHandle& handle() const { return *handle_; }

 private:
  friend class Launch;
  Communicator(std::unique_ptr<MpiHandle> handle, std::string name, CommLedger* ledger);
  std::unique_ptr<MpiHandle> handle_;
  int rank_ = 0;
  int size_ = 1;
  std::string name_;
  CommLedger* ledger_ = nullptr;
};

}  // namespace fourfold
