// fourfold study DECK: the runs that the deck's `study:` block asks for, on the ranks of this launch or as Slurm jobs.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include "base/files.hpp"
#include "base/log.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/launch.hpp"
#include "commands.hpp"
#include "deck_file.hpp"
#include "devices.hpp"
#include "job.hpp"
#include "kernels/gemm.hpp"
#include "pipeline.hpp"
#include "study/job_scripts.hpp"
#include "study/plan.hpp"
#include "study/run.hpp"

namespace fourfold {
namespace {

struct Options {
  DeckArguments deck;
  std::vector<std::string> only;
  std::string sbatch;
  bool list = false, retry = false, keys = false;
};

// What the program does with a trial's deck before it trains: the deck, or the first fault.
study::Resolve resolver(const std::string& text, const std::string& file, const LoadText& load) {
  return [text, file, load](const std::vector<std::string>& overrides, std::int64_t ranks) {
    ReadResult read = read_deck_of_study(text, file, overrides, ranks, load);
    if (read.errors.empty()) read.errors = schedule_list_faults(read, file);
    if (read.errors.empty()) return std::make_pair(std::optional<Deck>(std::move(read.deck)), std::string());
    const DeckError& fault = read.errors.front();
    std::string problem = (fault.path.empty() ? "" : fault.path + ": ") + fault.message;
    if (read.errors.size() > 1) problem += fmt::format(" (and {} more faults)", read.errors.size() - 1);
    return std::make_pair(std::optional<Deck>(), problem);
  };
}

// Each file is read once.
LoadText remembered(LoadText load) {
  const auto seen = std::make_shared<std::map<std::string, LoadedText>>();
  return [load = std::move(load), seen](const std::string& file) {
    const auto found = seen->find(file);
    return found != seen->end() ? found->second : (*seen)[file] = load(file);
  };
}

std::string command_text(const DeckArguments& arguments) {
  std::string text = "fourfold study " + arguments.file;
  for (const std::string& word : arguments.overrides) text += " " + word;
  return text;
}

std::optional<study::Plan> plan_of(const Options& options, const LoadedText& loaded, std::int64_t launched, bool speaks,
                                   const LoadText& load) {
  const StudyRead read =
      read_study(loaded.text, options.deck.file, options.deck.overrides, study::strategy_names(), load);
  if (read.errors.empty()) return study::make_plan(read, launched, resolver(loaded.text, options.deck.file, load));
  if (speaks) std::fputs(numbered_list(read.errors).c_str(), stderr);
  return std::nullopt;
}

void make_folder(const study::Plan& plan, const std::string& deck_text, const std::string& command) {
  std::error_code error;
  std::filesystem::create_directories(plan.study.folder, error);
  if (error) fail_one(ExitCode::storage, plan.study.folder + ": " + error.message());
  const std::string file = plan.study.folder + "/study.json";
  const std::string text = study::plan_json(plan, deck_text, command);
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
  if (std::filesystem::exists(file) && read_text_file(file, kMostBytes) == text) return;
  // Parts of a study may begin together: each writes a file of its own, and they are equal.
  const std::string own = file + "." + std::to_string(getpid()) + "-" + std::to_string(now_ns());
  NewFile fresh(own);
  fresh.append(text);
  fresh.finish();
  std::filesystem::rename(own, file, error);
  if (error) fail_one(ExitCode::storage, file + ": " + error.message());
}

LoadedText text_of(const std::string& file) {
  if (file.empty()) fail_all(ExitCode::input, "a DECK is missing");
  return LoadedText{read_deck_file(file).text, ""};
}

// Without MPI.
int list(const Options& options) {
  const LoadedText loaded = text_of(options.deck.file);
  const std::optional<study::Plan> plan = plan_of(options, loaded, 1, true, remembered(load_text));
  if (!plan) return static_cast<int>(ExitCode::input);
  const auto states = trials::read_trials(plan->study.folder);
  for (const study::Trial& trial : study::select(*plan, options.only)) {
    const auto found = states.find(trial.key);
    const trials::TrialState* known = found == states.end() ? nullptr : &found->second;
    std::string state = study::state_text(known, plan->study.attempts);
    if (state == "missing" && !trial.deck) state = "will fail: " + trial.problem;
    std::fputs(fmt::format("{}  {}: {}\n", trial.key, trial.label(), state).c_str(), stdout);
  }
  return static_cast<int>(ExitCode::done);
}

int write_scripts(const Options& options) {
  const LoadedText loaded = text_of(options.deck.file);
  const std::optional<study::Plan> plan = plan_of(options, loaded, 1, true, remembered(load_text));
  if (!plan) return static_cast<int>(ExitCode::input);
  make_folder(*plan, loaded.text, command_text(options.deck));
  const std::string submit = write_job_scripts(*plan, options.sbatch, options.deck.file, options.deck.overrides);
  std::fputs(("bash " + submit + "\n").c_str(), stdout);
  return static_cast<int>(ExitCode::done);
}

// "ranks=4" as a part of a file's name.
std::string part_name(const std::vector<std::string>& only) {
  std::string name;
  for (const std::string& condition : only) name += (name.empty() ? "" : ".") + condition;
  return name;
}

int run_study(const Options& options) {
  if (options.deck.file.empty()) fail_all(ExitCode::input, "a DECK is missing");
  // 1. Launch.
  const Launch launch = launch_ranks();
  const Communicator& world = launch.world();
  set_log_rank(world.rank());
  return run_guarded(launch, [&]() -> int {
    // 2. The deck and all trials, before anything is allocated.
    const LoadText load = remembered([&world](const std::string& file) { return shared_text(world, file); });
    const LoadedText loaded = load(options.deck.file);
    if (!loaded.problem.empty()) {
      fail_all(ExitCode::input, "cannot read the deck " + options.deck.file + ": " + loaded.problem);
    }
    const std::optional<study::Plan> plan = plan_of(options, loaded, world.size(), world.rank() == 0, load);
    if (!plan) return static_cast<int>(ExitCode::input);
    const std::vector<study::Trial> chosen = study::select(*plan, options.only);
    if (world.rank() == 0) make_folder(*plan, loaded.text, command_text(options.deck));

    // 3. Kokkos and what serves its products, once for all trials.
    const Devices devices(world);
    const auto kokkos = devices.start_kokkos();
    kernels::set_product_threads(Kokkos::DefaultHostExecutionSpace().concurrency());
    set_region_hooks(Devices::region_hooks());
    SharedMemoryUse shared = SharedMemoryUse::automatic;
    for (const study::Trial& trial : plan->trials) {
      if (trial.deck) shared = trial.deck->comm.shared_memory;  // it cannot be swept
    }
    bool asked = false;
    const auto attach = [&](Pool& pool) {
      const bool goes_without = asked && launch.shared_memory() == nullptr;
      asked = true;
      return devices.attach(launch, pool, goes_without ? SharedMemoryUse::off : shared);
    };

    // 4. The trials.
    return static_cast<int>(
        study::run_trials({launch, attach, FOURFOLD_VERSION}, *plan, chosen, {part_name(options.only), options.retry}));
  });
}

}  // namespace

Run study_command(CLI::App& line) {
  const auto options = std::make_shared<Options>();
  add_deck_arguments(line, options->deck);
  line.add_flag("--list", options->list, "show the trials, and which are done, failed and missing; runs nothing");
  line.add_option("--only", options->only, "a part: ranks=N, strategy=NAME, seed=N or repeat=N; several: all hold")
      ->allow_extra_args(false);
  line.add_flag("--retry", options->retry, "run trials that failed once more");
  line.add_option("--sbatch", options->sbatch, "write job scripts for Slurm into this folder; runs nothing");
  line.add_flag("--keys", options->keys, "print every key of the study block, without a deck");
  return [options]() -> int {
    const bool without_ranks = options->list || options->keys || !options->sbatch.empty();
    if (without_ranks && is_further_copy()) return static_cast<int>(ExitCode::done);
    if (options->keys) {
      std::fputs(write_study_keys().c_str(), stdout);
      return static_cast<int>(ExitCode::done);
    }
    if (options->list) return list(*options);
    return options->sbatch.empty() ? run_study(*options) : write_scripts(*options);
  };
}

}  // namespace fourfold
