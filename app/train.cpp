// fourfold train DECK: trains from the newest committed checkpoint of the run's folder, or from the start.
#include <CLI/CLI.hpp>

#include <memory>

#include "base/timer.hpp"
#include "commands.hpp"
#include "job.hpp"
#include "model/precision.hpp"
#include "train/loop.hpp"

namespace fourfold {

Run train_command(CLI::App& line) {
  struct Arguments {
    DeckArguments deck;
    TrainOptions options;
  };
  const auto arguments = std::make_shared<Arguments>();
  add_deck_arguments(line, arguments->deck);
  line.add_option("--stop-at-step", arguments->options.stop_at_step, "save after this step and leave with exit code 75")
      ->check(in_range(std::int64_t{1}, std::int64_t{1} << 60));
  line.add_flag("--new-schedule", arguments->options.new_schedule,
                "go on with the deck's learning rate although the checkpoint was made with another");
  line.add_flag("--new-data", arguments->options.new_data,
                "go on with the deck's data although the checkpoint was made with others");
  line.add_flag("--calibrate", arguments->options.calibrate,
                "measure the rate of the step's own products first: the ceiling that speeds are compared with");
  arguments->options.started_ns = now_ns();  // arguments are declared first thing
  arguments->options.version = FOURFOLD_VERSION;
  return [arguments]() -> int {
    return run_job(arguments->deck, Purpose::train, [&](const Deck& deck, const GridComms& comms, Pool& pool) {
      return in_precision(deck.precision, [&]<class T>() { return train<T>(deck, comms, pool, arguments->options); });
    });
  };
}

}  // namespace fourfold
