// The stages of a save, which synchronous (save.cpp) and asynchronous saves (async.cpp) put together:
//
//   prepare   remove leftovers; compare the size with free space; make FOLDER/step_N.h5.tmp and reserve its space
//   write     parallel HDF5: create, datasets, state, close (no H5Fflush: it would fsync on every rank); the data
//             through HDF5 before the close, or by a thread of each rank after it
//   sync      one rank of each node: fsync (any node may have written: MPI-IO chooses)
//   publish   read back the state and the datasets' places; un-commit an older checkpoint of the step; rename to
//             step_N.h5; step_N.commit (temporary name, fsync, rename); fsync of the folder: from here on the step
//             exists; then remove what `keep` no longer covers
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/record.hpp"

namespace fourfold::checkpoint {

// Collective all of it, but for what says otherwise; all ranks reach a stage's end before any begins the next. Errors:
// checkpoint.hpp.
class Saver {
 public:
  // Keeps references to `world` and the shards.
  Saver(const Communicator& world, const std::string& folder, std::int64_t step, const std::vector<NamedShard>& shards,
        const State& state, const SaveOptions& options);

  void prepare();
  // The file without (async) or with the data.
  void write_layout();
  void write_all();
  // The sums of what this rank staged become those of all ranks.
  void reduce_sums() { listing_.reduce_sums(world_); }
  // Alone: runs work that writes; its errors say how many bytes are needed and how many there are.
  void with_space(const std::function<void()>& work) const;
  // Alone: whether this rank is the one of its node that brings the file to the disk.
  bool syncs() const;
  void publish();
  // Alone: rank 0 removes the temporary file of a save that failed on all ranks.
  void remove_temporary() const;

  const Communicator& world() const { return world_; }
  Listing& listing() { return listing_; }
  const CommitRecord& record() const { return record_; }  // datasets as in listing().items(), with their places
  const std::string& temporary() const { return files_.temporary; }
  const std::string& title() const { return title_; }  // "checkpoint of step 100 not written to FOLDER"
  SaveReport& report() { return report_; }

 private:
  bool first() const { return world_.rank() == 0; }
  void note(const std::vector<std::string>& lines);
  void write(bool data);
  void reserve_again(h5::File& file);
  void lay_out(h5::File& file);
  void write_data();

  const Communicator& world_;
  const std::string folder_;
  const std::int64_t step_;
  State state_;
  const SaveOptions options_;
  const StepFiles files_;
  const std::string title_;
  Listing listing_;
  const std::int64_t needed_;
  CommitRecord record_;
  std::vector<h5::Dataset> datasets_;
  std::string not_collective_;
  SaveReport report_;
};

}  // namespace fourfold::checkpoint
