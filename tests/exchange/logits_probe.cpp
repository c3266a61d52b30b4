// logits_probe DECK CHECKPOINT PROMPTS TOKENS OUT [KEY=VALUE...]: the logits (fp64, prompt by prompt, row by row) of a
// checkpoint's model on prompts of TOKENS ids each (int32), on the grids and stages of this launch. Each coordinate has
// its part of the prompts, and writes its part of OUT, which is there and large enough.
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
#include "infer/stage_link.hpp"
#include "kernels/gemm.hpp"
#include "model/boundary.hpp"
#include "model/model.hpp"
#include "train/pipeline.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

void write_logits(const Launch& launch, const Deck& deck, char** argv) {
  kernels::set_product_threads(1);
  MemoryLedger memory;
  Pool pool(memory);
  const PipelinePlan plan = plan_pipeline(deck);
  const ProcessGrid grid = process_grid(deck);
  const Coordinates here = grid.coordinates(launch.world().rank());
  const GridComms comms(launch.world(), grid, rank_groups(deck, plan, here.stage));
  Model<float> model(deck, comms, pool, plan.part_of(here.stage));
  load_parameters(model, deck, comms, argv[2]);
  const std::string prompts = read_text_file(argv[3], 1 << 20);
  const Index tokens = std::atoll(argv[4]);
  const Index count = static_cast<Index>(prompts.size()) / 4 / tokens;
  const Range mine = generated_part(grid, here, count);

  MicroBatch<float> batch;
  batch.sequences = 1;
  batch.tokens = mine.size() * tokens;
  batch.sequence_tokens = deck.model.sequence;
  batch.first_sample = mine.begin;
  batch.all_sequences = count;
  batch.token_ranges.assign(static_cast<std::size_t>(mine.size()), Range{0, tokens});
  batch.ids = Tensor<std::int32_t>(pool, MemoryTag::buffers, batch.tokens, 1);
  const auto mirror = Kokkos::create_mirror_view(batch.ids.vector());
  std::copy_n(reinterpret_cast<const std::int32_t*>(prompts.data()) + mine.begin * tokens, batch.tokens, mirror.data());
  Kokkos::deep_copy(batch.ids.vector(), mirror);
  std::vector<SequenceCache<float>> held(static_cast<std::size_t>(mine.size()));
  std::vector<const SequenceCache<float>*> caches;
  for (SequenceCache<float>& cache : held) {
    cache = model.make_cache(tokens);
    caches.push_back(&cache);
  }
  Pass<float> pass;
  pass.batch = &batch;
  pass.caches = &caches;
  std::vector<Index> rows(static_cast<std::size_t>(batch.tokens));
  std::iota(rows.begin(), rows.end(), Index{0});

  const std::vector<Range> all(static_cast<std::size_t>(count), Range{0, tokens});
  StageLink<float> link(deck, comms, pool);
  Tensor<float> x;
  if (here.stage > 0) x = link.receive(all);
  x = model.extend(pass, std::move(x), rows);
  if (here.stage + 1 < grid.stages()) {
    link.send(all, x);
    return link.finish();
  }
  if (here.row != 0 || here.col != 0) return;
  const auto host = Kokkos::create_mirror_view(x.vector());
  Kokkos::deep_copy(host, x.vector());
  const std::vector<double> values(host.data(), host.data() + host.extent(0));
  std::fstream out(argv[5], std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(8 * mine.begin * tokens * deck.model.vocab));
  out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(8 * values.size()));
  if (!out) fail_one(ExitCode::storage, std::string(argv[5]) + ": not written");
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
