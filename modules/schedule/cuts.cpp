#include "schedule/cuts.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"

namespace fourfold {
namespace {

// "layers.3" of "layers.3.attention"; "" of a layer outside the blocks.
std::string block_of(const std::string& name) {
  constexpr char kBlocks[] = "layers.";
  if (name.rfind(kBlocks, 0) != 0) return "";
  return name.substr(0, name.find('.', sizeof(kBlocks) - 1));
}

// Runs of at most `most` each, as many units as fit from the front; nothing is put into a run if that would leave fewer
// units than runs. How many runs that takes (more than `parts`: it does not fit).
std::vector<Range> fill(const std::vector<std::int64_t>& costs, std::int64_t parts, std::int64_t most) {
  std::vector<Range> runs;
  const auto units = static_cast<std::int64_t>(costs.size());
  for (std::int64_t begin = 0; begin < units;) {
    const std::int64_t after = parts - static_cast<std::int64_t>(runs.size()) - 1;  // runs that must not be empty
    std::int64_t end = begin, sum = 0;
    while (end < units && (end == begin || units - end > after) && sum + costs[static_cast<std::size_t>(end)] <= most) {
      sum += costs[static_cast<std::size_t>(end++)];
    }
    runs.push_back({begin, end});
    begin = end;
  }
  return runs;
}

}  // namespace

std::vector<ModelUnit> model_units(const Graph& graph) {
  std::vector<ModelUnit> units;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const LayerCost& layer = graph.layers[i];
    const std::string block = block_of(layer.name);
    const LayerCost* before = i > 0 ? &graph.layers[i - 1] : nullptr;
    // A block's layers stay together, and the final norm with the head behind it.
    const bool same = before && (block.empty() ? before->kind == LayerKind::norm && block_of(before->name).empty()
                                               : block == block_of(before->name));
    const auto index = static_cast<std::int64_t>(i);
    if (!same) units.push_back({"", {index, index}, {}});
    ModelUnit& unit = units.back();
    unit.name = block.empty() ? layer.name : block;
    unit.layers.end = index + 1;
    unit.flops.forward += 2 * layer.product_elements + layer.attention_flops;
    unit.flops.input += 2 * layer.product_elements + 2 * layer.attention_flops;
    unit.flops.weight += 2 * layer.product_elements;
  }
  return units;
}

std::vector<Range> cut_by_cost(const std::vector<std::int64_t>& costs, std::int64_t parts) {
  const auto units = static_cast<std::int64_t>(costs.size());
  if (parts < 1 || parts > units) {
    fail_all(ExitCode::input, std::to_string(units) + " units of the model cannot be cut into " +
                                  std::to_string(parts) + " chunks, none empty; legal: 1 to " + std::to_string(units));
  }
  std::int64_t low = *std::max_element(costs.begin(), costs.end());
  std::int64_t high = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (static_cast<std::int64_t>(fill(costs, parts, middle).size()) <= parts) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return fill(costs, parts, low);
}

std::vector<Range> cut_by_counts(const std::vector<std::int64_t>& counts, std::int64_t units) {
  std::vector<Range> cuts;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    if (count < 1 || count > units - begin) {
      fail_all(ExitCode::input, "chunk " + std::to_string(cuts.size()) + " cannot have " + std::to_string(count) +
                                    " units of the model; " + std::to_string(units - begin) + " are left of " +
                                    std::to_string(units));
    }
    cuts.push_back({begin, begin + count});
    begin += count;
  }
  if (begin != units) {
    fail_all(ExitCode::input,
             "the chunks have " + std::to_string(begin) + " units of the model's " + std::to_string(units));
  }
  return cuts;
}

std::vector<PassTimes> chunk_flops(const std::vector<ModelUnit>& units, const std::vector<Range>& cuts) {
  std::vector<PassTimes> chunks;
  for (const Range& cut : cuts) {
    PassTimes sum;
    for (std::int64_t i = cut.begin; i < cut.end; ++i) {
      const PassTimes& unit = units[static_cast<std::size_t>(i)].flops;
      sum.forward += unit.forward;
      sum.input += unit.input;
      sum.weight += unit.weight;
    }
    chunks.push_back(sum);
  }
  return chunks;
}

}  // namespace fourfold
