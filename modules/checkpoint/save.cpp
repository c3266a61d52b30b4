// The order of a save (each step on all ranks before the next):
//
//   prepare   remove leftovers; compare the size with free space; make FOLDER/step_N.h5.tmp and reserve its space
//   write     parallel HDF5: create, datasets, state, data, close (no H5Fflush: it would fsync on every rank)
//   sync      one rank of each node: fsync (any node may have written: MPI-IO chooses)
//   publish   un-commit an older checkpoint of the step; rename to step_N.h5; step_N.commit (temporary name, fsync,
//             rename); fsync of the folder: from here on the step exists
//   rotate    remove what `keep` no longer covers
#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/posix.hpp"
#include "checkpoint/stage.hpp"
#include "comm/collectives.hpp"
#include "h5/transfer.hpp"

namespace fourfold::checkpoint {

namespace {

// What the bytes outside the datasets take: per object, and for the file. Measured with HDF5 1.10 and rounded up.
constexpr std::int64_t kObjectBytes = 1024;
constexpr std::int64_t kFileBytes = 16384;

std::int64_t data_bytes(const NamedShard& shard) {
  return shard.shard.global_size() * h5::element_bytes(shard.type);
}

class Saver {
 public:
  Saver(const Communicator& world, const std::string& folder, std::int64_t step, const std::vector<NamedShard>& shards,
        const State& state, const SaveOptions& options)
      : world_(world),
        folder_(folder),
        step_(step),
        state_(state),
        options_(options),
        files_(folder, step),
        title_("checkpoint of step " + std::to_string(step) + " not written to " + folder),
        listing_(world, shards, options.transfer_bytes, false),
        needed_(predicted_bytes(shards, state, options.file)) {
    state_.numbers["step"] = step;
    state_.numbers["format"] = kFormat;
  }

  SaveReport run() {
    const Stopwatch all;
    try {
      stages();
    } catch (const Error& error) {
      // An Error of all ranks comes before HDF5 has the file or after it has closed it.
      if (error.caller() == Caller::all_ranks && first()) remove_quietly(files_.temporary);
      throw;
    }
    report_.path = files_.data;
    report_.seconds = all.seconds();
    return report_;
  }

 private:
  bool first() const { return world_.rank() == 0; }

  static void remove_quietly(const std::string& path) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }

  void note(const std::vector<std::string>& lines) {
    report_.notes.insert(report_.notes.end(), lines.begin(), lines.end());
  }

  void stages() {
    run_stage(world_, title_, [this] { prepare(); });
    run_stage(world_, title_, [this] { check_access(files_.temporary, true); });
    const Stopwatch writing;
    try {
      write();
    } catch (const Error& error) {
      fail_one(ExitCode::storage, title_ + ": " + error.what() + "; needed " + std::to_string(needed_) +
                                      " bytes, available " + std::to_string(free_bytes(folder_)));
    }
    report_.write_seconds = writing.seconds();
    listing_.reduce_sums(world_);
    if (!not_collective_.empty()) {
      if (options_.strict_collective) fail_all(ExitCode::storage, title_ + ": " + not_collective_);
      note({not_collective_});
    }
    const Stopwatch syncing;
    run_stage(world_, title_, [this] {
      if (first_of_node()) sync_file(files_.temporary);
    });
    report_.fsync_seconds = syncing.seconds();
    run_stage(world_, title_, [this] {
      if (first()) publish();
    });
    broadcast<std::int64_t>(world_, {&report_.bytes, 1}, 0, Phase::checkpoint);
    // The step exists now: what fails from here on is said, and no error.
    if (first()) note(rotate(folder_, step_, options_));
  }

  void prepare() {
    check_size_limit(needed_);
    if (!first()) return;
    make_folder(folder_);
    note(remove_leftovers(folder_));
    if (options_.check_space) {
      const std::int64_t available = free_bytes(folder_);
      if (available < needed_)
        fail_one(ExitCode::storage, "no space in " + folder_ + ": needed " + std::to_string(needed_) +
                                        " bytes, available " + std::to_string(available));
    }
    create_file(files_.temporary);
    if (options_.check_space) reserve(files_.temporary, needed_);
  }

  // Between create and close a failure is of one rank: HDF5 leaves the others waiting inside it.
  void write() {
    h5::File file = h5::File::create(world_, files_.temporary, options_.file);
    std::vector<h5::Dataset> datasets;
    std::int64_t end = 0;
    for (const Listing::Item& item : listing_.items()) {
      const NamedShard& shard = *item.shard;
      datasets.push_back(file.create_dataset(shard.name, shard.type, shard.shard.shape));
      record_.datasets.push_back(
          {shard.name, shard.type, shard.shard.shape, datasets.back().offset(), datasets.back().bytes(), {}});
      end = std::max(end, datasets.back().offset() + datasets.back().bytes());
    }
    for (const auto& [name, number] : state_.numbers) file.write_number("/state", name, number);
    for (const auto& [name, text] : state_.texts) file.write_text("/state/" + name, text);
    // Creating the file gave the reserved space back. Reserved files are also written several times as fast.
    if (first() && end > 0) reserve(files_.temporary, end);
    for (std::size_t i = 0; i < datasets.size(); ++i) {
      const Listing::Item& item = listing_.items()[i];
      listing_.add_to_sums(item);
      const std::string cause =
          h5::write_shard(datasets[i], item.shard->shard, item.shard->owned, item.shard->data, item.rounds);
      if (!cause.empty() && not_collective_.empty())
        not_collective_ = item.shard->name + " was not written collectively: " + cause;
    }
    datasets.clear();
    file.close();
  }

  bool first_of_node() const {
    for (int rank = 0; rank < world_.rank(); ++rank)
      if (world_.node_of(rank) == world_.node_of(world_.rank())) return false;
    return true;
  }

  void publish() {
    record_.run = options_.run;
    record_.step = step_;
    record_.file = std::filesystem::path(files_.data).filename().string();
    record_.bytes = file_size(files_.temporary).value_or(0);
    for (std::size_t i = 0; i < record_.datasets.size(); ++i)
      record_.datasets[i].checksums = listing_.sums(listing_.items()[i]);
    record_.outside = checksum_outside(files_.temporary, record_);
    report_.bytes = record_.bytes;
    uncommit(folder_, step_);
    rename_file(files_.temporary, files_.data);
    write_durably(files_.commit, record_.to_text());
    sync_folder(folder_);
  }

  const Communicator& world_;
  const std::string folder_;
  const std::int64_t step_;
  State state_;
  const SaveOptions& options_;
  const StepFiles files_;
  const std::string title_;
  Listing listing_;
  const std::int64_t needed_;
  CommitRecord record_;
  std::string not_collective_;
  SaveReport report_;
};

}  // namespace

std::int64_t predicted_bytes(const std::vector<NamedShard>& shards, const State& state,
                             const h5::FileOptions& options) {
  std::int64_t bytes = kFileBytes;
  for (const NamedShard& shard : shards) {
    const std::int64_t data = data_bytes(shard);
    bytes += data + kObjectBytes + (data >= 16 * options.alignment ? options.alignment : 0);
  }
  for (const auto& [name, text] : state.texts) bytes += static_cast<std::int64_t>(text.size()) + kObjectBytes;
  return bytes + static_cast<std::int64_t>(state.numbers.size()) * kObjectBytes;
}

SaveReport save(const Communicator& world, const std::string& folder, std::int64_t step,
                const std::vector<NamedShard>& shards, const State& state, const SaveOptions& options) {
  return Saver(world, folder, step, shards, state, options).run();
}

}  // namespace fourfold::checkpoint
