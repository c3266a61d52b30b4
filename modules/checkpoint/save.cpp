#include "base/error.hpp"
#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/posix.hpp"
#include "checkpoint/saver.hpp"
#include "checkpoint/stage.hpp"
#include "comm/collectives.hpp"

namespace fourfold::checkpoint {

namespace {

// What the bytes outside the datasets take: per object, and for the file. Measured with HDF5 1.10 and rounded up.
constexpr std::int64_t kObjectBytes = 1024;
constexpr std::int64_t kFileBytes = 16384;

std::int64_t data_bytes(const NamedShard& shard) {
  return shard.shard.global_size() * h5::element_bytes(shard.type);
}

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
  const Stopwatch all;
  Saver saver(world, folder, step, shards, state, options);
  SaveReport& report = saver.report();
  try {
    saver.prepare();
    saver.write_all();
    saver.reduce_sums();
    const Stopwatch syncing;
    run_stage(world, saver.title(), [&] {
      if (saver.syncs()) sync_file(saver.temporary());
    });
    report.fsync_seconds = syncing.seconds();
    saver.publish();
  } catch (const Error& error) {
    if (error.caller() == Caller::all_ranks) saver.remove_temporary();
    throw;
  }
  report.seconds = report.blocked_seconds = all.seconds();
  return report;
}

}  // namespace fourfold::checkpoint
