#include "checkpoint/async.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "checkpoint/background.hpp"
#include "checkpoint/posix.hpp"
#include "checkpoint/runs.hpp"
#include "checkpoint/saver.hpp"
#include "checkpoint/stage.hpp"
#include "checkpoint/staging.hpp"
#include "comm/collectives.hpp"

namespace fourfold::checkpoint {

namespace {

constexpr std::int64_t kMostBytes = 1 << 23;  // of one write, so that a thread that is to stop soon does

std::int64_t owned_bytes(const NamedShard& shard) {
  return shard.owned.size() * h5::element_bytes(shard.type);
}

}  // namespace

std::int64_t copy_bytes(const std::vector<NamedShard>& shards) {
  std::int64_t bytes = 0;
  for (const NamedShard& shard : shards) bytes += owned_bytes(shard);
  return bytes;
}

struct AsyncSave::Work {
  Work(const Communicator& world, const std::string& folder, std::int64_t step, std::vector<NamedShard> all,
       const State& state, const SaveOptions& options)
      : shards(std::move(all)), saver(world, folder, step, shards, state, options) {}

  // Runs some of the collective stages. An error of all ranks leaves nothing of the step.
  void stages(const std::function<void()>& some) {
    const Stopwatch watch;
    try {
      some();
    } catch (const Error& error) {
      if (error.caller() == Caller::all_ranks) saver.remove_temporary();
      throw;
    }
    saver.report().blocked_seconds += watch.seconds();
  }

  void copy_model(const AllocateHost& allocate) {
    copy = take_host_memory(allocate, copy_bytes(shards));
    std::byte* to = copy.get();
    for (const Listing::Item& item : saver.listing().items()) {
      copy_out(*item.shard, item.shard->owned, to);
      to += owned_bytes(*item.shard);
    }
  }

  // By the thread.
  void write_copy(const std::atomic<bool>& stop) {
    const std::byte* from = copy.get();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const Listing::Item& item = saver.listing().items()[i];
      const NamedShard& shard = *item.shard;
      const std::int64_t element = h5::element_bytes(shard.type);
      saver.listing().add_to_sums(item, shard.owned, from);
      for_each_run(shard.shard, shard.owned, [&](std::int64_t, std::int64_t global, std::int64_t length) {
        const std::int64_t begin = saver.record().datasets[i].offset + global * element;
        for (std::int64_t done = 0; done < length * element && !stop; done += kMostBytes) {
          const std::int64_t now = std::min(length * element - done, kMostBytes);
          file->write_at(begin + done, {from + done, static_cast<std::size_t>(now)});
        }
        from += length * element;
      });
    }
    file->close();
  }

  const std::vector<NamedShard> shards;
  Saver saver;
  std::shared_ptr<std::byte> copy;
  std::unique_ptr<OutputFile> file;
};

AsyncSave::AsyncSave(const Communicator& world, const std::string& folder, std::int64_t step,
                     const std::vector<NamedShard>& shards, const State& state, const SaveOptions& options)
    : work_(std::make_shared<Work>(world, folder, step, shards, state, options)), began_ns_(now_ns()) {
  work_->stages([&] {
    Saver& saver = work_->saver;
    saver.prepare();
    saver.write_layout();
    run_stage(world, saver.title(), [&] { work_->file = std::make_unique<OutputFile>(saver.temporary()); });
    work_->copy_model(options.allocate);
  });
  thread_ = std::make_unique<Background>(
      [work = work_](const std::atomic<bool>& stop) { work->saver.with_space([&] { work->write_copy(stop); }); });
}

AsyncSave::~AsyncSave() = default;

bool AsyncSave::advance() {
  return go_on(false);
}

void AsyncSave::complete() {
  while (!go_on(true)) continue;
}

const SaveReport& AsyncSave::report() const {
  return work_->saver.report();
}

bool AsyncSave::go_on(bool wait) {
  bool committed = false;
  work_->stages([&] {
    const Communicator& world = work_->saver.world();
    if (wait && thread_) thread_->wait();
    const bool finished = !thread_ || thread_->finished();
    const bool failed = finished && thread_ && thread_->failure();
    std::array<std::int64_t, 2> state{finished ? 0 : 1, failed ? 1 : 0};
    all_reduce_max<std::int64_t>(world, state, Phase::checkpoint);
    if (state[1] > 0) {
      // The others' threads have no more to do.
      std::optional<std::string> failure;
      if (failed) failure = thread_->failure();
      thread_.reset();
      run_stage(world, work_->saver.title(), [&] {
        if (failure) fail_one(ExitCode::storage, *failure);
      });
    }
    if (state[0] == 0) committed = next_stage();
  });
  if (committed) work_->saver.report().seconds = static_cast<double>(now_ns() - began_ns_) * 1e-9;
  return committed;
}

// All threads have finished.
bool AsyncSave::next_stage() {
  Saver& saver = work_->saver;
  double seconds = thread_ ? thread_->seconds() : 0;
  thread_.reset();
  all_reduce_max<double>(saver.world(), {&seconds, 1}, Phase::checkpoint);
  if (written_) {
    saver.report().fsync_seconds = seconds;
    saver.publish();
    return true;
  }
  written_ = true;
  saver.report().write_seconds += seconds;
  work_->copy.reset();
  saver.reduce_sums();
  if (saver.syncs())
    thread_ =
        std::make_unique<Background>([work = work_](const std::atomic<bool>&) { sync_file(work->saver.temporary()); });
  return false;
}

}  // namespace fourfold::checkpoint
