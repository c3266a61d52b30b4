#include "train/moe_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "model/held.hpp"

namespace fourfold {

namespace {

constexpr std::size_t kSums = 6;  // of a layer, before its experts' pairs: tokens, dropped, entropy, aux, z, received

double quotient(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

// Every pair of token and expert that was kept came to one rank. sums: as in moe_report. A step whose router is not
// finite is left out anyway.
void check_conservation(std::int64_t layer, const double* sums, double top_k) {
  const double kept = sums[0] * top_k - sums[1];
  if (sums[5] == kept || !std::isfinite(sums[2] + sums[4])) return;
  fail_all(
      ExitCode::error,
      fmt::format("model.moe: the experts of layer {} received {:.0f} pairs of token and expert, but {:.0f} tokens "
                  "asked for {:.0f} each and {:.0f} were dropped, which leaves {:.0f}: the dispatcher lost or doubled "
                  "rows. Type another model.moe.dispatcher (alltoall, allgather, hierarchical), and report this",
                  layer, sums[5], sums[0], top_k, sums[1], kept));
}

}  // namespace

std::vector<std::int64_t> layers_with_experts(const ModelDeck& model) {
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; model.moe && layer < model.layers; ++layer) {
    if (has_experts(model, layer)) layers.push_back(layer);
  }
  return layers;
}

MoeReport moe_report(const Communicator& world, const ModelDeck& model,
                     const std::vector<std::pair<std::int64_t, MoeCounts>>& mine) {
  const std::vector<std::int64_t> layers = layers_with_experts(model);
  MoeReport report;
  if (layers.empty()) return report;
  const auto experts = static_cast<std::size_t>(model.moe->experts);
  const std::size_t size = kSums + experts;
  std::vector<double> sums(layers.size() * size);
  for (const auto& [layer, counts] : mine) {
    const auto place = std::find(layers.begin(), layers.end(), layer);
    FOURFOLD_ASSERT(place != layers.end() && counts.pairs.size() == experts, "the counts are of a layer with experts");
    double* const at = sums.data() + static_cast<std::size_t>(place - layers.begin()) * size;
    const double own[kSums] = {counts.tokens, counts.dropped, counts.entropy, counts.aux, counts.z, counts.received};
    std::copy(own, own + kSums, at);
    std::copy(counts.pairs.begin(), counts.pairs.end(), at + kSums);
  }
  all_reduce_sum<double>(world, sums, Summation::deterministic, Phase::update);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double* const at = sums.data() + i * size;
    check_conservation(layers[i], at, static_cast<double>(model.moe->top_k));
    const double pairs = std::accumulate(at + kSums, at + size, 0.0);
    const double most = *std::max_element(at + kSums, at + size);
    report.push_back({layers[i], at[3], at[4], quotient(at[1], pairs),
                      quotient(most * static_cast<double>(experts), pairs), quotient(at[2], at[0]),
                      std::vector<double>(at + kSums, at + size)});
  }
  return report;
}

double aux_loss(const MoeReport& report) {
  double sum = 0;
  for (const MoeLayerReport& layer : report) sum += layer.aux;
  return sum;
}

double z_loss(const MoeReport& report) {
  double sum = 0;
  for (const MoeLayerReport& layer : report) sum += layer.z;
  return sum;
}

}  // namespace fourfold
