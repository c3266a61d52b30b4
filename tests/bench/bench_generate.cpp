// Generation, batch 1, beside its bound: every weight is read once a token, at the rate at which this machine reads
// memory.
//
//   [mpirun -n N] bench_generate DECK [KEY=VALUE...]     of the deck's model with its initial weights, in fp32
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/timer.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "deck/derive.hpp"
#include "deck/reader.hpp"
#include "infer/generate.hpp"
#include "kernels/gemm.hpp"
#include "kernels/lanes.hpp"
#include "model/describe.hpp"
#include "model/precision.hpp"

namespace fourfold {
namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// Bytes per second of all ranks together, from arrays far beyond the caches.
double read_rate(const Communicator& world, Pool& pool) {
  constexpr Index kElements = Index{1} << 26;
  const Tensor<float> values(pool, MemoryTag::buffers, 1, kElements);
  Kokkos::deep_copy(values.vector(), 1.0f);
  barrier(world, Phase::setup);
  std::vector<double> seconds;
  double total = 0;
  for (int repeat = 0; repeat < 7; ++repeat) {
    const Stopwatch watch;
    total += static_cast<double>(kernels::lane_sum<float, 64>(kElements, [&](Index i) { return values.data()[i]; }));
    seconds.push_back(watch.seconds());
  }
  double rate = total > 0 ? static_cast<double>(kElements * sizeof(float)) / median(seconds) : 0;
  all_reduce_sum<double>(world, {&rate, 1}, Summation::fast, Phase::setup);
  return rate;
}

template <class T>
void generate(const Launch& launch, const Deck& deck) {
  kernels::set_product_threads(1);
  MemoryLedger memory;
  Pool pool(memory);
  const GridComms comms(launch.world(), ProcessGrid({stage_shape(deck)}),
                        dense_axis_sets(kv_sharers(deck.model, deck.parallel.dense.row)));
  Model<T> model(deck, comms, pool);

  constexpr std::int64_t kTokens = 40, kWarmUp = 8;
  std::vector<double> seconds;
  Stopwatch watch;
  generate_tokens(model, comms, pool, {1, 2, 3, 4}, kTokens, {}, [&](std::int32_t) {
    seconds.push_back(watch.seconds());
    watch.restart();
    return true;
  });
  seconds.erase(seconds.begin(), seconds.begin() + kWarmUp);

  const Graph graph = describe(deck.model);
  std::int64_t elements = 0;  // that take part in products; of a table one row is read
  for (const LayerCost& layer : graph.layers) elements += layer.product_elements;
  // Replicas of the weights read them too.
  const double copies = deck.parallel.dense.data;
  const double bytes = sizeof(T) * copies * static_cast<double>(elements);
  const double rate = read_rate(launch.world(), pool);
  if (launch.world().rank() == 0) {
    const double typical = median(seconds);
    std::printf("%.1f tokens/s (median of %zu; %.1f to %.1f); %.0f MB a token at %.1f GB/s; %.2f of the bound\n",
                1 / typical, seconds.size(), 1 / *std::max_element(seconds.begin(), seconds.end()),
                1 / *std::min_element(seconds.begin(), seconds.end()), bytes * 1e-6, rate * 1e-9,
                bytes / rate / typical);
  }
}

int run(const Launch& launch, int argc, char** argv) {
  std::stringstream text;
  text << std::ifstream(argv[1]).rdbuf();
  const ReadResult read = read_deck(text.str(), argv[1], {argv + 2, argv + argc}, launch.world().size());
  if (!read.errors.empty()) fail_all(ExitCode::input, numbered_list(read.errors));
  const Kokkos::ScopeGuard kokkos;
  in_precision(read.deck.precision, [&]<class T>() { generate<T>(launch, read.deck); });
  return 0;
}

}  // namespace
}  // namespace fourfold

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_generate DECK [KEY=VALUE...]\n");
    return 2;
  }
  int none = 1;
  const fourfold::Launch launch(&none, &argv);
  return fourfold::run_guarded(launch, [&] { return fourfold::run(launch, argc, argv); });
}
