#include "train/migration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.hpp"
#include "deck/derive.hpp"

namespace fourfold {

namespace {

// Numbers after `word`; none where the line is another.
std::vector<Index> numbers_after(std::istringstream& line, const std::string& word, std::size_t count) {
  std::string found;
  std::vector<Index> numbers;
  if (line >> found && found == word) {
    for (Index number = 0; numbers.size() < count && line >> number;) numbers.push_back(number);
  }
  return numbers;
}

int stage_of(const PipelinePlan& pipeline, std::int64_t unit) {
  for (std::size_t chunk = 0; chunk < pipeline.cuts.size(); ++chunk) {
    if (unit >= pipeline.cuts[chunk].begin && unit < pipeline.cuts[chunk].end)
      return pipeline.schedule.stage_of(static_cast<int>(chunk));
  }
  FOURFOLD_ASSERT(false, "each unit of the model is in a chunk");
  return 0;
}

}  // namespace

bool MigrationReport::any() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerMigration& layer) { return !layer.swaps.empty(); });
}

ExpertPlacement::ExpertPlacement(const Deck& deck, const PipelinePlan& pipeline) : deck_(deck.model.moe->migration) {
  const ProcessGrid grid = process_grid(deck);
  for (const std::int64_t layer : layers_with_experts(deck.model)) {
    const int stage = stage_of(pipeline, first_layer_unit(deck.model) + layer);
    const std::int64_t experts = deck.model.moe->experts;
    layers_.push_back({layer, ExpertPlaces(experts, grid.stage(stage).moe.expert),
                       std::vector<double>(static_cast<std::size_t>(experts))});
  }
}

void ExpertPlacement::count(const MoeReport& report) {
  FOURFOLD_ASSERT(report.size() == layers_.size(), "the report has all layers with experts");
  for (std::size_t i = 0; i < report.size(); ++i) {
    for (std::size_t e = 0; e < report[i].pairs.size(); ++e) layers_[i].loads[e] += report[i].pairs[e];
  }
}

std::vector<LayerMigration> ExpertPlacement::look() {
  std::vector<LayerMigration> migrations;
  for (Layer& layer : layers_) {
    LayerMigration& migration = migrations.emplace_back();
    migration.layer = layer.layer;
    migration.before = rank_imbalance(layer.places, layer.loads);
    migration.swaps = balance_by_swaps(layer.places, layer.loads, deck_.tau, deck_.budget);
    migration.after = rank_imbalance(layer.places, layer.loads);
    std::fill(layer.loads.begin(), layer.loads.end(), 0.0);
  }
  return migrations;
}

const ExpertPlaces& ExpertPlacement::places(std::int64_t layer) const {
  const auto found =
      std::find_if(layers_.begin(), layers_.end(), [layer](const Layer& each) { return each.layer == layer; });
  FOURFOLD_ASSERT(found != layers_.end(), "a layer with experts");
  return found->places;
}

std::string ExpertPlacement::text() const {
  std::string text;
  for (const Layer& layer : layers_) {
    std::vector<Index> loads;
    for (const double load : layer.loads) loads.push_back(static_cast<Index>(load));
    text += fmt::format("layer {} places {} loads {}\n", layer.layer, fmt::join(layer.places.place_of(), " "),
                        fmt::join(loads, " "));
  }
  return text;
}

std::vector<LayerMigration> ExpertPlacement::restore(const std::string& text) {
  std::vector<LayerMigration> migrations;
  if (text.empty()) return migrations;
  std::istringstream lines(text);
  for (Layer& layer : layers_) {
    std::string entry;
    std::getline(lines, entry);
    std::istringstream line(entry);
    const std::size_t experts = layer.loads.size();
    const std::vector<Index> number = numbers_after(line, "layer", 1);
    const std::vector<Index> places = numbers_after(line, "places", experts);
    const std::vector<Index> loads = numbers_after(line, "loads", experts);
    if (number != std::vector<Index>{layer.layer} || places.size() != experts || !is_permutation(places) ||
        loads.size() != experts) {
      fail_all(ExitCode::storage, fmt::format("the checkpoint's map of experts is not of this model: layer {} with {} "
                                              "experts is asked for, and the line is \"{}\"",
                                              layer.layer, experts, entry));
    }
    LayerMigration& migration = migrations.emplace_back();
    migration.layer = layer.layer;
    migration.swaps = layer.places.swaps_to(places);
    for (const auto& [a, b] : migration.swaps) layer.places.swap(a, b);
    layer.loads.assign(loads.begin(), loads.end());
  }
  return migrations;
}

}  // namespace fourfold
