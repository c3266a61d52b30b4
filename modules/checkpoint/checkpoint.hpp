// Checkpoints: FOLDER/step_00000100.h5 (datasets /params/NAME, /optimizer/{m,v,master}/NAME, in records
// /gradients/NAME, as whole logical tensors, /state with numbers and texts) and FOLDER/step_00000100.commit, which
// alone makes the step exist.
//
// All functions that take a communicator are collective over it: every rank calls them with the same names, types and
// shapes in the same order, and with an empty shard where it holds nothing. Equal states give equal files, byte for
// byte, on any grid, however they were saved. What goes wrong before parallel HDF5 has the file, in the threads of an
// asynchronous save or after HDF5 has closed the file is agreed (Error of all ranks, storage; the temporary file
// removed, older steps untouched); in between it is an Error of one rank, since HDF5 leaves the others waiting: where a
// file system promises space, that is reserved first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "grid/partition.hpp"
#include "h5/element.hpp"
#include "h5/file.hpp"

namespace fourfold::checkpoint {

using h5::ElementType;

// What this rank holds of one tensor. Of the shard's local elements those in `owned` are written, and vouched for in
// checksums, by this rank: over all ranks each element of the tensor is owned exactly once (replicas share the work:
// part(shard.size(), replicas, replica)).
struct NamedShard {
  std::string name;  // "/params/blocks.0.attention.q.weight"
  ElementType type = ElementType::fp32;
  Shard shard;
  void* data = nullptr;  // shard.size() elements in host memory
  Range owned;
  // In place of data, where they lie elsewhere: copies the local elements in the range to or from host memory.
  std::function<void(Range local, void* to)> fetch = {};
  std::function<void(Range local, const void* from)> store = {};
};

// Memory of the host, for as long as somebody holds it. An empty one: operator new.
using AllocateHost = std::function<std::shared_ptr<std::byte>(std::int64_t bytes)>;

// The small things, equal on all ranks: step, data cursor, schedule parameters, data fingerprint, code version, deck.
struct State {
  std::map<std::string, h5::Number> numbers;
  std::map<std::string, std::string> texts;

  // Errors (Error of all ranks, storage): no such entry, or of another kind.
  std::int64_t integer(const std::string& name) const;
  double real(const std::string& name) const;
  const std::string& text(const std::string& name) const;
  bool operator==(const State&) const = default;
};

struct SaveOptions {
  std::string run;                           // identity of the run: keeps the same through restarts; in the record only
  std::int64_t keep = 2;                     // newest committed steps of this run that stay; 0: all
  std::optional<std::int64_t> resumed_from;  // this step is never removed
  std::int64_t transfer_bytes = 1 << 26;  // of one rank's largest transfer, and of the buffer it goes through: < 2^31
  bool strict_collective = false;         // a transfer that HDF5 did not make collectively is an error
  bool check_space = true;                // refuse at once what the free space does not hold, and reserve it
  AllocateHost allocate = {};             // where the buffer comes from, or an asynchronous save's copy
  h5::FileOptions file = {};
};

struct SaveReport {
  std::string path;
  std::int64_t bytes = 0;          // size of the file
  double write_seconds = 0;        // create to close; of an asynchronous save to the last byte that a thread wrote
  double fsync_seconds = 0;        // of the rank that took longest
  double seconds = 0;              // all of it
  double blocked_seconds = 0;      // of these, in the save's calls: training waited
  std::vector<std::string> notes;  // what was removed, transfers that were not collective (rank 0)
  double gigabytes_per_second() const { return static_cast<double>(bytes) / 1e9 / write_seconds; }
};

// Upper bound of the file's size, close above it.
std::int64_t predicted_bytes(const std::vector<NamedShard>& shards, const State& state,
                             const h5::FileOptions& options = {});
// What an ordinary user may still write where `folder` is or will be. Errors: Error (storage, one rank).
std::int64_t free_bytes(const std::string& folder);

// Writes and commits step `step`, then removes what `keep` no longer covers. The numbers "step" and "format" are added
// to the state. An older checkpoint of the same step is replaced. Peak extra memory: options.transfer_bytes, MPI-IO's
// own buffers, and 24 bytes per 2^20 elements. An asynchronous save: async.hpp.
SaveReport save(const Communicator& world, const std::string& folder, std::int64_t step,
                const std::vector<NamedShard>& shards, const State& state, const SaveOptions& options);

struct Committed {
  std::int64_t step = 0;
  std::string path;  // of the .h5
  std::string run;
};
struct Rejected {
  std::string path;
  std::string why;
  bool committed = false;  // it existed once; otherwise an interrupted save left it
};
struct Found {
  std::optional<Committed> newest;
  std::vector<Rejected> rejected;  // newer than `newest`, newest first; uncommitted ones too
};

// The newest committed step whose record and file agree (record sealed, size, bytes outside the datasets); the
// datasets' checksums are looked at by load. Steps in `exclude` and those remembered as damaged are passed over. Rank 0
// decides. Errors (all ranks, storage): the folder cannot be read.
Found find_newest(const Communicator& world, const std::string& folder, const std::vector<std::int64_t>& exclude = {});

struct LoadOptions {              // as SaveOptions
  std::vector<std::string> skip;  // sections that are not asked for: {"/optimizer"}
  // Tensors, "a.weight" in all sections or "/params/a.weight", that the file may lack (their shards stay as they are)
  // or have beyond the shards; the report's notes list those that it was so with.
  std::vector<std::string> allow_missing = {};
  std::int64_t transfer_bytes = 1 << 26;
  bool strict_collective = false;
  AllocateHost allocate = {};
  h5::FileOptions file = {};
};

struct LoadReport {
  Committed source;
  State state;
  std::int64_t bytes = 0;  // of the datasets that were read
  double seconds = 0;
  std::vector<std::string> notes;
};

// Fills `shards`. Errors (all ranks): input when the file's and the wanted names (outside `skip`), shapes or types
// differ, all listed; storage when the checkpoint is damaged (the shards are then undefined) or cannot be read.
LoadReport load(const Communicator& world, const Committed& source, const std::vector<NamedShard>& shards,
                const LoadOptions& options = {});

struct Restart {
  std::optional<LoadReport> loaded;  // empty: there is no committed step
  std::vector<Rejected> rejected;
};

// Loads the newest committed and intact step. A damaged one is remembered (FOLDER/step_N.rejected holds the reason;
// remove it to have the step tried again) and the one before is taken. Errors (all ranks, storage): committed steps
// exist but none is usable.
Restart load_newest(const Communicator& world, const std::string& folder, const std::vector<NamedShard>& shards,
                    const LoadOptions& options = {});

}  // namespace fourfold::checkpoint
