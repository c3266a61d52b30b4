#include "selftest/folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/posix.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "h5/transfer.hpp"

namespace fourfold::selftest {

namespace {

constexpr std::int64_t kMostBytes = 8 << 20;  // of a rank
constexpr std::int64_t kMostBytesTogether = 256 << 20;
constexpr double kLateSeconds = 10;  // until other nodes see a file
constexpr Phase kPhase = Phase::checkpoint;

std::vector<std::byte> pattern(int rank, std::int64_t bytes) {
  std::vector<std::byte> all(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<std::byte>((i * 7 + i / 4096 + static_cast<std::size_t>(rank) * 31 + 1) & 0xff);
  return all;
}

std::int64_t bytes_of_a_rank(int ranks) {
  return std::clamp<std::int64_t>(kMostBytesTogether / ranks / 4096 * 4096, 4096, kMostBytes);
}

// What `work` complains of; empty: of nothing.
std::string problem_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void write_whole(const std::string& path, std::span<const std::byte> bytes) {
  checkpoint::create_file(path);
  checkpoint::OutputFile file(path);
  file.write_at(0, bytes);
  file.close();
}

// The file of `rank` has what that rank wrote. Other nodes may see it late.
void expect_pattern(const std::string& path, int rank, std::int64_t bytes) {
  std::vector<unsigned char> read(static_cast<std::size_t>(bytes));
  const Stopwatch watch;
  while (checkpoint::file_size(path).value_or(-1) != bytes) {
    if (watch.seconds() > kLateSeconds)
      fail_one(ExitCode::storage,
               fmt::format("does not see {}, which rank {} wrote {:.0f} s ago", path, rank, kLateSeconds));
    usleep(20000);
  }
  checkpoint::read_at(path, 0, read);
  const std::vector<std::byte> wanted = pattern(rank, bytes);
  if (std::memcmp(read.data(), wanted.data(), read.size()) != 0)
    fail_one(ExitCode::storage, fmt::format("reads other bytes from {} than rank {} wrote", path, rank));
}

double slowest(const Communicator& world, double seconds) {
  std::array<double, 1> each = {seconds};
  all_reduce_max<double>(world, each, kPhase);
  return each[0];
}

std::string size_text(std::int64_t bytes) {
  if (bytes >= std::int64_t{1} << 30) return fmt::format("{:.3g} GiB", static_cast<double>(bytes) / (1 << 30));
  return bytes >= 1 << 20 ? fmt::format("{:.3g} MiB", static_cast<double>(bytes) / (1 << 20))
                          : fmt::format("{} KiB", bytes >> 10);
}

double rate(std::int64_t bytes, double seconds) {
  return static_cast<double>(bytes) / std::max(seconds, 1e-9) * 1e-6;
}

// A rank half the job away: on another node wherever there is one.
int far_rank(const Communicator& world) {
  return (world.rank() + (world.size() + 1) / 2) % world.size();
}

constexpr const char* kAnotherFolder =
    "another folder: run.folder=FOLDER (of selftest alone: --folder FOLDER), on a file system that all nodes share";

}  // namespace

TrialFolder::TrialFolder(const Launch& launch, std::string folder, std::string path)
    : launch_(launch), folder_(std::move(folder)), path_(std::move(path)) {}

std::string TrialFolder::path_of(int rank) const {
  return fmt::format("{}/rank_{:06}", path_, rank);
}

std::unique_ptr<TrialFolder> TrialFolder::make(const Launch& launch, const std::string& folder, Report& report) {
  const Communicator& world = launch.world();
  set_progress(0, "folder");
  std::error_code ignored;
  // Rank 0 makes it; where it cannot, none tries.
  const std::string path = broadcast_string(world, fmt::format("{}/selftest.{}.{}", folder, launch.host(), getpid()));
  const bool is_new = world.rank() == 0 && !std::filesystem::exists(folder, ignored);
  std::string problem;
  if (world.rank() == 0) problem = problem_of([&] { checkpoint::make_folder(path); });
  problem = gathered(world, launch.host(), problem);
  std::unique_ptr<TrialFolder> trial(new TrialFolder(launch, is_new ? folder : "", path));
  if (problem.empty()) {
    constexpr std::int64_t kBytes = 4096;
    const int mine = world.rank(), far = far_rank(world);
    problem = gathered(world, launch.host(), problem_of([&] {
                         // Other nodes may see the folder late.
                         const Stopwatch watch;
                         while (!std::filesystem::exists(path, ignored) && watch.seconds() < kLateSeconds)
                           usleep(20000);
                         write_whole(trial->path_of(mine), pattern(mine, kBytes));
                         checkpoint::sync_file(trial->path_of(mine));
                       }));
    if (problem.empty())
      problem = gathered(world, launch.host(), problem_of([&] { expect_pattern(trial->path_of(far), far, kBytes); }));
  }
  if (!problem.empty()) {
    report.add({"folder", Verdict::failed, problem, kAnotherFolder, ExitCode::storage});
    return nullptr;
  }
  std::int64_t free = 0;
  problem = gathered(world, launch.host(), problem_of([&] { free = checkpoint::free_bytes(path); }));
  report.add({"folder", Verdict::ok,
              fmt::format("{}: every rank writes and sees the others' files; {}", folder,
                          problem.empty() ? size_text(free) + " free" : problem)});
  return trial;
}

TrialFolder::~TrialFolder() {
  if (std::uncaught_exceptions() > 0) return;
  barrier(launch_.world(), kPhase);
  if (launch_.world().rank() != 0) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  if (!folder_.empty()) std::filesystem::remove(folder_, ignored);
}

void TrialFolder::look_at_files(Report& report) const {
  const Communicator& world = launch_.world();
  set_progress(0, "files");
  const int mine = world.rank(), far = far_rank(world);
  const std::int64_t bytes = bytes_of_a_rank(world.size());
  const std::vector<std::byte> data = pattern(mine, bytes);
  const std::string path = path_of(mine), renamed = path + ".renamed";
  double write = 0, sync = 0, rename = 0, read = 0;
  const auto timed = [](double& seconds, const std::function<void()>& work) {
    const Stopwatch watch;
    work();
    seconds = watch.seconds();
  };
  barrier(world, kPhase);
  std::string problem = gathered(world, launch_.host(), problem_of([&] {
                                   timed(write, [&] { write_whole(path, data); });
                                   timed(sync, [&] { checkpoint::sync_file(path); });
                                   timed(rename, [&] {
                                     checkpoint::rename_file(path, renamed);
                                     checkpoint::sync_folder(path_);
                                   });
                                   if (checkpoint::file_size(path))
                                     fail_one(ExitCode::storage, path + " is still there after it was renamed");
                                 }));
  if (problem.empty())
    problem =
        gathered(world, launch_.host(),
                 problem_of([&] { timed(read, [&] { expect_pattern(path_of(far) + ".renamed", far, bytes); }); }));
  if (!problem.empty()) {
    report.add({"files", Verdict::failed, problem, kAnotherFolder, ExitCode::storage});
    return;
  }
  const std::int64_t all = bytes * world.size();
  write = slowest(world, write + sync);
  sync = slowest(world, sync);
  rename = slowest(world, rename);
  read = slowest(world, read);
  report.add(
      {"files", Verdict::ok,
       fmt::format("{} of {}: written and on the disk {:.0f} MB/s, read again {:.0f} MB/s; slowest fsync {:.3g} ms, "
                   "rename {:.3g} ms",
                   world.size(), size_text(bytes), rate(all, write), rate(all, read), sync * 1e3, rename * 1e3)});
}

namespace {

// A lock of either kind that other processes respect. Released when closed.
class Lock {
 public:
  enum class Result { taken, held, refused };

  explicit Lock(const std::string& path) : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {}
  ~Lock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  Result take_record() {  // what MPI-IO uses
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    return result(fcntl(descriptor_, F_SETLK, &whole));
  }
  Result take_file() { return result(flock(descriptor_, LOCK_EX | LOCK_NB)); }  // what HDF5 uses
  const std::string& why() const { return why_; }

 private:
  Result result(int code) {
    if (code == 0) return Result::taken;
    if (errno == EAGAIN || errno == EACCES || errno == EWOULDBLOCK) return Result::held;
    why_ = std::strerror(errno);
    return Result::refused;
  }
  int descriptor_;
  std::string why_;
};

}  // namespace

void TrialFolder::look_at_locks(Report& report) const {
  const Communicator& world = launch_.world();
  set_progress(0, "file locks");
  std::string problem, loose;
  const auto look = [&](const char* kind, Lock::Result (Lock::*take)()) {
    Lock lock(path_ + "/" + kind);
    std::string mine, open;
    const auto try_it = [&](Lock::Result wanted) {
      const Lock::Result got = (lock.*take)();
      if (got == Lock::Result::refused) mine = fmt::format("{} locks are refused: {}", kind, lock.why());
      if (got != Lock::Result::refused && got != wanted)
        open = got == Lock::Result::taken ? fmt::format("took a {} lock that rank 0 holds", kind)
                                          : fmt::format("did not get a {} lock that is free", kind);
    };
    if (world.rank() == 0) try_it(Lock::Result::taken);
    const std::string first = gathered(world, launch_.host(), mine);
    if (first.empty()) {
      if (world.rank() != 0) try_it(Lock::Result::held);
      barrier(world, kPhase);
    }
    const std::string here = first.empty() ? gathered(world, launch_.host(), mine) : first;
    if (problem.empty()) problem = here;
    const std::string gap = gathered(world, launch_.host(), open);
    if (loose.empty()) loose = gap;
  };
  look("record", &Lock::take_record);
  look("file", &Lock::take_file);
  const char* told = std::getenv("HDF5_USE_FILE_LOCKING");
  const bool without =
      told != nullptr && (std::string_view(told) == "FALSE" || std::string_view(told) == "BEST_EFFORT");
  if (problem.empty() && loose.empty()) {
    report.add(
        {"file locks", Verdict::ok, world.size() == 1 ? "taken and given back" : "rank 0's keep all others out"});
  } else if (!problem.empty() && !without) {
    report.add({"file locks", Verdict::failed, problem,
                "export HDF5_USE_FILE_LOCKING=FALSE   (Fourfold wants no locks, HDF5 alone does), or another folder",
                ExitCode::storage});
  } else {
    report.add({"file locks", Verdict::note,
                problem.empty() ? loose + ": they do not hold between ranks here; Fourfold itself needs none"
                                : problem + "; HDF5 is told so (HDF5_USE_FILE_LOCKING)"});
  }
}

void TrialFolder::look_at_hdf5(Report& report) const {
  const Communicator& world = launch_.world();
  set_progress(0, "parallel HDF5");
  const std::string path = path_ + "/all.h5";
  const std::int64_t length = bytes_of_a_rank(world.size()) / 4;
  const std::vector<std::int64_t> shape = {world.size(), length};
  const auto row = [&](int rank) { return Shard{shape, {{rank, rank + 1}, {0, length}}, {0, length}}; };
  const auto value = [&](int rank, std::int64_t i) { return static_cast<std::int32_t>(rank * length + i); };
  const h5::Rounds rounds;
  const int mine = world.rank(), far = far_rank(world);
  std::vector<std::int32_t> data(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < length; ++i) data[static_cast<std::size_t>(i)] = value(mine, i);

  // A rank that fails inside leaves the others waiting there: its error ends the job.
  barrier(world, kPhase);
  Stopwatch watch;
  std::string alone;
  {
    h5::File file = h5::File::create(world, path);
    h5::Dataset dataset = file.create_dataset("/selftest/rows", h5::ElementType::int32, shape);
    alone = h5::write_shard(dataset, row(mine), {0, length}, data.data(), rounds);
    dataset.close();
    file.close();
  }
  const double write = slowest(world, watch.seconds());
  std::fill(data.begin(), data.end(), 0);
  barrier(world, kPhase);
  watch.restart();
  {
    h5::File file = h5::File::open(world, path);
    h5::Dataset dataset = file.dataset("/selftest/rows");
    const std::string read_alone = h5::read_shard(dataset, row(far), {0, length}, data.data(), rounds);
    if (alone.empty()) alone = read_alone;
    dataset.close();
    file.close();
  }
  const double read = slowest(world, watch.seconds());
  std::string problem;
  for (std::int64_t i = 0; i < length && problem.empty(); ++i) {
    const std::int32_t got = data[static_cast<std::size_t>(i)];
    if (got != value(far, i)) problem = fmt::format("reads {} where rank {} wrote {}", got, far, value(far, i));
  }
  problem = gathered(world, launch_.host(), problem);
  alone = gathered(world, launch_.host(), alone.empty() ? "" : "transfers are not collective: " + alone);
  const std::int64_t all = length * 4 * world.size();
  const std::string seen = fmt::format("{} in one file: written {:.0f} MB/s, read again {:.0f} MB/s", size_text(all),
                                       rate(all, write), rate(all, read));
  if (!problem.empty()) {
    report.add({"parallel HDF5", Verdict::failed, problem, kAnotherFolder, ExitCode::storage});
  } else if (!alone.empty()) {
    report.add({"parallel HDF5", Verdict::note, seen + "; " + alone});
  } else {
    report.add({"parallel HDF5", Verdict::ok, seen + ", collectively"});
  }
}

void skip_files(Report& report) {
  for (const char* item : {"files", "file locks", "parallel HDF5"})
    report.add({item, Verdict::skipped, "they want the folder"});
}

}  // namespace fourfold::selftest
