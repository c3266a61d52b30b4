// logits_probe DECK CHECKPOINT PROMPTS TOKENS OUT [KEY=VALUE...]: the logits (fp64, row by row) of a checkpoint's model
// on prompts of TOKENS ids each (int32), on the grid of this launch.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "comm/launch.hpp"
#include "deck/derive.hpp"
#include "deck/reader.hpp"
#include "kernels/gemm.hpp"
#include "model/model.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

void write_logits(const Launch& launch, const Deck& deck, char** argv) {
  kernels::set_product_threads(1);
  MemoryLedger memory;
  Pool pool(memory);
  const GridComms comms(launch.world(), ProcessGrid({stage_shape(deck)}),
                        dense_axis_sets(kv_sharers(deck.model, deck.parallel.dense.row)));
  Model<float> model(deck, comms, pool);
  load_parameters(model, deck, comms, argv[2]);
  const std::string prompts = read_text_file(argv[3], 1 << 20);
  const std::int64_t tokens = std::atoll(argv[4]);
  const std::size_t count = prompts.size() / 4 / static_cast<std::size_t>(tokens);
  const auto* ids = reinterpret_cast<const std::int32_t*>(prompts.data());
  std::vector<Index> rows(static_cast<std::size_t>(tokens));
  std::iota(rows.begin(), rows.end(), Index{0});
  std::ofstream out(launch.world().rank() == 0 ? argv[5] : "/dev/null", std::ios::binary);
  for (std::size_t prompt = 0; prompt < count; ++prompt, ids += tokens) {
    MicroBatch<float> batch;
    batch.sequences = 1;
    batch.tokens = tokens;
    batch.ids = Tensor<std::int32_t>(pool, MemoryTag::buffers, tokens, 1);
    const auto mirror = Kokkos::create_mirror_view(batch.ids.vector());
    std::copy(ids, ids + tokens, mirror.data());
    Kokkos::deep_copy(batch.ids.vector(), mirror);
    Pass<float> pass;
    pass.batch = &batch;
    const Tensor<float> logits = model.extend(pass, {}, rows);
    const auto host = Kokkos::create_mirror_view(logits.vector());
    Kokkos::deep_copy(host, logits.vector());
    const std::vector<double> values(host.data(), host.data() + host.extent(0));
    out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(8 * values.size()));
  }
}

int run(const Launch& launch, int argc, char** argv) {
  const ReadResult read =
      read_deck(read_text_file(argv[1], 1 << 20), argv[1], {argv + 6, argv + argc}, launch.world().size());
  if (!read.errors.empty()) fail_all(ExitCode::input, numbered_list(read.errors));
  const Kokkos::ScopeGuard kokkos;
  write_logits(launch, read.deck, argv);
  return 0;
}

}  // namespace
}  // namespace fourfold

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: logits_probe DECK CHECKPOINT PROMPTS TOKENS OUT [KEY=VALUE...]\n");
    return 2;
  }
  int none = 1;
  const fourfold::Launch launch(&none, &argv);
  return fourfold::run_guarded(launch, [&] { return fourfold::run(launch, argc, argv); });
}
