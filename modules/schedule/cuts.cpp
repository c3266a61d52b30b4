#include "schedule/cuts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace fourfold {
namespace {

// "layers.3" of "layers.3.attention"; "" of a layer outside the blocks.
std::string block_of(const std::string& name) {
  constexpr char kBlocks[] = "layers.";
  if (name.rfind(kBlocks, 0) != 0) return "";
  return name.substr(0, name.find('.', sizeof(kBlocks) - 1));
}

__extension__ using Wide = unsigned __int128;  // squares of costs

constexpr std::int64_t kMostTicksPerFlop = 1 << 20;
constexpr double kMostSum = 2305843009213693952.0;  // 2^61, of times

// The least number in [low, high] that `holds`; `high` does, and so does what lies above one that does.
template <class Holds>
std::int64_t least(std::int64_t low, std::int64_t high, const Holds& holds) {
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

class Cutter {
 public:
  Cutter(std::int64_t units, std::int64_t chunks, const ChunkCost& cost, bool alike)
      : units_(units), chunks_(chunks), cost_(cost), alike_(alike) {}

  std::vector<Range> run() {
    std::int64_t most = 0;
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) most = std::max(most, cost_(chunk, {0, units_}));
    most_ = least(0, most, [&](std::int64_t limit) { return alike_ ? fits_from_front(limit) : fits(limit); });
    return flattest();
  }

 private:
  // Chunk after chunk takes as many units as it may, and leaves one for each behind it.
  bool fits_from_front(std::int64_t limit) const {
    std::int64_t begin = 0;
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      if (cost_(chunk, {begin, begin + 1}) > limit) return false;
      const std::int64_t last = units_ - (chunks_ - chunk - 1);
      begin = least(begin + 1, last, [&](std::int64_t end) { return cost_(chunk, {begin, end + 1}) > limit; });
    }
    return begin == units_;
  }

  // Where chunks differ taking most is not always best: the next one may be too slow for the unit that then comes.
  // Every end that each chunk can have: begin + free places.
  bool fits(std::int64_t limit) const {
    const std::int64_t free = units_ - chunks_ + 1;
    std::vector<bool> begins(static_cast<std::size_t>(free), false);
    begins[0] = true;
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      std::vector<bool> ends(static_cast<std::size_t>(free), false);
      std::int64_t next = 0;  // the first end that is not set yet
      std::int64_t reach = 0;
      for (std::int64_t i = 0; i < free; ++i) {
        if (!begins[static_cast<std::size_t>(i)]) continue;
        const std::int64_t begin = chunk + i;
        reach = std::max(reach, i);
        if (cost_(chunk, {begin, chunk + 1 + reach}) > limit) continue;
        while (reach + 1 < free && cost_(chunk, {begin, chunk + 2 + reach}) <= limit) ++reach;
        for (next = std::max(next, i); next <= reach; ++next) ends[static_cast<std::size_t>(next)] = true;
      }
      begins.swap(ends);
    }
    return begins.back();
  }

  // Of all cuts in which no chunk costs more than most_, by the best cuts of the first units into the first chunks.
  std::vector<Range> flattest() const {
    const auto free = static_cast<std::size_t>(units_ - chunks_ + 1);  // ends of a chunk: from chunk + 1
    constexpr Wide kNone = std::numeric_limits<Wide>::max();
    std::vector<Wide> sums(free, kNone), before(free, kNone);
    std::vector<std::int32_t> sizes(free * static_cast<std::size_t>(chunks_), 0);
    before[0] = 0;
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      for (std::size_t i = 0; i < free; ++i) {
        const std::int64_t end = chunk + 1 + static_cast<std::int64_t>(i);
        sums[i] = kNone;
        for (std::int64_t begin = end - 1; begin >= chunk; --begin) {
          const std::int64_t cost = cost_(chunk, {begin, end});
          if (cost > most_) break;
          const Wide sum = before[static_cast<std::size_t>(begin - chunk)];
          const Wide square = static_cast<Wide>(cost) * static_cast<Wide>(cost);
          if (sum == kNone || sum + square >= sums[i]) continue;
          sums[i] = sum + square;
          sizes[static_cast<std::size_t>(chunk) * free + i] = static_cast<std::int32_t>(end - begin);
        }
      }
      before.swap(sums);
    }
    std::vector<Range> cuts(static_cast<std::size_t>(chunks_));
    std::int64_t end = units_;
    for (std::int64_t chunk = chunks_; chunk-- > 0;) {
      const std::int64_t size =
          sizes[static_cast<std::size_t>(chunk) * free + static_cast<std::size_t>(end - chunk - 1)];
      cuts[static_cast<std::size_t>(chunk)] = {end - size, end};
      end -= size;
    }
    return cuts;
  }

  const std::int64_t units_, chunks_;
  const ChunkCost& cost_;
  const bool alike_;
  std::int64_t most_ = 0;
};

// Over the first i units.
std::vector<ForwardWork> prefix_sums(const std::vector<ModelUnit>& units) {
  std::vector<ForwardWork> sums(units.size() + 1);
  for (std::size_t i = 0; i < units.size(); ++i) {
    sums[i + 1] = sums[i];
    sums[i + 1] += units[i].work;
  }
  return sums;
}

}  // namespace

ForwardWork& ForwardWork::operator+=(const ForwardWork& other) {
  products += other.products;
  attention += other.attention;
  return *this;
}

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
    unit.work += {2 * layer.product_elements, layer.attention_flops};
  }
  return units;
}

ForwardWork work_of(const std::vector<ModelUnit>& units, const Range& cut) {
  ForwardWork sum;
  for (std::int64_t i = cut.begin; i < cut.end; ++i) sum += units[static_cast<std::size_t>(i)].work;
  return sum;
}

RankTimes::RankTimes(std::vector<RankShares> stages, double most_flops) : stages_(std::move(stages)) {
  for (RankShares& shares : stages_) {
    for (Share* share : {&shares.products, &shares.attention}) {
      const std::int64_t common = std::gcd(share->part, share->whole);
      *share = {share->part / common, share->whole / common};
      if (ticks_ > kMostTicksPerFlop || share->whole > kMostTicksPerFlop) {
        ticks_ = kMostTicksPerFlop + 1;
      } else {
        ticks_ = std::lcm(ticks_, share->whole);
      }
    }
  }
  if (ticks_ > kMostTicksPerFlop || most_flops * static_cast<double>(ticks_) > kMostSum) ticks_ = 1;
}

bool RankTimes::alike() const {
  return std::adjacent_find(stages_.begin(), stages_.end(), std::not_equal_to<>()) == stages_.end();
}

std::int64_t RankTimes::ticks(std::int64_t flops, const Share& share) const {
  const auto wide = static_cast<Wide>(flops) * static_cast<Wide>(ticks_) * static_cast<Wide>(share.part);
  const auto whole = static_cast<Wide>(share.whole);
  return static_cast<std::int64_t>((wide + whole - 1) / whole);
}

PassTimes RankTimes::operator()(int stage, const ForwardWork& work) const {
  const RankShares& shares = stages_[static_cast<std::size_t>(stage)];
  const ForwardWork own{ticks(work.products, shares.products), ticks(work.attention, shares.attention)};
  return own.flops();
}

std::vector<Range> cut_by_cost(std::int64_t units, std::int64_t chunks, const ChunkCost& cost, bool alike) {
  if (chunks < 1 || chunks > units) {
    fail_all(ExitCode::input, std::to_string(units) + " units of the model cannot be cut into " +
                                  std::to_string(chunks) + " chunks, none empty; legal: 1 to " + std::to_string(units));
  }
  return Cutter(units, chunks, cost, alike).run();
}

std::vector<Range> cut_by_cost(const std::vector<std::int64_t>& costs, std::int64_t chunks) {
  std::vector<std::int64_t> sums(costs.size() + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  const ChunkCost cost = [&](std::int64_t, const Range& units) {
    return sums[static_cast<std::size_t>(units.end)] - sums[static_cast<std::size_t>(units.begin)];
  };
  return cut_by_cost(std::ssize(costs), chunks, cost, true);
}

std::vector<Range> cut_by_cost(const std::vector<ModelUnit>& units, const std::vector<int>& stage_of_chunk,
                               const RankTimes& times) {
  const std::vector<ForwardWork> sums = prefix_sums(units);
  const ChunkCost cost = [&](std::int64_t chunk, const Range& cut) {
    const ForwardWork &before = sums[static_cast<std::size_t>(cut.begin)],
                      &end = sums[static_cast<std::size_t>(cut.end)];
    const ForwardWork work{end.products - before.products, end.attention - before.attention};
    return times(stage_of_chunk[static_cast<std::size_t>(chunk)], work).total();
  };
  return cut_by_cost(std::ssize(units), std::ssize(stage_of_chunk), cost, times.alike());
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

}  // namespace fourfold
