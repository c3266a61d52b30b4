// Known losses, repeatable forwards, empty micro-batches, and generation with a cache against a pass over everything.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "small_model.hpp"

namespace fourfold {
namespace {

using test::SmallModel;

// Output weights of zero give equal logits, so the loss is ln V.
TEST(ModelForward, ZeroHeadLossIsLnV) {
  for (const std::int64_t vocab : {std::int64_t{257}, std::int64_t{50257}}) {
    for (const bool tied : {false, true}) {
      Deck deck = test::transformer_deck();
      deck.model.vocab = vocab;
      deck.model.init.zero_head = true;
      deck.model.tie_embeddings = tied;
      SmallModel<double> small(deck);
      const MicroBatch<double> batch = small.random_batch(3, 1);
      Pass<double> pass;
      pass.batch = &batch;
      Activations<double> kept;
      const LossSum sum = small.model.forward(pass, kept);
      EXPECT_NEAR(sum.loss / static_cast<double>(sum.targets), std::log(static_cast<double>(vocab)), 1e-12);
    }
  }
}

TEST(ModelForward, CanBeRunAgain) {
  for (const test::NamedDeck& named : test::model_decks()) {
    SmallModel<double> small(named.deck);
    const MicroBatch<double> batch = small.random_batch(2, 3);
    Pass<double> pass;
    pass.batch = &batch;
    pass.training = true;
    pass.step = 2;
    Activations<double> first, second;
    const LossSum a = small.model.forward(pass, first);
    const LossSum b = small.model.forward(pass, second);
    EXPECT_EQ(a.loss, b.loss) << named.name;
    EXPECT_EQ(a.targets, b.targets) << named.name;
    EXPECT_GT(a.targets, 0) << named.name;
  }
}

TEST(ModelForward, NoRowsAreAnOrdinaryCase) {
  for (const test::NamedDeck& named : test::model_decks()) {
    SmallModel<float> small(named.deck);
    const MicroBatch<float> batch = small.random_batch(0, 3);
    Pass<float> pass;
    pass.batch = &batch;
    pass.training = true;
    Activations<float> kept;
    const LossSum sum = small.model.forward(pass, kept);
    EXPECT_EQ(sum.loss, 0.0) << named.name;
    EXPECT_EQ(sum.targets, 0) << named.name;
    small.model.backward(pass, kept);
    for (const Param<float>& param : small.model.params().params()) {
      for (Index i = 0; i < param.spec.shard.size(); ++i) ASSERT_EQ(param.grad(i), 0.0f) << param.spec.name;
    }
  }
}

TEST(ModelForward, CacheEqualsOnePass) {
  for (const test::NamedDeck& named : test::model_decks()) {
    if (named.deck.model.kind != ModelKind::transformer) continue;
    SmallModel<double> small(named.deck);
    const MicroBatch<double> whole = small.random_batch(1, 4);
    Pass<double> pass;
    pass.batch = &whole;
    const auto all_rows = [](Index count) {
      std::vector<Index> rows(static_cast<std::size_t>(count));
      std::iota(rows.begin(), rows.end(), Index{0});
      return rows;
    };
    const Tensor<double> all = small.model.extend(pass, {}, all_rows(whole.rows()));

    const SequenceCache<double> cache = small.model.make_cache(whole.rows());
    const std::vector<const SequenceCache<double>*> caches{&cache};
    pass.caches = &caches;
    Index done = 0;
    for (const Index count : {Index{3}, Index{1}, Index{1}, whole.rows() - 5}) {
      MicroBatch<double> some;
      some.sequences = 1;
      some.tokens = count;
      some.token_ranges = {{done, done + count}};
      some.ids = Tensor<std::int32_t>(small.pool, MemoryTag::buffers, count, 1);
      for (Index i = 0; i < count; ++i) some.ids.data()[i] = whole.ids.data()[done + i];
      pass.batch = &some;
      const Tensor<double> logits = small.model.extend(pass, {}, all_rows(count));
      for (Index i = 0; i < logits.size(); ++i) {
        EXPECT_NEAR(logits.data()[i], all.data()[done * all.cols() + i], 1e-12) << named.name;
      }
      done += count;
    }
    EXPECT_EQ(done, whole.rows());
  }
}

// Steps of equal shape allocate nothing new, and a released model leaves nothing live.
TEST(ModelForward, PoolIsSteadyAndEmptyAtTheEnd) {
  MemoryLedger ledger;
  {
    Pool pool(ledger);
    const GridComms comms(test::launch().world(), ProcessGrid({StageShape{}}), dense_axis_sets());
    Model<double> model(test::transformer_deck(), comms, pool);
    MicroBatch<double> batch;
    batch.sequences = 2;
    batch.tokens = 7;
    batch.ids = Tensor<std::int32_t>(pool, MemoryTag::buffers, 14, 1);
    batch.targets = Tensor<std::int32_t>(pool, MemoryTag::buffers, 14, 1);
    for (Index i = 0; i < 14; ++i) batch.ids.data()[i] = batch.targets.data()[i] = static_cast<std::int32_t>(i);
    Pass<double> pass;
    pass.batch = &batch;
    pass.training = true;
    std::int64_t after_first = 0;
    for (int step = 0; step < 3; ++step) {
      Activations<double> kept;
      model.forward(pass, kept);
      model.backward(pass, kept);
      if (step == 0) after_first = pool.allocations();
    }
    EXPECT_EQ(pool.allocations(), after_first);
    EXPECT_EQ(ledger.live(MemoryTag::activations), 0);
    EXPECT_GT(ledger.peak(MemoryTag::activations), 0);
    std::int64_t elements = 0;
    for (const Param<double>& param : model.params().params()) elements += param.spec.shard.size();
    EXPECT_EQ(ledger.live(MemoryTag::parameters), elements * 8);
    EXPECT_EQ(ledger.live(MemoryTag::gradients), elements * 8);
  }
  EXPECT_EQ(ledger.live_total(), 0);
}

// init.scale_residual: the projections into the residual stream start smaller by sqrt(2 x layers), and nothing else.
TEST(ModelInit, ScaleResidual) {
  Deck deck = test::transformer_deck();
  ASSERT_EQ(deck.model.init.kind, InitKind::normal);
  SmallModel<double> scaled(deck);
  deck.model.init.scale_residual = false;
  SmallModel<double> plain(deck);
  const double factor = std::sqrt(2.0 * static_cast<double>(deck.model.layers));
  int projections = 0;
  for (std::size_t i = 0; i < plain.model.params().params().size(); ++i) {
    const Param<double>& a = plain.model.params().params()[i];
    const Param<double>& b = scaled.model.params().params()[i];
    const std::string& name = a.spec.name;
    const bool residual = name.ends_with(".attention.output.weight") || name.ends_with(".ffn.down.weight");
    projections += residual ? 1 : 0;
    for (Index j = 0; j < a.spec.shard.size(); ++j) {
      ASSERT_NEAR(a.value(j), (residual ? factor : 1.0) * b.value(j), 1e-15) << name;
    }
  }
  EXPECT_EQ(projections, 2 * deck.model.layers);
}

}  // namespace
}  // namespace fourfold
