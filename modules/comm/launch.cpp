#include "comm/launch.hpp"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <numeric>
#include <span>
#include <vector>

#include "base/timer.hpp"
#include "comm/abort.hpp"
#include "comm/agree.hpp"
#include "comm/call.hpp"
#include "comm/comm_state.hpp"
#include "comm/launcher_check.hpp"
#include "comm/mpi_check.hpp"

namespace fourfold {

namespace {

constexpr double kVerdictSeconds = 8;

const char* environment(const char* name) {
  return std::getenv(name);
}

[[noreturn]] void refuse(const std::string& message) {
  std::fprintf(stderr, "fourfold: error: %s\n", message.c_str());
  std::fflush(nullptr);
  int started = 0;
  MPI_Initialized(&started);
  if (started != 0) MPI_Finalize();
  std::exit(static_cast<int>(ExitCode::launch));
}

// "Open MPI v4.1.4" of Open MPI's long line; MPICH's first line with its blanks squeezed.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name;
  for (const char c : std::string(text, static_cast<std::size_t>(length))) {
    if (c == ',' || c == '\n') break;
    if (c != '\t' && c != ' ') {
      name += c;
    } else if (!name.empty() && name.back() != ' ') {
      name += ' ';
    }
  }
  return name;
}

void initialise(int* argc, char*** argv, const std::string& library, const std::string& program) {
  if (!has_launcher(environment) || one_rank_is_meant(environment)) {
    // Open MPI alone looks at these: no daemon and no network for one rank, which halves the start; and with a node
    // list of Slurm it would insist on being one of srun's ranks.
    setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    setenv("OMPI_MCA_pml", "ob1", 0);
    unsetenv("SLURM_NODELIST");
  }
  // Open MPI would end the process inside MPI_Init, with advice on how to build Slurm.
  if (library.starts_with("Open MPI") && srun_without_pmi(environment)) {
    if (const auto mismatch = launcher_mismatch(environment, 1, library, program)) refuse(*mismatch);
  }
  // Open MPI 4's own file component writes at a fraction of the disk's rate and does not return from a failed write on
  // one rank; ROMIO does. The user's choice stands.
  if (library.starts_with("Open MPI v4")) setenv("OMPI_MCA_io", "romio321", 0);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", "world", -1, -1);
  if (provided < MPI_THREAD_FUNNELED)
    refuse(
        "this MPI library allows no threads beside the one that calls it (MPI_THREAD_FUNNELED is needed): build it "
        "with thread support");
}

std::string host_name() {
  char text[MPI_MAX_PROCESSOR_NAME] = "?";
  int length = 1;
  MPI_Get_processor_name(text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

// The node of every rank, numbered in the order of their first ranks.
std::vector<int> find_nodes(MPI_Comm world, int rank, int size) {
  const auto check = [&](int code, const char* what) { check_mpi(code, what, "world", rank, size); };
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  int first = rank;
  check(MPI_Bcast(&first, 1, MPI_INT, 0, node), "MPI_Bcast");
  check(MPI_Comm_free(&node), "MPI_Comm_free");
  std::vector<int> firsts(static_cast<std::size_t>(size));
  check(MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, world), "MPI_Allgather");
  std::vector<int> leaders = firsts;
  std::sort(leaders.begin(), leaders.end());
  leaders.erase(std::unique(leaders.begin(), leaders.end()), leaders.end());
  for (int& leader : firsts)
    leader = static_cast<int>(std::lower_bound(leaders.begin(), leaders.end(), leader) - leaders.begin());
  return firsts;
}

// Whether messages arrive that are sent from and to the device's memory: each rank's to the next one. A library that is
// wrong about itself dies here, and the first line of its end says so.
bool mpi_moves(const Communicator& world, CommState& state) {
  const bool claims = state.device->mpi_claims_it();
  if (world.size() == 1 || !agree_all(world, claims)) return false;
  set_progress(-1, "trying GPU-aware MPI (FOURFOLD_GPU_AWARE_MPI=0: without)");
  constexpr std::int64_t kBytes = 1024;
  const auto pattern = [](int rank) {
    std::vector<std::byte> bytes;
    for (std::int64_t i = 0; i < kBytes; ++i) bytes.push_back(static_cast<std::byte>((i * 7 + rank * 31 + 1) & 0xff));
    return bytes;
  };
  const ScratchPool::Lease memory = state.device_scratch.take(2 * kBytes);
  const std::span<std::byte> sent(memory.as<std::byte>(), kBytes);
  const std::span<std::byte> received(memory.as<std::byte>() + kBytes, kBytes);
  state.device->copy(pattern(world.rank()).data(), sent.data(), kBytes);
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  state.mpi_moves_device_memory = true;  // for these two
  Pending receive = start_receive<std::byte>(world, received, before, 0, Phase::setup);
  start_send<std::byte>(world, sent, next, 0, Phase::setup).wait();
  receive.wait();
  std::vector<std::byte> arrived(kBytes);
  state.device->copy(received.data(), arrived.data(), kBytes);
  set_progress(-1, "start");
  return agree_all(world, arrived == pattern(before));
}

}  // namespace

Launch::Launch(int* argc, char*** argv) {
  mpi_library_ = library_name();
  const std::string program = argc != nullptr && *argc > 0 ? (*argv)[0] : "fourfold";
  initialise(argc, argv, mpi_library_, program);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  host_ = host_name();
  if (const auto mismatch = launcher_mismatch(environment, size, mpi_library_, program)) refuse(*mismatch);
  int* tag_bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_bound, &found);
  if (found == 0 || *tag_bound < kTagEnd)
    refuse("this MPI library has message tags up to " + std::to_string(found != 0 ? *tag_bound : 0) + " only; " +
           std::to_string(kTagEnd) + " are needed");
  begin_abort_path(rank, host_);

  state_ = std::make_unique<CommState>();
  const std::vector<int> nodes = find_nodes(MPI_COMM_WORLD, rank, size);
  state_->real_node = nodes[static_cast<std::size_t>(rank)];
  std::vector<int> everyone(static_cast<std::size_t>(size));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto duplicate = [&](const char* name) {
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup", name, rank, size);
    auto handle = std::make_shared<MpiHandle>(comm, MpiHandle::Ownership::owned);
    return std::unique_ptr<Communicator>(new Communicator(std::move(handle), name, nodes, everyone, state_.get()));
  };
  world_ = duplicate("world");
  verdict_ = duplicate("verdict");
}

Launch::~Launch() {
  if (std::uncaught_exceptions() > 0) return;  // exit() then finds MPI unfinished and ends the job
  state_->ring = nullptr;
  watchdog_.reset();
  verdict_.reset();
  world_.reset();
  end_abort_path();
  MPI_Finalize();
}

CommLedger& Launch::ledger() const {
  return state_->ledger;
}

void Launch::set_scratch_allocator(ScratchPool::Allocate allocate) const {
  state_->scratch.set_allocator(std::move(allocate));
}

std::int64_t Launch::scratch_allocations() const {
  return state_->scratch.allocations() + state_->device_scratch.allocations();
}

void Launch::set_device(std::shared_ptr<Device> device, ScratchPool::Allocate allocate) const {
  state_->device = std::move(device);
  state_->device_scratch.set_allocator(std::move(allocate));
  state_->mpi_moves_device_memory = state_->device != nullptr && mpi_moves(*world_, *state_);
  world_->make_device_group();
}

std::string Launch::device_summary() const {
  if (state_->device == nullptr) return "no device";
  return std::string("collectives: ") +
         (world_->device_ != nullptr ? "between devices"
          : world_->size() > 1       ? "through the host's memory"
                                     : "none") +
         "; messages: " +
         (state_->mpi_moves_device_memory ? "MPI moves the devices' memory" : "through the host's memory");
}

std::string Launch::share_memory() const {
  struct Card {
    SharedMemory::Place place;
    std::int64_t word = 0;
    std::int32_t node = 0;
  };
  if (state_->shared_memory != nullptr) return {};
  const auto ranks = static_cast<std::size_t>(world_->size());
  auto memory = std::make_shared<SharedMemory>();
  std::string problem;
  Card mine;
  mine.node = state_->real_node;
  mine.word = now_ns() ^ (std::int64_t{world_->rank()} << 48);  // a process of another name space has another one there
  const SharedMemory::Block block = memory->take(sizeof mine.word);
  if (block != nullptr) {
    std::memcpy(block.get(), &mine.word, sizeof mine.word);
    mine.place = memory->find(block.get());
  } else {
    problem = memory->refusal();
  }
  std::vector<Card> cards(ranks);
  const std::vector<std::int64_t> sizes(ranks, sizeof(Card));
  all_gather<std::byte>(*world_, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(cards)), sizes,
                        Phase::setup);
  bool neighbours = false;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (static_cast<int>(r) == world_->rank() || cards[r].node != mine.node || !cards[r].place.shared()) continue;
    neighbours = true;
    const std::byte* word = memory->address(cards[r].place);
    const std::string reason = word == nullptr                                                ? std::strerror(errno)
                               : std::memcmp(word, &cards[r].word, sizeof cards[r].word) == 0 ? ""
                                                                                              : "another process";
    if (!reason.empty()) problem = "memory of rank " + std::to_string(r) + ": " + reason;
  }
  barrier(*world_, Phase::setup);  // all have looked
  const std::vector<std::string> problems = gather_strings(*world_, problem);
  for (const std::string& each : problems) problem = problem.empty() ? each : problem;
  problem = broadcast_string(*world_, problem);
  if (!problem.empty() || !agree_any(*world_, neighbours)) return problem;
  state_->shared_memory = std::move(memory);
  world_->make_shared_group();
  return {};
}

const std::shared_ptr<SharedMemory>& Launch::shared_memory() const {
  return state_->shared_memory;
}

void Launch::share_from(std::int64_t bytes) const {
  state_->share_from = bytes;
}

void Launch::emulate_nodes(std::int64_t ranks_per_node) const {
  FOURFOLD_ASSERT(ranks_per_node > 0, "a node has ranks");
  std::vector<int> nodes;
  for (int rank = 0; rank < world_->size(); ++rank) nodes.push_back(static_cast<int>(rank / ranks_per_node));
  world_->set_nodes(std::move(nodes));
}

void Launch::emulate(const Machine& machine) const {
  FOURFOLD_ASSERT(machine.ranks() >= world_->size(), "the machine holds the job");
  emulate_nodes(machine.ranks_per_node);
  state_->clock.start(machine);
  state_->channels.reset();
}

std::string Launch::watch(const WatchOptions& options, const Communicator& group) const {
  FOURFOLD_ASSERT(group.world_rank_of(group.size() - 1) == group.size() - 1, "the world's first ranks, in their order");
  std::string problem;
  if (group.rank() == 0) {
    std::error_code error;
    std::filesystem::create_directories(options.folder, error);
    if (!error) std::filesystem::remove(Watchdog::report_path(options.folder), error);
    if (error) problem = options.folder + ": " + error.message();
  }
  problem = broadcast_string(group, problem);
  if (!problem.empty()) return problem;
  try {
    watchdog_ = std::make_unique<Watchdog>(options, group.rank(), group.size(), host_);
  } catch (const Error& error) {
    problem = error.what();
  }
  const std::vector<std::string> problems = gather_strings(group, problem);
  for (const std::string& each : problems) problem = problem.empty() ? each : problem;
  problem = broadcast_string(group, problem);
  if (!problem.empty()) {
    watchdog_.reset();
    return problem;
  }
  state_->ring = &watchdog_->ring();
  state_->ring->join(group.id_, group.name(), group.size());
  return {};
}

void Launch::end_watch() const {
  state_->ring = nullptr;
  watchdog_.reset();
}

void Launch::check_calls() const {
  state_->check_calls = true;
}

void Launch::set_transfer_limit(std::int64_t bytes) const {
  FOURFOLD_ASSERT(bytes > 0 && bytes <= std::int64_t{1} << 30, "MPI's counts are 32-bit");
  state_->transfer_limit = bytes;
}

bool Launch::all_arrive(double seconds) const {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(verdict_->handle().comm, &request) != MPI_SUCCESS) return false;
  const Stopwatch watch;
  int arrived = 0;
  while (watch.seconds() < seconds) {
    if (MPI_Test(&request, &arrived, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (arrived != 0) return true;
    usleep(1000);
  }
  return false;
}

int run_guarded(const Launch& launch, const std::function<int()>& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.caller() == Caller::one_rank) abort_job(error.code(), error.what());
    const bool first = launch.world().rank() == 0;
    if (first) {
      std::fflush(stdout);
      std::fprintf(stderr, "fourfold: error: %s\n", error.what());
      std::fflush(stderr);
    }
    if (operations_abandoned()) {
      if (!first) usleep(1000000);  // rank 0 has the word
      abort_job_quietly(error.code());
    }
    if (!launch.all_arrive(kVerdictSeconds))
      abort_job(error.code(), std::string(error.what()) + " (the other ranks did not come to this verdict)");
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    abort_job(ExitCode::error, "out of memory");
  } catch (const std::exception& error) {
    abort_job(ExitCode::error, error.what());
  } catch (...) {
    abort_job(ExitCode::error, "an exception of an unknown type");
  }
}

}  // namespace fourfold
