// fourfold eval DECK: the validation loss of a checkpoint, on any number of ranks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "comm/launch.hpp"
#include "commands.hpp"
#include "data/loader.hpp"
#include "job.hpp"
#include "model/precision.hpp"
#include "train/evaluate.hpp"
#include "train/restart.hpp"
#include "train/traffic.hpp"

namespace fourfold {
namespace {

struct Arguments {
  DeckArguments deck;
  std::string checkpoint;
  std::string write_text;
};

template <class T>
ExitCode evaluate_checkpoint(const Deck& deck, const GridComms& comms, Pool& pool, const Arguments& arguments) {
  const Communicator& world = comms.world();
  const std::unique_ptr<Loader> loader = open_loader(deck, world);
  if (loader->eval_samples() == 0) {
    fail_all(ExitCode::input, "the deck has no validation data (data.valid, data.valid_fraction, data.valid_samples)");
  }
  const PipelinePlan plan = plan_pipeline(deck);
  Model<T> model(deck, comms, pool, plan.part_of(comms.here().stage));
  set_progress(0, "restart");
  const checkpoint::Committed source = load_parameters(model, deck, comms, arguments.checkpoint);
  set_progress(source.step, "evaluation");
  const EvalReport report =
      *evaluate(model, plan, *loader, comms, pool, [&](std::int64_t /*done*/, std::int64_t /*batches*/) {
        set_progress(source.step, "evaluation");  // one rank alone has no other movement
        return false;
      });
  const TrafficReport traffic = traffic_report(world);
  if (world.rank() != 0) return ExitCode::done;
  const std::string bits = report.bits_per_byte ? fmt::format(", {:.12g} bits per byte", *report.bits_per_byte) : "";
  std::printf("%s: step %lld, loss %.12g%s, %lld samples, %lld targets\n", source.path.c_str(),
              static_cast<long long>(source.step), report.loss, bits.c_str(), static_cast<long long>(report.samples),
              static_cast<long long>(report.targets));
  if (traffic.makespan) {
    std::printf("virtual clock (%s): %.6g s\n", deck.emulate.description->name.c_str(),
                static_cast<double>(*traffic.makespan) * 1e-12);
  }
  if (!arguments.write_text.empty()) {
    std::ofstream file(arguments.write_text, std::ios::binary);
    file << loader->eval_text();
    if (!file.flush()) fail_one(ExitCode::storage, arguments.write_text + " cannot be written");
  }
  return ExitCode::done;
}

}  // namespace

Run eval_command(CLI::App& line) {
  const auto arguments = std::make_shared<Arguments>();
  add_deck_arguments(line, arguments->deck);
  line.add_option("--checkpoint", arguments->checkpoint,
                  "a committed step_N.h5; without it the newest of the run's folder");
  line.add_option("--write-text", arguments->write_text,
                  "also write the evaluated text to this file, to compare with compressors");
  return [arguments]() -> int {
    return run_job(arguments->deck, Purpose::use, [&](const Deck& deck, const GridComms& comms, Pool& pool) {
      return in_precision(deck.precision,
                          [&]<class T>() { return evaluate_checkpoint<T>(deck, comms, pool, *arguments); });
    });
  };
}

}  // namespace fourfold
