// fourfold selftest [DECK]: is this allocation fit to run? Ranks, launcher, MPI, cores, devices, the folder, and every
// operation on every axis of a grid.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/grid_comms.hpp"
#include "comm/launch.hpp"
#include "commands.hpp"
#include "deck/derive.hpp"
#include "deck_file.hpp"
#include "devices.hpp"
#include "job.hpp"
#include "selftest/folder.hpp"
#include "selftest/groups.hpp"
#include "selftest/place.hpp"
#include "train/pipeline.hpp"

namespace fourfold {

namespace {

using selftest::Report;
using selftest::Verdict;

constexpr double kHangSeconds = 20;

struct Options {
  DeckArguments deck;
  std::string folder;
};

// The factors of n, largest first, each on the shortest of four sides: 12 is 3 x 2 x 2 x 1.
std::array<int, 4> even_sides(int n) {
  std::array<int, 4> sides = {1, 1, 1, 1};
  std::vector<int> factors;
  for (int f = 2; n > 1; ++f) {
    for (; n % f == 0; n /= f) factors.insert(factors.begin(), f);
  }
  for (const int f : factors) *std::min_element(sides.begin(), sides.end()) *= f;
  return sides;
}

// Where no deck says another: both views as even as they can be; two stages from 16 ranks on.
ProcessGrid even_grid(int ranks) {
  const int stages = ranks >= 16 && ranks % 2 == 0 ? 2 : 1;
  const auto [a, b, c, d] = even_sides(ranks / stages);
  return ProcessGrid(
      std::vector<StageShape>(static_cast<std::size_t>(stages), {DenseShape{a, c, b, d}, MoeShape{a, b, c, d}}));
}

struct Setting {
  ProcessGrid grid;
  std::string folder;
};

// Nothing after the deck's faults went to stderr.
std::optional<Setting> setting_of(const Options& options, const Communicator& world) {
  if (options.deck.file.empty()) return Setting{even_grid(world.size()), options.folder.empty() ? "." : options.folder};
  const LoadText load = [&world](const std::string& file) { return shared_text(world, file); };
  const LoadedText loaded = load(options.deck.file);
  if (!loaded.problem.empty())
    fail_all(ExitCode::input, "cannot read the deck " + options.deck.file + ": " + loaded.problem);
  const std::optional<Deck> deck =
      checked_deck({options.deck.file, loaded.text}, options.deck.overrides, world.size(), world.rank() == 0, load);
  if (!deck) return std::nullopt;
  return Setting{process_grid(*deck), options.folder.empty() ? deck->run.folder : options.folder};
}

// GPUs that a node has and a program for cores leaves idle.
std::int64_t idle_gpus() {
  std::int64_t count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", ignored))
    count += entry.exists() ? 1 : 0;
  return count;
}

// Chooses the devices as `train` does; threads of a rank's kernels.
int look_at_devices(const Launch& launch, Report& report) {
  int threads = 1;
  try {
    const Devices devices(launch.world());
    const auto kokkos = devices.start_kokkos();
    threads = Kokkos::DefaultHostExecutionSpace().concurrency();
    const std::string name = Kokkos::DefaultExecutionSpace::name();
    const std::int64_t idle = idle_gpus();
#ifdef KOKKOS_ENABLE_CUDA
    report.add({"devices", Verdict::ok, name + ": one GPU a rank"});
#else
    report.add(
        {"devices", idle == 0 ? Verdict::none : Verdict::note,
         "none: this program computes on cores (Kokkos " + name + ")" +
             (idle == 0 ? ""
                        : "; the " + std::to_string(idle) + " GPU(s) of rank 0's node stay idle (README, \"GPUs\")")});
#endif
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::size_t end = text.find('\n');
    report.add({"devices", Verdict::failed, text.substr(0, end), end == std::string::npos ? "" : text.substr(end + 1),
                error.code()});
  }
  return threads;
}

void look_at_groups(const Launch& launch, const ProcessGrid& grid, Report& report) {
  std::vector<GroupKey> axes = {{Axis::data}, {Axis::depth}, {Axis::row}, {Axis::col}};
  if (grid.stages() > 1) axes.push_back({Axis::stage});
  for (const GroupKey& key :
       {GroupKey{Axis::replica}, GroupKey{Axis::expert}, GroupKey{Axis::moe_row}, GroupKey{Axis::moe_col}}) {
    bool split = false;
    for (int stage = 0; stage < grid.stages(); ++stage) {
      const MoeShape& moe = grid.stage(stage).moe;
      split = split || moe.expert > 1 || moe.row > 1 || moe.col > 1;
    }
    if (split) axes.push_back(key);
  }
  const auto own = [](std::int64_t bytes) {
    return std::shared_ptr<std::byte>(new std::byte[static_cast<std::size_t>(bytes)],
                                      std::default_delete<std::byte[]>());
  };
  {
    const GridComms comms(launch.world(), grid, axes);
    selftest::look_at_axes(launch, comms, axes, "by messages", own, report);
  }
  if (launch.world().size() == 1) return;
  const std::string problem = launch.share_memory();
  const auto& memory = launch.shared_memory();
  if (memory == nullptr) {
    report.add({"shared memory", problem.empty() ? Verdict::none : Verdict::note,
                problem.empty() ? "one rank a node: nothing to share"
                                : "ranks of a node cannot read each other's memory (" + problem +
                                      "): messages are used, and are slower"});
    return;
  }
  launch.share_from(1);
  const GridComms comms(launch.world(), grid, axes);
  selftest::look_at_axes(
      launch, comms, axes, "shared", [&memory](std::int64_t bytes) { return memory->take(bytes); }, report);
}

int run_selftest(const Options& options) {
  const Stopwatch watch;
  const Launch launch = launch_ranks();
  const Communicator& world = launch.world();
  set_log_rank(world.rank());
  return run_guarded(launch, [&]() -> int {
    const std::optional<Setting> setting = setting_of(options, world);
    if (!setting) return static_cast<int>(ExitCode::input);
    Report report(world.rank() == 0);
    selftest::look_at_launch(launch, report);
    const int threads = look_at_devices(launch, report);
    selftest::look_at_cores(launch, threads, report);
    {
      const auto folder = selftest::TrialFolder::make(launch, setting->folder, report);
      if (folder != nullptr) launch.watch({folder->path() + "/ranks", [](std::string_view) { return kHangSeconds; }});
      look_at_groups(launch, setting->grid, report);
      if (folder != nullptr) {
        folder->look_at_files(report);
        folder->look_at_locks(report);
        folder->look_at_hdf5(report);
      } else {
        selftest::skip_files(report);
      }
    }
    report.end(watch.seconds());
    // The others leave with 0: a launcher ends all at the first other code, and this one's would not be seen.
    return static_cast<int>(report.code());
  });
}

}  // namespace

Run selftest_command(CLI::App& line) {
  const auto options = std::make_shared<Options>();
  line.add_option("DECK", options->deck.file,
                  "whose grid and run.folder are tried; none: a grid as even as it can be, and .");
  line.add_option("KEY.PATH=VALUE", options->deck.overrides, "in place of what the deck says; the value is YAML");
  line.add_option("--folder", options->folder, "try this folder");
  return [options]() -> int { return run_selftest(*options); };
}

}  // namespace fourfold
