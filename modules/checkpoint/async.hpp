// Asynchronous saves: the thread that trains lays the file out and copies this rank's part of the model; a thread of
// each rank writes the copy to its places while training goes on. MPI and HDF5 are called by the training thread only.
// The files are those of synchronous saves, byte for byte. For file systems on which a process sees at once what
// another wrote (local ones, Lustre, GPFS; not NFS).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace fourfold::checkpoint {

class Background;

// The bytes of the copy: what this rank owns of all shards.
std::int64_t copy_bytes(const std::vector<NamedShard>& shards);

class AsyncSave {
 public:
  // Collective. Lays the file out and copies what this rank owns (copy_bytes() of options.allocate, given back once all
  // ranks have written): on return the shards may change. Keeps a reference to `world`. Errors: as save().
  AsyncSave(const Communicator& world, const std::string& folder, std::int64_t step,
            const std::vector<NamedShard>& shards, const State& state, const SaveOptions& options);
  // Not collective: a save that is not complete stays uncommitted, and its temporary file where it is.
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // Collective, between two steps; waits for no thread. All ranks agree on how far they are; true once the step is
  // committed. Errors (all ranks, storage): some rank could not write; then nothing of the step is left. After true or
  // an error the object has done its work.
  bool advance();
  // Collective: waits until the step is committed. Errors: the same.
  void complete();

  // Of the committed step.
  const SaveReport& report() const;

 private:
  struct Work;
  bool go_on(bool wait);
  bool next_stage();

  std::shared_ptr<Work> work_;  // shared with the threads
  std::unique_ptr<Background> thread_;
  bool written_ = false;  // on all ranks
  std::int64_t began_ns_;
};

}  // namespace fourfold::checkpoint
