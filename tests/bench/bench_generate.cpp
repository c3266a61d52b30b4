// Generation, batch 1, beside its bound: every weight is read once a token, at the rate at which this machine reads
// memory.
//
//   [mpirun -n N] bench_generate DECK [KEY=VALUE...]     of the deck's model with its initial weights, in its
//   precision.compute
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
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

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

// An array far beyond the caches that every rank reads once a token, after it: a machine that does other work as well
// slows both.
class Reader {
 public:
  explicit Reader(Pool& pool) : values_(pool, MemoryTag::buffers, 1, Index{1} << 25) {
    Kokkos::deep_copy(values_.vector(), 1.0f);
  }

  // Seconds for a byte, all ranks reading at once.
  double seconds_per_byte(const Communicator& world) {
    barrier(world, Phase::setup);
    const Stopwatch watch;
    const float* values = values_.data();
    const Index quarter = values_.cols() / 4;  // along four runs at a time, which is faster than along one
    total_ += kernels::lane_sum<float, 16>(quarter, [=](Index i) {
      return (values[i] + values[i + quarter]) + (values[i + 2 * quarter] + values[i + 3 * quarter]);
    });
    barrier(world, Phase::setup);
    FOURFOLD_ASSERT(total_ > 0, "the sum is used");
    return watch.seconds() / (static_cast<double>(world.size()) * sizeof(float) * static_cast<double>(values_.cols()));
  }

 private:
  Tensor<float> values_;
  float total_ = 0;
};

template <class T>
void generate(const Launch& launch, const Deck& deck) {
  kernels::set_product_threads(1);
  MemoryLedger memory;
  Pool pool(memory);
  const GridComms comms(launch.world(), ProcessGrid({stage_shape(deck)}),
                        dense_axis_sets(kv_sharers(deck.model, deck.parallel.dense.row)));
  Model<T> model(deck, comms, pool);

  const Graph graph = describe(deck.model);
  std::int64_t elements = 0;  // that take part in products; of a table one row is read
  for (const LayerCost& layer : graph.layers) elements += layer.product_elements;
  // Replicas of the weights read them too.
  const double copies = deck.parallel.dense.data;
  const double bytes = sizeof(T) * copies * static_cast<double>(elements);

  constexpr std::int64_t kTokens = 72, kWarmUp = 8;
  Reader reader(pool);
  std::vector<double> seconds, bound, share;  // of each token
  Stopwatch watch;
  GenerateOptions options;
  options.tokens = kTokens;
  generate_tokens(model, comms, pool, {{1, 2, 3, 4}}, options, [&](std::size_t, std::int32_t) {
    seconds.push_back(watch.seconds());
    bound.push_back(bytes * reader.seconds_per_byte(launch.world()));
    share.push_back(bound.back() / seconds.back());
    watch.restart();
    return true;
  });
  for (std::vector<double>* values : {&seconds, &bound, &share})
    values->erase(values->begin(), values->begin() + kWarmUp);
  if (launch.world().rank() == 0) {
    std::printf(
        "%.1f tokens/s (median of %zu; %.1f to %.1f); %.0f MB a token at %.1f GB/s; %.2f of the bound (%.2f to %.2f)\n",
        1 / quantile(seconds, 0.5), seconds.size(), 1 / quantile(seconds, 1), 1 / quantile(seconds, 0), bytes * 1e-6,
        bytes / quantile(bound, 0.5) * 1e-9, quantile(share, 0.5), quantile(share, 0.25), quantile(share, 0.75));
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
