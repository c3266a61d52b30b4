#include "study/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files.hpp"
#include "deck/derive.hpp"
#include "deck/names.hpp"
#include "deck/writer.hpp"

namespace fourfold::study {

namespace {

using Json = nlohmann::ordered_json;

std::string machine_text(const std::optional<Machine>& machine) {
  if (!machine) return "none";
  return fmt::format("{} {} {} {} {} {} {} {} {}", machine->nodes, machine->ranks_per_node, machine->inside.latency,
                     machine->inside.bandwidth, machine->between.latency, machine->between.bandwidth, machine->fp64,
                     machine->fp32, machine->bf16) +
         fmt::format(" {}", machine->memory_bandwidth);
}

// All that says which trial it is, but not where its files are.
std::string canonical(const Trial& trial) {
  std::string text = trial.label() + "\n";
  if (!trial.deck) {
    for (const auto& [key, value] : trial.overrides) text += key + "=" + value + "\n";
    return text + trial.problem;
  }
  Deck deck = *trial.deck;
  deck.run.name = "trial";
  deck.run.folder = "trial";
  return text + write_deck(deck) + machine_text(deck.emulate.description);
}

// Every combination of the swept values, the last key fastest.
std::vector<std::vector<Override>> combinations(const std::vector<SweptKey>& sweep) {
  std::vector<std::vector<Override>> all{{}};
  for (const SweptKey& key : sweep) {
    std::vector<std::vector<Override>> longer;
    for (const auto& before : all) {
      for (const std::string& value : key.values) {
        longer.push_back(before);
        longer.back().emplace_back(key.path, value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string value_of(const std::vector<Override>& overrides, const std::string& key) {
  for (const auto& [path, value] : overrides) {
    if (path == key) return value;
  }
  return "";
}

class Planner {
 public:
  Planner(const StudyRead& read, const Resolve& resolve) : read_(read), resolve_(resolve) {}

  Trial trial(int ranks, const std::string& strategy, const std::vector<Override>& swept, std::int64_t seed,
              std::int64_t repeat) const {
    Trial trial;
    trial.ranks = ranks;
    trial.strategy = strategy;
    trial.swept = swept;
    trial.seed = seed;
    trial.repeat = repeat;
    trial.overrides = swept;
    const StudyDeck& study = read_.study;
    const bool weak = study.kind == StudyKind::scaling && study.scaling == Scaling::weak;
    std::int64_t global = read_.deck.batch.global;
    if (const std::string given = value_of(swept, "batch.global"); !given.empty()) global = std::stoll(given);
    if (weak) {
      const std::int64_t first = study.ranks.front();
      if (global * ranks % first != 0) {
        trial.problem = fmt::format("weak scaling: a batch of {} x {} / {} is no whole number", global, ranks, first);
      }
      global = global * ranks / first;
      trial.overrides.emplace_back("batch.global", std::to_string(global));
    }
    if (strategy != "deck") {
      for (Override& one : strategy_overrides(strategy, ranks, global)) trial.overrides.push_back(std::move(one));
    }
    trial.overrides.emplace_back("run.seed", std::to_string(seed));
    if (trial.problem.empty()) std::tie(trial.deck, trial.problem) = resolve_(words(trial), ranks);
    trial.key = trials::trial_key(canonical(trial));
    return trial;
  }

 private:
  // What the trial sets itself is taken out of the command line's: the reader refuses a key that is given twice.
  std::vector<std::string> words(const Trial& trial) const {
    std::vector<std::string> words;
    for (const std::string& word : read_.overrides) {
      if (value_of(trial.overrides, word.substr(0, word.find('='))).empty()) words.push_back(word);
    }
    for (const auto& [key, value] : trial.overrides) words.push_back(key + "=" + value);
    return words;
  }

  const StudyRead& read_;
  const Resolve& resolve_;
};

bool meets(const Trial& trial, const std::string& condition) {
  const std::size_t equals = condition.find('=');
  const std::string name = condition.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : condition.substr(equals + 1);
  if (name == "ranks") return std::to_string(trial.ranks) == value;
  if (name == "strategy") return trial.strategy == value;
  if (name == "seed") return std::to_string(trial.seed) == value;
  if (name == "repeat") return std::to_string(trial.repeat) == value;
  fail_all(ExitCode::input, "--only " + condition + ": wanted ranks=N, strategy=NAME, seed=N or repeat=N");
}

}  // namespace

std::string Trial::point() const {
  std::string text = strategy;
  for (const auto& [path, value] : swept) text += fmt::format(", {} {}", path, value);
  return text;
}

std::string Trial::label() const {
  return fmt::format("{} {}, {}, seed {}, repeat {}", ranks, ranks == 1 ? "rank" : "ranks", point(), seed, repeat);
}

std::string Trial::layout() const {
  if (!deck) return "";
  const ParallelDeck& parallel = deck->parallel;
  if (!parallel.stage_grids.empty()) return fmt::format("{} stages with grids of their own", parallel.stages);
  const DenseShape& dense = parallel.dense;
  std::string text;
  const auto axis = [&](const char* name, int extent) {
    if (extent > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, extent);
  };
  axis("stages", parallel.stages);
  axis("data", dense.data);
  axis("depth", dense.depth);
  axis("row", dense.row);
  axis("col", dense.col);
  if (parallel.moe) axis("expert", parallel.moe->expert);
  if (text.empty()) text = "one rank";
  if (parallel.stages > 1) text += ", " + parallel.schedule;
  return text;
}

Plan make_plan(const StudyRead& read, std::int64_t launched, const Resolve& resolve) {
  Plan plan;
  plan.study = read.study;
  if (plan.study.ranks.empty()) plan.study.ranks = {launched};
  std::vector<std::string> strategies = read.study.strategies;
  if (strategies.empty()) strategies = {"deck"};
  StudyRead with_ranks = read;
  with_ranks.study.ranks = plan.study.ranks;
  const Planner planner(with_ranks, resolve);
  for (const std::int64_t ranks : plan.study.ranks) {
    for (const std::string& strategy : strategies) {
      for (const std::vector<Override>& swept : combinations(plan.study.sweep)) {
        for (const std::int64_t seed : plan.study.seeds) {
          for (std::int64_t repeat = 1; repeat <= plan.study.repeats; ++repeat) {
            plan.trials.push_back(planner.trial(static_cast<int>(ranks), strategy, swept, seed, repeat));
          }
        }
      }
    }
  }
  return plan;
}

std::vector<Trial> select(const Plan& plan, const std::vector<std::string>& only) {
  std::vector<Trial> chosen;
  for (const Trial& trial : plan.trials) {
    if (std::all_of(only.begin(), only.end(), [&](const std::string& each) { return meets(trial, each); })) {
      chosen.push_back(trial);
    }
  }
  if (chosen.empty()) fail_all(ExitCode::input, "no trial of the study is of --only " + join(only));
  return chosen;
}

std::string plan_json(const Plan& plan, const std::string& deck_text, const std::string& command) {
  const StudyDeck& study = plan.study;
  static const char* const kKinds[] = {"sweep", "scaling", "strategies"};
  Json json{{"name", study.name},
            {"kind", kKinds[static_cast<int>(study.kind)]},
            {"scaling", study.scaling == Scaling::weak ? "weak" : "strong"},
            {"attempts", study.attempts},
            {"deck", deck_text},
            {"command", command}};
  json["swept"] = Json::array();
  for (const SweptKey& key : study.sweep) json["swept"].push_back(key.path);
  json["trials"] = Json::array();
  for (const Trial& trial : plan.trials) {
    json["trials"].push_back(Json{{"trial", trial.key},
                                  {"ranks", trial.ranks},
                                  {"strategy", trial.strategy},
                                  {"point", trial.point()},
                                  {"label", trial.label()}});
  }
  return json.dump(1) + "\n";
}

ListedStudy read_plan(const std::string& file) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
  const Json json = Json::parse(read_text_file(file, kMostBytes), nullptr, false);
  ListedStudy study;
  try {
    study.name = json.at("name").get<std::string>();
    study.kind = json.at("kind").get<std::string>();
    study.scaling = json.at("scaling").get<std::string>();
    study.deck = json.at("deck").get<std::string>();
    study.command = json.at("command").get<std::string>();
    study.attempts = json.at("attempts").get<std::int64_t>();
    study.swept = json.at("swept").get<std::vector<std::string>>();
    for (const Json& trial : json.at("trials")) {
      study.trials.push_back({trial.at("trial").get<std::string>(), trial.at("label").get<std::string>(),
                              trial.at("strategy").get<std::string>(), trial.at("point").get<std::string>(),
                              trial.at("ranks").get<std::int64_t>()});
    }
  } catch (const Json::exception& error) {
    fail_one(ExitCode::input, file + ": is not what fourfold study writes: " + error.what());
  }
  return study;
}

std::string state_text(const trials::TrialState* state, std::int64_t attempts) {
  using Outcome = trials::TrialState::Outcome;
  if (state == nullptr) return "missing";
  if (state->outcome == Outcome::done) return "done";
  if (state->outcome == Outcome::failed) return "failed: " + state->message;
  if (state->died && state->attempts >= attempts) {
    return fmt::format("failed: the job died in it {} times", state->attempts);
  }
  if (state->died) return "missing (the job died in it, or it is running)";
  return state->sessions.empty() ? "missing" : "stopped after a save";
}

}  // namespace fourfold::study
