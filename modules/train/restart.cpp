#include "train/restart.hpp"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/log.hpp"
#include "base/units.hpp"
#include "checkpoint/stage.hpp"
#include "deck/keys.hpp"
#include "deck/writer.hpp"
#include "train/checkpoints.hpp"
#include "train/saved_tensors.hpp"

namespace fourfold {

namespace {

void require_same(bool allowed, const std::string& what, const std::string& saved, const std::string& now,
                  const std::string& option) {
  if (allowed || saved == now) return;
  fail_all(ExitCode::input,
           fmt::format("the {} of the checkpoint and of the deck differ; set the deck back, or say {} to go "
                       "on with the deck's.\nin the checkpoint:\n{}\nin the deck:\n{}",
                       what, option, saved, now));
}

void tell(const checkpoint::LoadReport& loaded) {
  for (const std::string& note : loaded.notes) log_info("checkpoint: " + note);
}

std::string optimizer_kind(const Deck& deck) {
  return std::get<std::string>(*find_key(deck_keys(), "optimizer.kind")->get(deck));
}

// "runs/a/checkpoints/step_00000100.h5"
checkpoint::Committed named_checkpoint(const std::string& file) {
  const std::string name = std::filesystem::path(file).filename().string();
  std::int64_t step = 0;
  const std::string digits = name.size() > 8 ? name.substr(5, name.size() - 8) : "";
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool fits = name.starts_with("step_") && name.ends_with(".h5") && error == std::errc() &&
                    end == digits.data() + digits.size();
  if (!fits) fail_all(ExitCode::input, file + " is no checkpoint: its name is not step_N.h5");
  return {step, file, ""};
}

}  // namespace

std::string checkpoint_folder(const Deck& deck) {
  return deck.run.folder + "/checkpoints";
}

void prepare_folder(const Communicator& world, const Deck& deck) {
  checkpoint::run_stage(world, "run.folder cannot be used", [&] {
    if (world.rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directories(deck.run.folder, error);
    if (error) fail_one(ExitCode::storage, deck.run.folder + ": " + error.message());
  });
}

void write_resolved_deck(const Communicator& world, const Deck& deck) {
  checkpoint::run_stage(world, "the resolved deck cannot be written", [&] {
    if (world.rank() != 0) return;
    const std::string path = deck.run.folder + "/deck.yaml";
    std::ofstream file(path + ".tmp");
    file << write_deck(deck);
    file.close();
    std::error_code error;
    if (file) std::filesystem::rename(path + ".tmp", path, error);
    if (!file || error) fail_one(ExitCode::storage, path + " cannot be written");
  });
}

std::string schedule_text(const Deck& deck) {
  const RateDeck& schedule = deck.optimizer.schedule;
  std::string text = fmt::format("peak {}, warm-up {} steps, ", deck.optimizer.lr, schedule.warmup);
  if (schedule.kind == ScheduleKind::constant) return text + "then constant";
  const char* kind = schedule.kind == ScheduleKind::cosine ? "cosine" : "linear";
  return text + fmt::format("then {} to {} at step {}", kind, schedule.final, deck.run.steps);
}

namespace {

void require_same_optimizer(const Deck& deck, const checkpoint::LoadReport& loaded) {
  const auto saved = loaded.state.texts.find("optimizer");
  if (saved == loaded.state.texts.end() || saved->second == optimizer_kind(deck)) return;
  fail_all(ExitCode::input,
           fmt::format("optimizer.kind: the checkpoint {0} holds the states of {1}, the deck asks for {2}; type "
                       "optimizer.kind={1} to go on, or begin a new run of its weights: run.folder=ANOTHER "
                       "model.init.from={0}",
                       loaded.source.path, saved->second, optimizer_kind(deck)));
}

// Another optimizer has other tensors: that is said before their names are.
checkpoint::Restart load_newest_of(const Communicator& world, const Deck& deck,
                                   const std::vector<checkpoint::NamedShard>& shards,
                                   const checkpoint::LoadOptions& options) {
  try {
    return checkpoint::load_newest(world, checkpoint_folder(deck), shards, options);
  } catch (const Error& error) {
    if (error.caller() != Caller::all_ranks || error.code() != ExitCode::input) throw;
    checkpoint::LoadOptions state_alone = options;
    state_alone.skip = {"/params", "/optimizer"};
    const checkpoint::Restart state = checkpoint::load_newest(world, checkpoint_folder(deck), {}, state_alone);
    if (state.loaded) require_same_optimizer(deck, *state.loaded);
    throw;
  }
}

}  // namespace

std::optional<RunPosition> load_newest_checkpoint(const Communicator& world, const Deck& deck, const Loader& loader,
                                                  const std::vector<checkpoint::NamedShard>& shards,
                                                  const TrainOptions& options,
                                                  const checkpoint::AllocateHost& allocate) {
  checkpoint::LoadOptions load = load_options(deck);
  load.allocate = allocate;
  const checkpoint::Restart restart = load_newest_of(world, deck, shards, load);
  for (const checkpoint::Rejected& one : restart.rejected) log_warn(one.path + ": " + one.why);
  if (!restart.loaded) return std::nullopt;
  const checkpoint::LoadReport& loaded = *restart.loaded;
  tell(loaded);
  require_same(options.new_schedule, "learning-rate schedules", loaded.state.text("schedule"), schedule_text(deck),
               "--new-schedule");
  require_same(options.new_data, "data", loaded.state.text("data"), loader.fingerprint().text, "--new-data");
  // The same moments mean other things to another optimizer.
  require_same_optimizer(deck, loaded);
  RunPosition position;
  position.step = loaded.state.integer("step");
  position.cursor = loaded.state.integer("cursor");
  if (loaded.state.numbers.contains("skips")) position.skips = loaded.state.integer("skips");  // not in older ones
  if (const auto placement = loaded.state.texts.find("experts"); placement != loaded.state.texts.end())
    position.placement = placement->second;
  log_info(fmt::format("restart from step {} ({}, {}B in {:.1f} s, {}B/s)", position.step, loaded.source.path,
                       format_count(static_cast<double>(loaded.bytes)), loaded.seconds,
                       format_count(static_cast<double>(loaded.bytes) / loaded.seconds)));
  return position;
}

template <class T>
checkpoint::Committed load_parameters(Model<T>& model, const Deck& deck, const GridComms& comms,
                                      const std::string& file) {
  const Communicator& world = comms.world();
  const SavedTensors<T> parameters(model, nullptr, comms);
  checkpoint::LoadOptions options = load_options(deck);
  options.skip = {"/optimizer"};
  checkpoint::Committed source;
  if (!file.empty()) {
    const checkpoint::LoadReport loaded = checkpoint::load(world, named_checkpoint(file), parameters.shards(), options);
    tell(loaded);
    source = loaded.source;
  } else {
    const checkpoint::Restart newest =
        checkpoint::load_newest(world, checkpoint_folder(deck), parameters.shards(), options);
    for (const checkpoint::Rejected& one : newest.rejected) log_warn(one.path + ": " + one.why);
    if (!newest.loaded) fail_all(ExitCode::storage, "no committed checkpoint in " + checkpoint_folder(deck));
    tell(*newest.loaded);
    source = newest.loaded->source;
  }
  parameters.to_device();
  return source;
}

template checkpoint::Committed load_parameters<float>(Model<float>&, const Deck&, const GridComms&, const std::string&);
template checkpoint::Committed load_parameters<kernels::bf16>(Model<kernels::bf16>&, const Deck&, const GridComms&,
                                                              const std::string&);
template checkpoint::Committed load_parameters<double>(Model<double>&, const Deck&, const GridComms&,
                                                       const std::string&);

checkpoint::State checkpoint_state(const Deck& deck, const Loader& loader, const RunPosition& position,
                                   const std::string& version) {
  checkpoint::State state;
  state.numbers["cursor"] = position.cursor;
  state.numbers["skips"] = position.skips;
  state.texts["schedule"] = schedule_text(deck);
  state.texts["data"] = loader.fingerprint().text;
  state.texts["deck"] = write_deck(deck);
  state.texts["version"] = version;
  state.texts["optimizer"] = optimizer_kind(deck);
  if (!position.placement.empty()) state.texts["experts"] = position.placement;
  return state;
}

checkpoint::SaveReport save_checkpoint(const Communicator& world, const Deck& deck, const Loader& loader,
                                       const std::vector<checkpoint::NamedShard>& shards, const RunPosition& position,
                                       std::optional<std::int64_t> resumed_from, const TrainOptions& options) {
  checkpoint::SaveOptions save = save_options(deck);
  save.resumed_from = resumed_from;
  return checkpoint::save(world, checkpoint_folder(deck), position.step, shards,
                          checkpoint_state(deck, loader, position, options.version), save);
}

void save_record(const Communicator& world, const Deck& deck, const std::vector<checkpoint::NamedShard>& shards,
                 const RunPosition& position) {
  checkpoint::State state;
  state.numbers["cursor"] = position.cursor;
  state.texts["deck"] = write_deck(deck);
  checkpoint::SaveOptions save = save_options(deck);
  save.keep = 0;
  checkpoint::save(world, deck.run.folder + "/record", position.step, shards, state, save);
}

}  // namespace fourfold
