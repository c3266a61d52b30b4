// Checkpoints beside plain pwrite and pread of the same bytes, fsync included, all ranks at once into one file.
//
//   [mpirun -n N] bench_checkpoint FOLDER [MEGABYTES] [auto|ompio|romio321] [rows|cols] [HINT=VALUE...]
//
// rows, cols: what the ranks' shards are cut over. Plain calls and the program's take turns. Files are dropped from the
// page cache before they are read. On a busy machine compare processor seconds, with one rank, which never waits.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/timer.hpp"
#include "checkpoint/async.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/collectives.hpp"
#include "comm/file_component.hpp"
#include "comm/launch.hpp"

namespace fourfold {
namespace {

constexpr int kTensors = 24, kRounds = 5;

void require(bool good, const char* call) {
  if (!good) fail_one(ExitCode::storage, std::string(call) + " failed");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

class Bench {
 public:
  Bench(const Communicator& world, const std::string& folder, std::int64_t megabytes, bool columns,
        h5::FileOptions options)
      : world_(world), folder_(folder) {
    const std::int64_t width = 4096;
    const std::int64_t rows = std::max<std::int64_t>(megabytes * 1000000 / kTensors / 4 / width, 1);
    for (int i = 0; i < kTensors; ++i) {
      checkpoint::NamedShard shard{
          "/params/" + std::to_string(i), h5::ElementType::fp32, whole_shard({rows, width}), nullptr, {}};
      shard.shard.box[columns ? 1 : 0] = part(columns ? width : rows, world.size(), world.rank());
      shard.shard.flat = {0, box_size(shard.shard.box)};
      shard.owned = shard.shard.flat;
      memory_.emplace_back(static_cast<std::size_t>(shard.shard.size()), 1.0f + static_cast<float>(i));
      shards_.push_back(shard);
      bytes_ += shard.shard.global_size() * 4;
    }
    for (std::size_t i = 0; i < shards_.size(); ++i) shards_[i].data = memory_[i].data();
    save_.keep = 1;
    save_.strict_collective = true;
    save_.file = std::move(options);
  }

  void run() {
    std::vector<Cost> writes, saves, async, reads, loads;
    for (int round = 0; round <= kRounds; ++round) {
      const Cost plain_write = timed([&] { write_plainly(); });
      checkpoint::SaveReport report;
      const Cost saved = timed([&] { report = checkpoint::save(world_, folder_, 2 * round, shards_, {}, save_); });
      drop(report.path);
      const Cost plain_read = timed([&] { read_plainly(); });
      const Cost loaded = timed([&] { checkpoint::load(world_, {2 * round, report.path, ""}, shards_, load()); });
      const Cost under_way = timed([&] {
        checkpoint::AsyncSave save(world_, folder_, 2 * round + 1, shards_, {}, save_);
        save.complete();
        report = save.report();
      });
      if (round == 0) continue;  // warm-up
      writes.push_back(plain_write);
      saves.push_back(saved);
      async.push_back(under_way);
      reads.push_back(plain_read);
      loads.push_back(loaded);
    }
    if (world_.rank() != 0) return;
    std::printf("%d ranks, component %s, %.0f MB\n", world_.size(), file_component_in_use().c_str(),
                static_cast<double>(bytes_) / 1e6);
    row("pwrite + fsync", writes, writes);
    row("synchronous save", saves, writes);
    row("asynchronous save", async, writes);
    row("pread", reads, reads);
    row("load", loads, reads);
  }

 private:
  // Processor seconds: of all ranks, also those that they wait with.
  struct Cost {
    double seconds = 0, processor = 0;
  };

  template <class Work>
  Cost timed(Work&& work) const {
    barrier(world_, Phase::control);
    const Stopwatch watch;
    const double before = processor_seconds();
    work();
    double processor = processor_seconds() - before;
    barrier(world_, Phase::control);
    const double seconds = watch.seconds();
    all_reduce_sum<double>(world_, {&processor, 1}, Summation::fast, Phase::control);
    return {seconds, processor};
  }

  void row(const char* name, const std::vector<Cost>& costs, const std::vector<Cost>& plain) const {
    std::vector<double> seconds, processor, ratios;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      seconds.push_back(costs[i].seconds);
      processor.push_back(costs[i].processor);
      ratios.push_back(plain[i].seconds / costs[i].seconds);
    }
    std::sort(ratios.begin(), ratios.end());
    const double gigabytes = static_cast<double>(bytes_) / 1e9;
    std::printf("  %-18s %7.2f GB/s   %5.2f of plain (%.2f to %.2f)   %.2f processor s/GB\n", name,
                gigabytes / median(seconds), median(ratios), ratios.front(), ratios.back(),
                median(processor) / gigabytes);
  }

  std::string plain_file() const { return folder_ + "/plain"; }
  Range mine() const { return part(bytes_, world_.size(), world_.rank()); }

  // In the order of the file, from the shards' memory.
  void write_plainly() {
    if (world_.rank() == 0) {
      const int made = open(plain_file().c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
      require(made >= 0 && posix_fallocate(made, 0, bytes_) == 0 && close(made) == 0, "fallocate");
    }
    barrier(world_, Phase::control);
    const int file = open(plain_file().c_str(), O_WRONLY);
    require(file >= 0, "open");
    std::int64_t at = mine().begin;
    for (const auto& memory : memory_) {
      const auto size = static_cast<std::int64_t>(memory.size() * 4);
      for (std::int64_t done = 0; done < size;) {
        const ssize_t now = pwrite(file, reinterpret_cast<const char*>(memory.data()) + done,
                                   static_cast<std::size_t>(size - done), at + done);
        require(now > 0, "pwrite");
        done += now;
      }
      at += size;
    }
    barrier(world_, Phase::control);
    if (world_.rank() == 0) require(fsync(file) == 0, "fsync");
    close(file);
  }

  void read_plainly() {
    const int file = open(plain_file().c_str(), O_RDONLY);
    require(file >= 0, "open");
    std::int64_t at = mine().begin;
    for (auto& memory : memory_) {
      const auto size = static_cast<std::int64_t>(memory.size() * 4);
      for (std::int64_t done = 0; done < size;) {
        const ssize_t now = pread(file, reinterpret_cast<char*>(memory.data()) + done,
                                  static_cast<std::size_t>(size - done), at + done);
        if (now == 0) break;  // the last rank's shards may be longer than its part
        require(now > 0, "pread");
        done += now;
      }
      at += size;
    }
    close(file);
  }

  void drop(const std::string& saved) const {
    barrier(world_, Phase::control);
    for (const std::string& name : {plain_file(), saved}) {
      const int file = open(name.c_str(), O_RDONLY);
      require(file >= 0 && posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0 && close(file) == 0, "fadvise");
    }
  }

  checkpoint::LoadOptions load() const {
    checkpoint::LoadOptions options;
    options.strict_collective = true;
    options.file = save_.file;
    return options;
  }

  const Communicator& world_;
  const std::string folder_;
  std::vector<checkpoint::NamedShard> shards_;
  std::vector<std::vector<float>> memory_;
  std::int64_t bytes_ = 0;
  checkpoint::SaveOptions save_;
};

}  // namespace
}  // namespace fourfold

int main(int argc, char** argv) {
  using namespace fourfold;
  const Launch launch(&argc, &argv);
  return run_guarded(launch, [&] {
    if (argc < 2)
      fail_all(ExitCode::input, "bench_checkpoint FOLDER [MEGABYTES] [COMPONENT] [rows|cols] [HINT=VALUE...]");
    const std::string component = argc > 3 ? argv[3] : "auto";
    if (component != "auto") {
      if (const std::string problem = choose_file_component(component); !problem.empty())
        fail_all(ExitCode::input, problem);
    }
    h5::FileOptions options;
    for (int i = 5; i < argc; ++i) {
      const std::string hint = argv[i];
      const std::size_t equals = hint.find('=');
      if (equals == std::string::npos) fail_all(ExitCode::input, hint + " is no HINT=VALUE");
      options.hints.emplace_back(hint.substr(0, equals), hint.substr(equals + 1));
    }
    Bench bench(launch.world(), argv[1], argc > 2 ? std::atoll(argv[2]) : 1000,
                argc > 4 && argv[4] == std::string("cols"), options);
    bench.run();
    return 0;
  });
}
