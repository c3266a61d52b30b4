#include "study/run.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

#include "base/log.hpp"
#include "base/stop_flag.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/ledger.hpp"
#include "comm/patient.hpp"
#include "comm/virtual_clock.hpp"
#include "model/describe.hpp"
#include "model/precision.hpp"
#include "study/measure.hpp"
#include "study/session.hpp"
#include "train/pipeline.hpp"
#include "train/watch_limits.hpp"
#include "train/watched.hpp"
#include "trials/table_file.hpp"

namespace fourfold::study {

namespace {

using trials::TrialState;
using Outcome = TrialState::Outcome;

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// This rank's cores: "host 0,1,".
std::string cores_here(const Launch& launch) {
  std::string text = launch.host() + " ";
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) text += std::to_string(core) + ",";
  }
  return text;
}

// Hosts with their ranks, and whether some host has more ranks (of `threads` threads) than cores. Collective; rank 0's.
void find_cores(const Communicator& group, const Launch& launch, int threads, Place& place) {
  std::map<std::string, std::set<std::string>> cores;
  std::map<std::string, int> ranks;
  for (const std::string& line : gather_strings(group, cores_here(launch))) {
    const std::size_t blank = line.find(' ');
    const std::string host = line.substr(0, blank);
    ++ranks[host];
    std::istringstream list(line.substr(blank + 1));
    for (std::string core; std::getline(list, core, ',');) cores[host].insert(core);
  }
  for (const auto& [host, count] : ranks) {
    place.hosts += fmt::format("{}{} x {}", place.hosts.empty() ? "" : ", ", host, count);
    if (count * threads > static_cast<int>(cores[host].size())) place.oversubscribed = true;
  }
}

std::int64_t nodes_of(const Communicator& group) {
  std::set<int> nodes;
  for (int rank = 0; rank < group.size(); ++rank) nodes.insert(group.node_of(rank));
  return static_cast<std::int64_t>(nodes.size());
}

// By arithmetic, as `fourfold check` says it: the largest of each over the ranks.
Predicted predict(const Deck& deck) {
  const PipelinePlan pipeline = plan_pipeline(deck);
  const ProcessGrid grid = process_grid(deck);
  Predicted most;
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    const MemoryPerRank memory = memory_of_rank(deck, pipeline, grid.coordinates(rank));
    most.parameters = std::max(most.parameters, memory.parameters);
    most.gradients = std::max(most.gradients, memory.gradients);
    most.optimizer = std::max(most.optimizer, memory.optimizer);
  }
  return most;
}

// What to do with a trial; one letter of a text that rank 0 broadcasts.
enum class Next : char { nothing = '-', fail = 'f', start = 's', go_on = 'g', too_large = 'l' };

class Runner {
 public:
  Runner(const Job& job, const Plan& plan, const std::vector<Trial>& chosen, const RunOptions& options)
      : job_(job),
        plan_(plan),
        chosen_(chosen),
        options_(options),
        world_(job.launch.world()),
        real_(world_, first_ranks(world_.size()), "world") {}

  ExitCode run() {
    if (first()) {
      states_ = trials::read_trials(plan_.study.folder);
      table_ = std::make_unique<trials::TrialTable>(plan_.study.folder, options_.part);
    }
    const std::string todo = broadcast_string(world_, first() ? what_to_do() : std::string());
    bool stop = false;
    signals_.emplace();
    for (std::size_t i = 0; i < chosen_.size() && !stop; ++i) {
      const auto next = static_cast<Next>(todo[i]);
      if (next == Next::fail) note_failed(chosen_[i], chosen_[i].problem);
      if (next != Next::start && next != Next::go_on) continue;
      stop = patient_any(world_, wants_to_stop());
      if (!stop) stop = run_one(i, next == Next::go_on);
    }
    signals_.reset();
    return finish(todo, stop);
  }

 private:
  bool first() const { return world_.rank() == 0; }
  std::string folder_of(const Trial& trial) const { return plan_.study.folder + "/trials/" + trial.key; }

  std::string what_to_do() {
    std::string todo;
    for (const Trial& trial : chosen_) todo += static_cast<char>(next_of(trial, states_[trial.key]));
    return todo;
  }

  Next next_of(const Trial& trial, const TrialState& state) const {
    if (state.outcome == Outcome::done) return Next::nothing;
    if (state.outcome == Outcome::failed && !options_.retry) return Next::nothing;
    if (!trial.deck) return Next::fail;
    if (state.died && state.attempts >= plan_.study.attempts && !options_.retry) return Next::nothing;
    if (trial.ranks > world_.size()) return Next::too_large;
    return !state.died && !state.sessions.empty() ? Next::go_on : Next::start;
  }

  void note_failed(const Trial& trial, const std::string& message) {
    if (!first()) return;
    table_->failed(trial.key, message);
    log_warn(trial.label() + ": failed: " + message);
  }

  // All ranks. Whether to stop.
  bool run_one(std::size_t index, bool goes_on) {
    const Trial& trial = chosen_[index];
    if (first()) begin(trial, goes_on);
    patient_any(world_, false);  // rank 0 has made the folder
    MemoryLedger memory;
    Pool pool(memory);
    const std::shared_ptr<void> attached = job_.attach(pool);
    bool stop = false;
    if (world_.rank() < trial.ranks) {
      signals_.reset();  // the loop has its own
      stop = train_one(index, pool);
      signals_.emplace();
    }
    return patient_any(world_, stop || wants_to_stop());
  }

  bool wants_to_stop() const {
    std::error_code ignored;
    return stop_requested() || (first() && std::filesystem::exists(plan_.study.folder + "/STOP", ignored));
  }

  void begin(const Trial& trial, bool goes_on) {
    const TrialState& state = states_[trial.key];
    std::error_code error;
    if (!goes_on) std::filesystem::remove_all(folder_of(trial), error);
    if (!error) std::filesystem::create_directories(folder_of(trial), error);
    if (error) fail_one(ExitCode::storage, folder_of(trial) + ": " + error.message());
    table_->attempt(trial.key, state.died ? state.attempts + 1 : 1, goes_on);
    log_info(fmt::format("trial {}: {}{}{}", trial.key, trial.label(), goes_on ? ", goes on" : "",
                         state.died ? fmt::format(", attempt {}", state.attempts + 1) : ""));
  }

  // The ranks of the trial. Whether it was stopped.
  bool train_one(std::size_t index, Pool& pool) {
    const Trial& trial = chosen_[index];
    Deck deck = *trial.deck;
    deck.run.folder = folder_of(trial);
    deck.run.name = plan_.study.name;
    world_.ledger().clear();
    world_.clock() = VirtualClock{};
    emulate(deck);
    const bool emulated = world_.clock().emulates();
    const Communicator group(emulated ? world_ : real_, first_ranks(trial.ranks), "world");
    // What holds up a trial is said, and the next launch makes it again.
    const std::string unwatched =
        job_.launch.watch({deck.run.folder + "/ranks",
                           [limits = deck.watchdog](std::string_view phase) { return limit_of(limits, phase); }},
                          group);
    if (!unwatched.empty()) log_warn("no watchdog: " + unwatched);
    StepWatch watch(group);
    set_log_rank(-1);  // a line a trial is enough: the run's own figures are in its folder
    ExitCode code = ExitCode::error;
    std::string problem;
    try {
      code = train_deck(deck, group, pool, watch);
    } catch (const Error& error) {
      set_log_rank(world_.rank());
      if (error.caller() != Caller::all_ranks) throw;
      problem = error.what();
      note_failed(trial, problem);
      if (operations_abandoned()) throw;  // the trials behind it are made by the next launch
    }
    set_log_rank(world_.rank());
    job_.launch.end_watch();
    if (!problem.empty()) return false;
    conclude(index, code, deck, group, watch.report(pool.ledger()));
    return code == ExitCode::again;
  }

  void emulate(const Deck& deck) const {
    if (deck.emulate.description) {
      Machine machine = *deck.emulate.description;
      // The nodes behind it belong to ranks that sleep.
      const std::int64_t per_node = machine.ranks_per_node;
      machine.nodes = std::max(machine.nodes, (world_.size() + per_node - 1) / per_node);
      job_.launch.emulate(machine);
    } else if (!deck.emulate.stage_times.empty()) {
      job_.launch.emulate(free_machine(world_.size()));
    }
  }

  ExitCode train_deck(const Deck& deck, const Communicator& group, Pool& pool, StepWatch& watch) const {
    const ProcessGrid grid = process_grid(deck);
    const int stage = grid.coordinates(group.rank()).stage;
    const GridComms comms(group, grid, rank_groups(deck, plan_pipeline(deck), stage));
    TrainOptions options;
    options.version = job_.version;
    const AroundStep around = [&watch](std::int64_t step, bool begins) { watch.around(step, begins); };
    return in_precision(deck.precision,
                        [&]<class T>() { return train_watched<T>(deck, comms, pool, options, around); });
  }

  void conclude(std::size_t index, ExitCode code, const Deck& deck, const Communicator& group,
                const SessionReport& session) {
    const Trial& trial = chosen_[index];
    Place place{nodes_of(group), false, "", job_.launch.mpi_library(), job_.version};
    find_cores(group, job_.launch, Kokkos::DefaultHostExecutionSpace().concurrency(), place);
    if (!first()) return;
    TrialState& state = states_[trial.key];
    if (code == ExitCode::again) {
      table_->session(trial.key, session_json(session));
      return;
    }
    std::vector<SessionReport> sessions;
    for (const std::string& json : state.sessions) sessions.push_back(read_session(json));
    sessions.push_back(session);
    // A session without a step, after a stop at the very end, saw nothing of one.
    std::erase_if(sessions, [](const SessionReport& each) { return each.steps == 0; });
    const trials::Row row = make_row(trial, plan_.study, sessions, deck.run.folder, place, predict(deck));
    table_->done(trial.key, row);
    log_info(fmt::format("  {:.6g} s a step ({}), {:.4g} tokens/s, loss {:.6g}", trials::number(row, "step_seconds"),
                         trials::text(row, "clock"), trials::number(row, "tokens_per_second"),
                         trials::number(row, "final_loss")));
    std::error_code ignored;
    std::filesystem::remove_all(deck.run.folder + "/checkpoints", ignored);  // its row is what a study keeps
  }

  ExitCode finish(const std::string& todo, bool stop) {
    const auto large = std::count(todo.begin(), todo.end(), static_cast<char>(Next::too_large));
    std::int64_t failed = 0;
    if (first()) {
      states_ = trials::read_trials(plan_.study.folder);
      std::vector<trials::Row> rows;
      for (const Trial& trial : plan_.trials) {
        const TrialState& state = states_[trial.key];
        if (state.outcome == Outcome::done) rows.push_back(state.row);
      }
      trials::write_table(Communicator(world_, {0}, "table"), plan_.study.folder + "/table.h5", rows, is_timing);
      std::int64_t done = 0;
      for (const Trial& trial : chosen_) {
        const std::string text = state_text(&states_[trial.key], plan_.study.attempts);
        done += text == "done" ? 1 : 0;
        if (!text.starts_with("failed")) continue;
        ++failed;
        log_warn(fmt::format("{}: {}", trial.label(), text));
      }
      log_info(fmt::format("{} of {} trials done, {} failed; fourfold report {}", done, chosen_.size(), failed,
                           plan_.study.folder));
      if (large > 0) {
        log_warn(fmt::format("{} trials want more than the {} ranks of this launch: the same command with more", large,
                             world_.size()));
      }
    }
    if (stop) {
      std::error_code ignored;
      if (first()) std::filesystem::remove(plan_.study.folder + "/STOP", ignored);
      return ExitCode::again;
    }
    return agree_any(world_, failed > 0) || large > 0 ? ExitCode::error : ExitCode::done;
  }

  const Job& job_;
  const Plan& plan_;
  const std::vector<Trial>& chosen_;
  const RunOptions& options_;
  const Communicator& world_;
  const Communicator real_;  // the world on the nodes that are there
  std::optional<StopSignals> signals_;
  std::map<std::string, TrialState> states_;   // rank 0
  std::unique_ptr<trials::TrialTable> table_;  // rank 0
};

}  // namespace

ExitCode run_trials(const Job& job, const Plan& plan, const std::vector<Trial>& chosen, const RunOptions& options) {
  return Runner(job, plan, chosen, options).run();
}

}  // namespace fourfold::study
