// fourfold check DECK [--ranks N] [--schedule]: every fault of the deck at once, or the resolved deck and what it
// costs, and its pipeline drawn. No MPI.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/units.hpp"
#include "commands.hpp"
#include "data/file_list.hpp"
#include "deck/derive.hpp"
#include "deck/writer.hpp"
#include "deck_file.hpp"
#include "grid/process_grid.hpp"
#include "machine/hosts.hpp"
#include "model/describe.hpp"
#include "model/precision.hpp"
#include "pipeline.hpp"

namespace fourfold {
namespace {

constexpr int kMostRanksShown = 64;  // without --all-ranks

std::string bytes_text(std::int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 5; ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes)
                   : fmt::format("{} B ({:.1f} {})", format_thousands(bytes), value, units[unit]);
}

// Of every rank: of the machine file, else of the Slurm allocation around this process, else none.
std::vector<std::string> hosts_of(const Deck& deck, int ranks) {
  const std::optional<Machine>& machine = deck.emulate.description;
  if (!machine) return slurm_hosts([](const char* name) { return std::getenv(name); }, ranks);
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto node = static_cast<std::size_t>(machine->node_of(rank));
    hosts.push_back(machine->hosts.empty() ? fmt::format("{} node {}", machine->name, node) : machine->hosts[node]);
  }
  return hosts;
}

std::string equal_stages_text(const Deck& deck, const ProcessGrid& grid) {
  const StageShape stage = stage_shape(deck);
  const DenseShape& dense = stage.dense;
  const MoeShape& moe = stage.moe;
  return fmt::format(
      "grid: {} ranks = stages {} x (data {} x depth {} x row {} x col {}) = stages {} x (replica {} x expert {} x row "
      "{} "
      "x col {})\n",
      grid.ranks(), grid.stages(), dense.data, dense.depth, dense.row, dense.col, grid.stages(), moe.replica,
      moe.expert, moe.row, moe.col);
}

// A line a stage, and what crosses between two of them.
std::string own_grids_text(const Deck& deck, const ProcessGrid& grid) {
  const auto line = [&](int stage) {
    const DenseShape& dense = deck.parallel.grid(stage);
    return fmt::format("  stage {}: {} {} = data {} x depth {} x row {} x col {}; micro-batches of {} cut into {}\n",
                       stage, dense.size(), dense.size() == 1 ? "rank" : "ranks", dense.data, dense.depth, dense.row,
                       dense.col, deck.batch.global / deck.batch.micro_batches, deck.parallel.coordinates(dense));
  };
  std::string text = fmt::format("grid: {} ranks in {} stages with grids of their own\n", grid.ranks(), grid.stages());
  for (int stage = 0; stage < grid.stages(); ++stage) text += line(stage);
  const auto bytes = in_precision(deck.precision, []<class T>() { return static_cast<std::int64_t>(sizeof(T)); });
  for (const StageCrossing& crossing : stage_crossings(deck, plan_pipeline(deck))) {
    text += fmt::format("hand-off, stage {} to {}: {} of a micro-batch forwards, {} back\n", crossing.from, crossing.to,
                        bytes_text(crossing.forwards * bytes), bytes_text(crossing.backwards * bytes));
  }
  return text;
}

std::string grid_text(const Deck& deck, bool all_ranks) {
  const ProcessGrid grid = process_grid(deck);
  const std::string text =
      deck.parallel.stage_grids.empty() ? equal_stages_text(deck, grid) : own_grids_text(deck, grid);
  const bool shorter = !all_ranks && grid.ranks() > kMostRanksShown;
  return text + grid.table(shorter ? kMostRanksShown : std::max(grid.ranks(), 4), hosts_of(deck, grid.ranks())) +
         (shorter ? "(every rank with --all-ranks)\n" : "");
}

std::string cost_text(const Deck& deck) {
  const Graph graph = describe(deck.model);
  const PipelinePlan plan = plan_pipeline(deck);
  const MemoryPerRank memory = memory_per_rank(deck, plan);
  const std::int64_t attention = 3 * graph.sum(&LayerCost::attention_flops);
  const std::int64_t tokens = deck.batch.global * graph.tokens_per_sample;
  std::string text;
  text += fmt::format("parameters: {} ({} in matrices, {} in experts, {} in vectors)\n",
                      format_thousands(graph.parameters()), format_thousands(graph.sum(&LayerCost::matrix_parameters)),
                      format_thousands(graph.sum(&LayerCost::expert_parameters)),
                      format_thousands(graph.sum(&LayerCost::vector_parameters)));
  text += fmt::format("matrix elements active for one token: {} (look-ups not counted, the head counted)\n",
                      format_thousands(graph.sum(&LayerCost::product_elements)));
  text += fmt::format("model FLOPs per token: {} = 6 x active matrix elements + {} of causal attention\n",
                      format_thousands(graph.training_flops()), format_thousands(attention));
  text +=
      fmt::format("one step: {} samples, {} tokens, {:.4g} model FLOPs\n", format_thousands(deck.batch.global),
                  format_thousands(tokens), static_cast<double>(graph.training_flops()) * static_cast<double>(tokens));
  const std::int64_t again = recomputed_work(deck, graph, plan, {0, unit_count(deck.model)}).total();
  if (again > 0) {
    text += fmt::format("run again for backward: {} FLOPs per token, {:.1f} % of the model's; no model FLOPs\n",
                        format_thousands(again),
                        100 * static_cast<double>(again) / static_cast<double>(graph.training_flops()));
  }
  text += fmt::format("memory per rank: {}\n", bytes_text(memory.total()));
  text += fmt::format("  parameters:  {}\n", bytes_text(memory.parameters));
  text += fmt::format("  gradients:   {}\n", bytes_text(memory.gradients));
  text += fmt::format("  optimizer:   {}\n", bytes_text(memory.optimizer));
  text += fmt::format("  activations: {} kept for backward; buffers not counted\n", bytes_text(memory.activations));
  if (again > 0 || plan.offloads()) text += activations_text(deck, plan);
  if (memory.update > 0) {
    text += fmt::format("  update:      {} while it lasts, without activations\n", bytes_text(memory.update));
  }
  if (memory.migration > 0) {
    text += fmt::format("  migration:   at most {} while experts change ranks, without activations\n",
                        bytes_text(memory.migration));
  }
  const CheckpointDeck& checkpoint = deck.checkpoint;
  const bool async = checkpoint.mode == SaveMode::async;
  text += fmt::format("checkpoint: {}\n", bytes_text(checkpoint_bytes(deck, graph)));
  text += fmt::format("  a save takes {} more of the host's memory: {}\n",
                      bytes_text(async ? memory.saved_copy : checkpoint.transfer_bytes),
                      async ? "a copy of what a rank writes" : "the buffer of checkpoint.transfer_bytes");
  return text;
}

// As YAML comments, so that the whole output is a deck.
std::string as_comments(const std::string& text) {
  std::istringstream lines(text);
  std::string result;
  std::string line;
  while (std::getline(lines, line)) result += "# " + line + "\n";
  return result;
}

// Decks are checked where their files need not be (a login node, another folder): what is not found is said, on
// standard error.
void warn_of_files(const Deck& deck) {
  const auto look = [](const std::string& key, const std::string& entry) {
    std::error_code ignored;
    std::string why;
    try {
      const std::string path = expand_files({entry}, key).front();
      if (std::filesystem::exists(path, ignored)) return;
      const bool megatron =
          std::filesystem::exists(path + ".bin", ignored) || std::filesystem::exists(path + ".idx", ignored);
      if (megatron) return;
      why = "no such file";
    } catch (const Error&) {
      why = "no file matches";
    }
    std::fputs(fmt::format("fourfold: warning: {}: {}: {} here ({}); train will refuse it there too, unless it is "
                           "started where the file is\n",
                           key, entry, why, std::filesystem::current_path(ignored).string())
                   .c_str(),
               stderr);
  };
  if (deck.data.kind == DataKind::files) {
    for (const std::string& entry : deck.data.train) look("data.train", entry);
    for (const std::string& entry : deck.data.valid) look("data.valid", entry);
  }
  if (deck.model.init.from != "none") look("model.init.from", deck.model.init.from);
}

struct Options {
  DeckArguments deck;
  std::optional<std::int64_t> ranks;
  bool all_keys = false, all_ranks = false, schedule = false;
  std::string svg;  // a file, or none
};

int check(const Options& options) {
  const DeckArguments& arguments = options.deck;
  const std::optional<std::int64_t> ranks = options.ranks;
  const DeckText text = read_deck_file(arguments.file);
  const std::optional<Deck> deck = checked_deck(text, arguments.overrides, ranks, true, load_text);
  if (!deck) return static_cast<int>(ExitCode::input);

  warn_of_files(*deck);
  std::string figures;
  Deck settled = *deck;
  if (!deck_ranks(settled)) {
    settled.parallel.dense.data = 1;
    derive_grid(settled, std::nullopt);
    figures = "parallel.dense.data is what the ranks leave: 1 below; give --ranks N for a number of ranks\n";
  }
  figures += grid_text(settled, options.all_ranks) + cost_text(settled);
  if (options.schedule || !options.svg.empty()) {
    const Pipeline pipeline = pipeline_of(settled);
    if (options.schedule) figures += pipeline_text(pipeline);
    if (!options.svg.empty()) {
      NewFile svg(options.svg);
      svg.append(draw_svg(pipeline.schedule, evaluate(pipeline.schedule, pipeline.durations), pipeline.unit));
      svg.finish();
    }
  }
  std::fputs((write_deck(*deck) + "\n" + as_comments(figures)).c_str(), stdout);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

Run check_command(CLI::App& line) {
  const auto options = std::make_shared<Options>();
  add_deck_arguments(line, options->deck);
  line.add_option("--ranks", options->ranks, "the number of ranks of the job")->check(in_range(1, 1 << 30));
  line.add_flag("--all-ranks", options->all_ranks, "list every rank, however many there are");
  line.add_flag("--schedule", options->schedule, "draw the pipeline: stages, operations, idle time");
  line.add_option("--schedule-svg", options->svg, "draw it into this SVG file");
  line.add_flag("--all-keys", options->all_keys, "print every key with its default and a comment, without a deck");
  return [options]() -> int {
    if (is_further_copy()) return static_cast<int>(ExitCode::done);
    if (options->all_keys) {
      std::fputs(write_all_keys().c_str(), stdout);
      return static_cast<int>(ExitCode::done);
    }
    if (options->deck.file.empty()) fail_all(ExitCode::input, "check wants a DECK (or --all-keys)");
    return check(*options);
  };
}

}  // namespace fourfold
