#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/listing.hpp"
#include "checkpoint/posix.hpp"
#include "checkpoint/read_back.hpp"
#include "checkpoint/stage.hpp"
#include "checkpoint/staging.hpp"
#include "comm/agree.hpp"
#include "h5/transfer.hpp"

namespace fourfold::checkpoint {

namespace {

std::string shape_text(ElementType type, const std::vector<std::int64_t>& shape) {
  std::string text = std::string(h5::element_name(type)) + " (";
  for (std::size_t dim = 0; dim < shape.size(); ++dim) text += (dim > 0 ? " x " : "") + std::to_string(shape[dim]);
  return text + ")";
}

// Names of tensors differ in a word or two: the one that shares the longest beginning and end, at least half of it.
std::string nearest(const std::string& name, const std::vector<std::string>& others) {
  std::string best;
  std::size_t most = name.size() / 2;
  for (const std::string& other : others) {
    const auto head = static_cast<std::size_t>(
        std::mismatch(name.begin(), name.end(), other.begin(), other.end()).first - name.begin());
    const auto tail = static_cast<std::size_t>(
        std::mismatch(name.rbegin(), name.rend(), other.rbegin(), other.rend()).first - name.rbegin());
    if (head + tail <= most) continue;
    most = head + tail;
    best = other;
  }
  return best;
}

std::string listed(const std::string& title, const std::vector<std::string>& names,
                   const std::vector<std::string>& others) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "\n  " + title + ":" : "") + std::string("\n    ") + name;
    if (const std::string near = nearest(name, others); !near.empty()) text += "   (nearest: " + near + ")";
  }
  return text;
}

using Datasets = std::map<std::string, const DatasetRecord*>;

// Where all weights are there, in their shapes, but of another type: said once, since everything else (moments,
// masters) follows from it. Else empty.
std::string other_precision(const Listing& listing, const Datasets& stored) {
  std::string text;
  for (const Listing::Item& item : listing.items()) {
    const NamedShard& shard = *item.shard;
    if (!shard.name.starts_with("/params/")) continue;
    const auto found = stored.find(shard.name);
    if (found == stored.end() || found->second->shape != shard.shard.shape) return "";
    if (found->second->type == shard.type) return "";
    text = " in another precision: its weights are " + std::string(h5::element_name(found->second->type)) +
           ", the model's (precision.compute) are " + std::string(h5::element_name(shard.type));
  }
  return text;
}

// All that differs between what is wanted and what the file holds; empty when nothing does.
std::string differences(const Listing& listing, const Datasets& stored) {
  if (std::string text = other_precision(listing, stored); !text.empty()) return text;
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::string other;
  Datasets rest = stored;
  for (const Listing::Item& item : listing.items()) {
    const NamedShard& shard = *item.shard;
    const auto found = rest.find(shard.name);
    if (found == rest.end()) {
      missing.push_back(shard.name);
      continue;
    }
    const DatasetRecord& dataset = *found->second;
    if (dataset.type != shard.type || dataset.shape != shard.shard.shape)
      other += "\n    " + shard.name + ": the model has " + shape_text(shard.type, shard.shard.shape) +
               ", the checkpoint " + shape_text(dataset.type, dataset.shape);
    rest.erase(found);
  }
  for (const auto& entry : rest) unexpected.push_back(entry.first);
  const std::string text = listed("missing in the checkpoint", missing, unexpected) +
                           listed("in the checkpoint, but not in the model", unexpected, missing) +
                           (other.empty() ? "" : "\n  of another type or shape:" + other) +
                           (missing.empty() && unexpected.empty()
                                ? ""
                                : "\n  checkpoint.allow_missing: [NAME, ...] goes on without those that it names");
  return text.empty() ? "" : " of another model:" + text;
}

Datasets wanted_datasets(const CommitRecord& record, const std::vector<std::string>& skip) {
  Datasets datasets;
  for (const DatasetRecord& dataset : record.datasets) {
    const bool skipped = std::any_of(
        skip.begin(), skip.end(), [&](const std::string& section) { return dataset.name.starts_with(section + "/"); });
    if (!skipped) datasets[dataset.name] = &dataset;
  }
  return datasets;
}

// The first chunk whose sum differs, as text; empty when all agree. The same on every rank.
std::string damage(const Listing& listing, const Datasets& stored) {
  for (const Listing::Item& item : listing.items()) {
    const std::vector<std::uint64_t> sums = listing.sums(item);
    const std::vector<std::uint64_t>& expected = stored.at(item.shard->name)->checksums;
    for (std::size_t chunk = 0; chunk < sums.size(); ++chunk) {
      if (sums[chunk] == expected[chunk]) continue;
      const std::int64_t begin = static_cast<std::int64_t>(chunk) * kChunkElements;
      const std::int64_t end = std::min(begin + kChunkElements, item.shard->shard.global_size());
      return item.shard->name + ": the checksum of elements " + std::to_string(begin) + " to " +
             std::to_string(end - 1) + " differs";
    }
  }
  return "";
}

// "/params/a.weight" is allowed by its name and by "a.weight".
bool is_allowed(const std::string& name, const std::vector<std::string>& allowed) {
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) {
    return name == one ||
           (name.size() > one.size() && name.ends_with(one) && name[name.size() - one.size() - 1] == '/');
  });
}

// The shards that the file has. What either lacks and may lack leaves both lists, with a note.
std::vector<NamedShard> take_out_missing(const std::vector<NamedShard>& shards, Datasets& stored,
                                         const LoadOptions& options, std::vector<std::string>& notes) {
  std::vector<NamedShard> rest;
  Datasets beyond = stored;
  for (const NamedShard& shard : shards) {
    const bool there = beyond.erase(shard.name) > 0;
    if (there || !is_allowed(shard.name, options.allow_missing)) {
      rest.push_back(shard);
    } else {
      notes.push_back(shard.name + " is not in the checkpoint and stays at its initial value");
    }
  }
  for (const auto& entry : beyond) {
    if (!is_allowed(entry.first, options.allow_missing)) continue;
    notes.push_back(entry.first + " of the checkpoint is not in the model and was not read");
    stored.erase(entry.first);
  }
  return rest;
}

struct Attempt {
  LoadReport report;
  std::string damage;  // empty: loaded
};

Attempt try_load(const Communicator& world, const Committed& source, const std::vector<NamedShard>& shards,
                 const LoadOptions& options) {
  const Stopwatch watch;
  const std::string title = "checkpoint " + source.path + " not loaded";
  const std::string folder = std::filesystem::path(source.path).parent_path().string();
  std::string text;
  run_stage(world, title, [&] {
    if (world.rank() == 0) text = verified_record(folder, source.step).to_text();
    check_access(source.path, false);
  });
  const CommitRecord record = CommitRecord::from_text(broadcast_string(world, text));
  Attempt attempt;
  Datasets stored = wanted_datasets(record, options.skip);
  const std::vector<NamedShard> wanted = take_out_missing(shards, stored, options, attempt.report.notes);
  Listing listing(world, wanted, options.transfer_bytes, true);
  if (const std::string text_of = differences(listing, stored); !text_of.empty())
    fail_all(ExitCode::input, "the checkpoint " + source.path + " is" + text_of);

  LoadReport& report = attempt.report;
  report.source = {record.step, source.path, record.run};
  h5::File file = h5::File::open(world, source.path, options.file);
  std::string not_collective;
  const std::shared_ptr<std::byte> buffer = take_host_memory(options.allocate, options.transfer_bytes);
  for (const Listing::Item& item : listing.items()) {
    const NamedShard& shard = *item.shard;
    h5::Dataset dataset = file.dataset(shard.name);
    for (std::int64_t round = 0; round < item.rounds.count; ++round) {
      const Range now = round_of({0, shard.shard.size()}, round, options.transfer_bytes, shard.type);
      const std::string cause = h5::read_shard(dataset, shard.shard, now, buffer.get(), {1, options.transfer_bytes});
      if (!cause.empty() && not_collective.empty())
        not_collective = shard.name + " was not read collectively: " + cause;
      stage_in(listing, item, now, buffer.get());
    }
    report.bytes += dataset.bytes();
    dataset.close();
  }
  report.state = read_state(file);
  file.close();
  listing.reduce_sums(world);
  if (!not_collective.empty()) {
    if (options.strict_collective) fail_all(ExitCode::storage, title + ": " + not_collective);
    report.notes.push_back(not_collective);
  }
  attempt.damage = damage(listing, stored);
  report.seconds = watch.seconds();
  return attempt;
}

// Best effort: a folder that cannot be written to only means that the next restart looks again.
void remember(const Communicator& world, const Committed& source, const std::string& why) {
  if (world.rank() != 0) return;
  try {
    const std::string folder = std::filesystem::path(source.path).parent_path().string();
    write_durably(StepFiles(folder, source.step).rejected, why + "\n");
  } catch (const Error&) {
  }
}

}  // namespace

LoadReport load(const Communicator& world, const Committed& source, const std::vector<NamedShard>& shards,
                const LoadOptions& options) {
  Attempt attempt = try_load(world, source, shards, options);
  if (!attempt.damage.empty())
    fail_all(ExitCode::storage, "checkpoint " + source.path + " is damaged: " + attempt.damage);
  return attempt.report;
}

Restart load_newest(const Communicator& world, const std::string& folder, const std::vector<NamedShard>& shards,
                    const LoadOptions& options) {
  Restart restart;
  std::vector<std::int64_t> damaged;
  bool committed = false;
  for (;;) {
    Found found = find_newest(world, folder, damaged);
    for (Rejected& one : found.rejected) {
      const bool known = std::any_of(restart.rejected.begin(), restart.rejected.end(),
                                     [&](const Rejected& other) { return other.path == one.path; });
      committed = committed || one.committed;
      if (!known) restart.rejected.push_back(std::move(one));
    }
    if (!found.newest) break;
    committed = true;
    Attempt attempt = try_load(world, *found.newest, shards, options);
    if (attempt.damage.empty()) {
      restart.loaded = std::move(attempt.report);
      return restart;
    }
    remember(world, *found.newest, attempt.damage);
    restart.rejected.push_back({found.newest->path, attempt.damage, true});
    damaged.push_back(found.newest->step);
  }
  if (committed) {
    std::string text = "no usable checkpoint in " + folder + " (to start from the beginning, move it away):";
    for (const Rejected& one : restart.rejected) text += "\n  " + one.path + ": " + one.why;
    fail_all(ExitCode::storage, text);
  }
  return restart;
}

}  // namespace fourfold::checkpoint
