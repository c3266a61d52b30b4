#include "checkpoint/saver.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "checkpoint/posix.hpp"
#include "checkpoint/read_back.hpp"
#include "checkpoint/stage.hpp"
#include "checkpoint/staging.hpp"
#include "comm/collectives.hpp"
#include "h5/transfer.hpp"

namespace fourfold::checkpoint {

Saver::Saver(const Communicator& world, const std::string& folder, std::int64_t step,
             const std::vector<NamedShard>& shards, const State& state, const SaveOptions& options)
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
  report_.path = files_.data;
}

void Saver::note(const std::vector<std::string>& lines) {
  report_.notes.insert(report_.notes.end(), lines.begin(), lines.end());
}

void Saver::prepare() {
  run_stage(world_, title_, [this] {
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
  });
  run_stage(world_, title_, [this] { check_access(files_.temporary, true); });
}

void Saver::with_space(const std::function<void()>& work) const {
  try {
    work();
  } catch (const Error& error) {
    if (error.caller() == Caller::all_ranks) throw;
    fail_one(ExitCode::storage, std::string(error.what()) + "; needed " + std::to_string(needed_) +
                                    " bytes, available " + std::to_string(free_bytes(folder_)));
  }
}

void Saver::lay_out(h5::File& file) {
  for (const Listing::Item& item : listing_.items()) {
    const NamedShard& shard = *item.shard;
    datasets_.push_back(file.create_dataset(shard.name, shard.type, shard.shard.shape));
    const h5::Dataset& dataset = datasets_.back();
    record_.datasets.push_back({shard.name, shard.type, shard.shard.shape, dataset.offset(), dataset.bytes(), {}});
  }
  for (const auto& [name, number] : state_.numbers) file.write_number("/state", name, number);
  for (const auto& [name, text] : state_.texts) file.write_text("/state/" + name, text);
}

void Saver::write_data() {
  const std::shared_ptr<std::byte> buffer = take_host_memory(options_.allocate, options_.transfer_bytes);
  for (std::size_t i = 0; i < datasets_.size(); ++i) {
    const Listing::Item& item = listing_.items()[i];
    const NamedShard& shard = *item.shard;
    for (std::int64_t round = 0; round < item.rounds.count; ++round) {
      const Range now = round_of(shard.owned, round, options_.transfer_bytes, shard.type);
      stage_out(listing_, item, now, buffer.get());
      const std::string cause =
          h5::write_shard(datasets_[i], shard.shard, now, buffer.get(), {1, options_.transfer_bytes});
      if (!cause.empty() && not_collective_.empty())
        not_collective_ = shard.name + " was not written collectively: " + cause;
    }
  }
}

// Creating the file gave the reserved space back. Nothing has been written yet, so that all ranks can still close it.
void Saver::reserve_again(h5::File& file) {
  try {
    run_stage(world_, title_, [this] {
      if (first() && options_.check_space) reserve(files_.temporary, needed_);
    });
  } catch (const Error&) {
    file.close();
    throw;
  }
}

void Saver::write(bool data) {
  const Stopwatch writing;
  // A write that fails in here is of one rank: HDF5 leaves the others waiting inside it.
  try {
    with_space([&] {
      h5::File file = h5::File::create(world_, files_.temporary, options_.file);
      reserve_again(file);
      lay_out(file);
      if (data) write_data();
      datasets_.clear();
      file.close(title_);
    });
  } catch (const Error& error) {
    if (error.caller() == Caller::all_ranks) throw;
    fail_one(ExitCode::storage, title_ + ": " + error.what());
  }
  report_.write_seconds = writing.seconds();
  if (not_collective_.empty()) return;
  if (options_.strict_collective) fail_all(ExitCode::storage, title_ + ": " + not_collective_);
  note({not_collective_});
}

void Saver::write_layout() {
  write(false);
}

void Saver::write_all() {
  write(true);
}

bool Saver::syncs() const {
  for (int rank = 0; rank < world_.rank(); ++rank)
    if (world_.node_of(rank) == world_.node_of(world_.rank())) return false;
  return true;
}

void Saver::publish() {
  run_stage(world_, title_, [this] {
    if (!first()) return;
    record_.run = options_.run;
    record_.step = step_;
    record_.file = std::filesystem::path(files_.data).filename().string();
    record_.bytes = file_size(files_.temporary).value_or(0);
    for (std::size_t i = 0; i < record_.datasets.size(); ++i)
      record_.datasets[i].checksums = listing_.sums(listing_.items()[i]);
    check_read_back(files_.temporary, state_, record_);
    record_.outside = checksum_outside(files_.temporary, record_);
    report_.bytes = record_.bytes;
    uncommit(folder_, step_);
    rename_file(files_.temporary, files_.data);
    write_durably(files_.commit, record_.to_text());
    sync_folder(folder_);
  });
  broadcast<std::int64_t>(world_, {&report_.bytes, 1}, 0, Phase::checkpoint);
  // The step exists now: what fails from here on is said, and no error.
  if (first()) note(rotate(folder_, step_, options_));
}

void Saver::remove_temporary() const {
  std::error_code ignored;
  if (first()) std::filesystem::remove(files_.temporary, ignored);
}

}  // namespace fourfold::checkpoint
