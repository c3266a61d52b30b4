// The gradient of the whole model against five-point finite differences in fp64, on parameters of every kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/vector.hpp"
#include "small_model.hpp"

namespace fourfold {
namespace {

using test::SmallModel;

double loss_of(SmallModel<double>& small, const Pass<double>& pass) {
  Activations<double> kept;
  return small.model.forward(pass, kept).loss * pass.loss_scale;
}

TEST(ModelGradients, EqualFivePointDifferences) {
  constexpr double kStep = 1e-3;
  std::int64_t checked = 0;
  for (const test::NamedDeck& named : test::model_decks()) {
    SmallModel<double> small(named.deck);
    const MicroBatch<double> batch = small.random_batch(3, 5);
    Pass<double> pass;
    pass.batch = &batch;
    pass.training = true;
    pass.step = 3;
    Activations<double> kept;
    pass.loss_scale = 1.0 / static_cast<double>(small.model.forward(pass, kept).targets);
    small.model.params().restart_gradients();
    small.model.backward(pass, kept);

    double largest = 0;
    for (const Param<double>& param : small.model.params().params()) {
      for (Index i = 0; i < param.spec.shard.size(); ++i) largest = std::max(largest, std::abs(param.grad(i)));
    }
    ASSERT_GT(largest, 0.0) << named.name;
    std::mt19937_64 engine(11);
    for (Param<double>& param : small.model.params().params()) {
      const Index size = param.spec.shard.size();
      for (int draw = 0; draw < 8; ++draw) {
        const Index i = static_cast<Index>(engine() % static_cast<std::uint64_t>(size));
        const double at = param.value(i);
        const auto loss_at = [&](double offset) {
          param.value(i) = at + offset;
          return loss_of(small, pass);
        };
        const double numeric =
            (8 * (loss_at(kStep) - loss_at(-kStep)) - (loss_at(2 * kStep) - loss_at(-2 * kStep))) / (12 * kStep);
        param.value(i) = at;
        EXPECT_LE(std::abs(param.grad(i) - numeric), 1e-6 * std::max(std::abs(numeric), 1e-3 * largest))
            << named.name << ": " << param.spec.name << "[" << i << "] analytic " << param.grad(i) << " numeric "
            << numeric;
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 200);
  std::printf("checked %lld parameters\n", static_cast<long long>(checked));
}

// Gradients that nobody writes in a step are zero, whatever the last one left.
TEST(ModelGradients, UnwrittenOnesAreZero) {
  SmallModel<double> small(test::model_decks().front().deck);
  ParamStore<double>& store = small.model.params();
  for (const Param<double>& param : store.params()) kernels::fill<double>(Space(), 7.0, param.grad);
  store.restart_gradients();
  EXPECT_EQ(store.params().front().next_write(), kernels::Write::overwrite);
  EXPECT_EQ(store.params().front().next_write(), kernels::Write::add);
  for (ParamGroup<double>& group : store.groups()) ParamStore<double>::finish_gradients(group);
  for (const Param<double>& param : store.params()) {
    const double expected = &param == &store.params().front() ? 7.0 : 0.0;
    for (Index i = 0; i < param.spec.shard.size(); ++i) ASSERT_EQ(param.grad(i), expected) << param.spec.name;
  }
}

// A second backward adds; an overwrite would leave the first value.
TEST(ModelGradients, AccumulateOverMicroBatches) {
  for (const test::NamedDeck& named : test::model_decks()) {
    SmallModel<double> small(named.deck);
    const MicroBatch<double> batch = small.random_batch(2, 9);
    Pass<double> pass;
    pass.batch = &batch;
    pass.training = true;
    pass.step = 1;
    small.model.params().restart_gradients();
    for (const Param<double>& param : small.model.params().params()) {  // what a step before may have left
      kernels::fill<double>(Space(), std::numeric_limits<double>::quiet_NaN(), param.grad);
    }
    std::vector<double> once;
    for (int run = 0; run < 2; ++run) {
      Activations<double> kept;
      small.model.forward(pass, kept);
      small.model.backward(pass, kept);
      std::size_t k = 0;
      for (const Param<double>& param : small.model.params().params()) {
        for (Index i = 0; i < param.spec.shard.size(); ++i, ++k) {
          if (run == 0) {
            once.push_back(param.grad(i));
          } else {
            EXPECT_NEAR(param.grad(i), 2 * once[k], 1e-12 * std::max(1.0, std::abs(once[k])))
                << named.name << " " << param.spec.name;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fourfold
