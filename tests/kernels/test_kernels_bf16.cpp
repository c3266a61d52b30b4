// bf16: the type; and its kernels, which compute what those of float compute on the same numbers, and round it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "device_array.hpp"
#include "kernels/activation.hpp"
#include "kernels/attention.hpp"
#include "kernels/bias.hpp"
#include "kernels/dropout.hpp"
#include "kernels/embedding.hpp"
#include "kernels/loss.hpp"
#include "kernels/norm.hpp"
#include "kernels/permute.hpp"
#include "kernels/rotary.hpp"
#include "kernels/update.hpp"
#include "kernels/vector.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

float bits_to_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// By long division of the interval between the two neighbours.
float nearest(float x) {
  const auto word = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t low = word & 0xffff0000u, high = low + 0x10000u;
  const double below = bits_to_float(low);
  double above = bits_to_float(high);
  if (std::isinf(above)) above = std::copysign(0x1p128, above);  // as if the exponent went on
  const double to_low = std::abs(x - below), to_high = std::abs(above - x);
  const bool up = to_high < to_low || (to_high == to_low && (low >> 16 & 1u) != 0);
  return bits_to_float(up ? high : low);
}

TEST(Bf16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(float(bf16(1.0f)), 1.0f);
  EXPECT_EQ(float(bf16(1.0f + 0x1p-8f)), 1.0f);              // a tie, to the even
  EXPECT_EQ(float(bf16(1.0f + 0x1.8p-7f)), 1.0f + 0x1p-6f);  // a tie, up to the even
  EXPECT_EQ(float(bf16(1.0f + 0x1.02p-8f)), 1.0f + 0x1p-7f);
  EXPECT_EQ(float(bf16(-1.0f - 0x1.02p-8f)), -1.0f - 0x1p-7f);
  EXPECT_EQ(float(bf16(std::numeric_limits<float>::max())), std::numeric_limits<float>::infinity());
  EXPECT_EQ(float(bf16(-std::numeric_limits<float>::infinity())), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::signbit(float(bf16(-0.0f))));
  EXPECT_EQ(float(bf16(0x1p-149f)), 0.0f);
  EXPECT_EQ(float(bf16(0x1p-133f)), 0x1p-133f);  // the smallest
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xff80ffffu, 0x7fffffffu}) {
    EXPECT_TRUE(std::isnan(float(bf16(bits_to_float(bits))))) << std::hex << bits;
  }
  std::mt19937 engine(1);
  for (int i = 0; i < 1000000; ++i) {
    const float x = bits_to_float(static_cast<std::uint32_t>(engine()));
    if (!std::isfinite(x)) continue;
    ASSERT_EQ(float(bf16(x)), nearest(x)) << x;
  }
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {  // every bf16 is itself
    const float x = bits_to_float(bits << 16);
    if (!std::isnan(x)) {
      ASSERT_EQ(bf16(x).bits, bits);
    }
  }
}

// 512 x 1 and 1 + 511 x 2^-9: in bf16 the first sum stops at 256, the second never leaves 1.
TEST(Bf16, SumsAreMadeInFloat) {
  bf16 stuck(0), still(1);
  for (int i = 0; i < 512; ++i) stuck = stuck + bf16(1);
  for (int i = 0; i < 511; ++i) still = still + bf16(0x1p-9f);
  EXPECT_EQ(float(stuck), 256.0f);
  EXPECT_EQ(float(still), 1.0f);

  const Index rows = 512;
  const DeviceArray<bf16> ones(rows, bf16(1));
  std::vector<bf16> small(rows, bf16(0x1p-9f));
  small[0] = bf16(1);
  const DeviceArray<bf16> first_large(small);
  const DeviceArray<float> sum(1), small_sum(1);
  bias_backward<bf16>(Space(), ones.const_matrix(rows, 1), sum.vector(), Write::overwrite);
  bias_backward<bf16>(Space(), first_large.const_matrix(rows, 1), small_sum.vector(), Write::overwrite);
  EXPECT_EQ(sum.host()[0], 512.0f);
  EXPECT_EQ(small_sum.host()[0], 1.998046875f);

  const DeviceArray<std::int32_t> ids(std::vector<std::int32_t>(rows, 0));
  const DeviceArray<float> table(1);
  embedding_backward<bf16>(Space(), ids.const_vector(), first_large.const_matrix(rows, 1), 0, table.matrix(1, 1));
  EXPECT_EQ(table.host()[0], 1.998046875f);

  const DeviceArray<float> row_sum(1);
  norm_row_sum<bf16>(Space(), ones.const_matrix(1, rows), row_sum.vector());
  EXPECT_EQ(row_sum.host()[0], 512.0f);
  EXPECT_EQ(kernels::sum<bf16>(Space(), first_large.const_vector()), 1.998046875);

  const DeviceArray<float> many(1);
  for (int i = 0; i < 512; ++i) {
    add<bf16, float>(Space(), Vector<const bf16>(first_large.data() + i, 1), many.vector());
  }
  EXPECT_EQ(many.host()[0], 1.998046875f);
}

// A weight of 1 and 1000 steps of 1e-3: a bf16 never moves, its master ends near 0 and the value follows it.
TEST(Bf16, WeightsMoveOnTheirMasters) {
  bf16 alone(1);
  for (int i = 0; i < 1000; ++i) alone = alone - 1e-3f;
  EXPECT_EQ(float(alone), 1.0f);

  const DeviceArray<float> grad(1, 1.0f), master(1, 1.0f);
  const DeviceArray<bf16> value(1, bf16(1));
  for (int i = 0; i < 1000; ++i) {
    sgd_update<bf16>(Space(), grad.const_vector(), 1.0, 1e-3, 0.0, {master.vector(), value.vector()});
  }
  EXPECT_NEAR(master.host()[0], 0.0f, 1e-5f);
  EXPECT_EQ(value.host()[0].bits, bf16(master.host()[0]).bits);
}

std::vector<bf16> some(Index size, unsigned seed, double deviation = 1.0) {
  return cast_to<bf16>(normal_numbers(size, seed, deviation));
}
std::vector<float> wide(const std::vector<bf16>& x) {
  return {x.begin(), x.end()};
}

// The float's result rounded. Where a compiler contracts the two loops differently, floats differ in their last bit,
// and once in 2^15 so do their roundings: by one unit.
void expect_rounded(const std::vector<bf16>& actual, const std::vector<float>& expected, const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  Index apart = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float rounded = bf16(expected[i]);
    if (float(actual[i]) == rounded) continue;
    ++apart;
    ASSERT_NEAR(float(actual[i]), expected[i], std::abs(expected[i]) * 0x1.1p-8f + 1e-6f) << what << " at " << i;
  }
  EXPECT_LE(apart, static_cast<Index>(actual.size()) / 100 + 1) << what;
}
void expect_equal(const std::vector<float>& actual, const std::vector<float>& expected, const char* what,
                  float tolerance = 1e-6f) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] == expected[i]) continue;
    ASSERT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << what << " at " << i;
  }
}

TEST(Bf16Kernels, Activations) {
  const Index n = 3001;
  const DeviceArray<bf16> x(some(n, 1, 2.0)), dy(some(n, 2));
  const DeviceArray<float> wide_x(wide(x.host())), wide_dy(wide(dy.host()));
  const auto check = [&](const char* name, auto forward, auto backward, auto wide_forward, auto wide_backward) {
    const DeviceArray<bf16> y(n, bf16(9)), dx(n, bf16(9));
    const DeviceArray<float> want_y(n), want_dx(n);
    forward(Space(), x.const_vector(), y.vector());
    backward(Space(), x.const_vector(), dy.const_vector(), dx.vector());
    wide_forward(Space(), wide_x.const_vector(), want_y.vector());
    wide_backward(Space(), wide_x.const_vector(), wide_dy.const_vector(), want_dx.vector());
    expect_rounded(y.host(), want_y.host(), name);
    expect_rounded(dx.host(), want_dx.host(), name);
  };
  check("relu", relu_forward<bf16>, relu_backward<bf16>, relu_forward<float>, relu_backward<float>);
  check("gelu", gelu_forward<bf16>, gelu_backward<bf16>, gelu_forward<float>, gelu_backward<float>);
  check("gelu_tanh", gelu_tanh_forward<bf16>, gelu_tanh_backward<bf16>, gelu_tanh_forward<float>,
        gelu_tanh_backward<float>);

  const Index rows = 30, width = 50;
  const DeviceArray<bf16> y(rows * width), dgate_up(2 * rows * width);
  const DeviceArray<float> want_y(rows * width), want_d(2 * rows * width);
  swiglu_forward<bf16>(Space(), x.const_matrix(rows, 2 * width), y.matrix(rows, width));
  swiglu_forward<float>(Space(), wide_x.const_matrix(rows, 2 * width), want_y.matrix(rows, width));
  swiglu_backward<bf16>(Space(), x.const_matrix(rows, 2 * width), dy.const_matrix(rows, width),
                        dgate_up.matrix(rows, 2 * width));
  swiglu_backward<float>(Space(), wide_x.const_matrix(rows, 2 * width), wide_dy.const_matrix(rows, width),
                         want_d.matrix(rows, 2 * width));
  expect_rounded(y.host(), want_y.host(), "swiglu");
  expect_rounded(dgate_up.host(), want_d.host(), "swiglu backward");
}

template <class T>
struct NormResult {
  std::vector<T> y, dx;
  std::vector<float> mean, rstd, dw, db;
};
template <class T>
NormResult<T> norm(bool layer, Index rows, Index width, const std::vector<bf16>& x_values,
                   const std::vector<bf16>& w_values, const std::vector<bf16>& dy_values) {
  const Space space;
  const auto given = [](const std::vector<bf16>& values) { return std::vector<T>(values.begin(), values.end()); };
  const DeviceArray<T> x(given(x_values)), w(given(w_values)), dy(given(dy_values)), y(rows * width), dx(rows * width);
  const DeviceArray<float> sum(rows), squares(rows), mean(layer ? rows : 0), rstd(rows), c1(layer ? rows : 0), c2(rows),
      dw(width, 0.5f), db(width, 0.5f);
  const auto in = x.const_matrix(rows, width), d = dy.const_matrix(rows, width);
  if (layer) {
    norm_row_sum<T>(space, in, sum.vector());
    norm_centred_squares<T>(space, in, sum.const_vector(), width, squares.vector());
    layer_norm_forward<T>(space, in, sum.const_vector(), squares.const_vector(), width, 1e-5, w.const_vector(),
                          w.const_vector(), y.matrix(rows, width), mean.vector(), rstd.vector());
  } else {
    norm_row_squares<T>(space, in, squares.vector());
    rms_norm_forward<T>(space, in, squares.const_vector(), width, 1e-5, w.const_vector(), y.matrix(rows, width),
                        rstd.vector());
  }
  norm_backward_sums<T>(space, in, mean.const_vector(), rstd.const_vector(), w.const_vector(), d, c1.vector(),
                        c2.vector());
  norm_backward_input<T>(space, in, mean.const_vector(), rstd.const_vector(), w.const_vector(), d, c1.const_vector(),
                         c2.const_vector(), width, dx.matrix(rows, width));
  norm_backward_weight<T>(space, in, mean.const_vector(), rstd.const_vector(), d, dw.vector(), db.vector(), Write::add);
  return {y.host(), dx.host(), mean.host(), rstd.host(), dw.host(), db.host()};
}

TEST(Bf16Kernels, Norms) {
  const Index rows = 33, width = 67;
  const auto x = some(rows * width, 1), w = some(width, 2), dy = some(rows * width, 3);
  for (const bool layer : {true, false}) {
    const auto got = norm<bf16>(layer, rows, width, x, w, dy);
    const auto want = norm<float>(layer, rows, width, x, w, dy);
    expect_rounded(got.y, want.y, "y");
    expect_rounded(got.dx, want.dx, "dx");
    expect_equal(got.mean, want.mean, "mean");
    expect_equal(got.rstd, want.rstd, "rstd");
    expect_equal(got.dw, want.dw, "dw");
    expect_equal(got.db, want.db, "db");
  }
}

// y is the float's on the rounded sum; dx, with a residual, is rounded once.
TEST(Bf16Kernels, NormsOfWholeRows) {
  const Index rows = 33, width = 67;
  for (const bool layer : {true, false}) {
    const auto run = [&]<class T>() {
      const auto given = [](const std::vector<bf16>& values) { return std::vector<T>(values.begin(), values.end()); };
      const DeviceArray<T> x(given(some(rows * width, 1))), branch(given(some(rows * width, 4))),
          w(given(some(width, 2))), dy(given(some(rows * width, 3))), y(rows * width), dx(rows * width);
      if constexpr (std::is_same_v<T, float>) {  // what bf16 norms
        auto sum = branch.host();
        const auto add = x.host();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = bf16(sum[i] + add[i]) - add[i];
        Kokkos::deep_copy(branch.vector(), DeviceArray<T>(sum).vector());
      }
      const DeviceArray<float> mean(layer ? rows : 0), rstd(rows);
      const auto in = x.const_matrix(rows, width);
      if (layer) {
        layer_norm_rows<T>(Space(), in, branch.matrix(rows, width), 1e-5, w.const_vector(), w.const_vector(),
                           y.matrix(rows, width), mean.vector(), rstd.vector());
      } else {
        rms_norm_rows<T>(Space(), in, branch.matrix(rows, width), 1e-5, w.const_vector(), y.matrix(rows, width),
                         rstd.vector());
      }
      norm_backward_rows<T>(Space(), branch.const_matrix(rows, width), mean.const_vector(), rstd.const_vector(),
                            w.const_vector(), dy.const_matrix(rows, width), in, dx.matrix(rows, width));
      return std::tuple(y.host(), dx.host(), mean.host(), rstd.host());
    };
    const auto [y, dx, mean, rstd] = run.operator()<bf16>();
    const auto [want_y, want_dx, want_mean, want_rstd] = run.operator()<float>();
    expect_rounded(y, want_y, "y");
    expect_rounded(dx, want_dx, "dx");
    expect_equal(mean, want_mean, "mean");
    expect_equal(rstd, want_rstd, "rstd");
  }
}

TEST(Bf16Kernels, CrossEntropy) {
  const Index rows = 9, vocab = 301;
  const DeviceArray<bf16> z(some(rows * vocab, 1, 3.0)), dz(rows * vocab);
  const DeviceArray<float> wide_z(wide(z.host())), want_dz(rows * vocab);
  std::vector<std::int32_t> target(rows);
  for (Index r = 0; r < rows; ++r) target[r] = static_cast<std::int32_t>(r == 4 ? -1 : r * 31);
  const DeviceArray<std::int32_t> targets(target);
  const auto run = [&]<class T>(const DeviceArray<T>& logits, const DeviceArray<T>& gradient) {
    const DeviceArray<float> max(rows), sum(rows), at_target(rows);
    const DeviceArray<double> loss(rows);
    cross_entropy_max<T>(Space(), logits.const_matrix(rows, vocab), max.vector());
    cross_entropy_sums<T>(Space(), logits.const_matrix(rows, vocab), max.const_vector(), targets.const_vector(), 0,
                          sum.vector(), at_target.vector());
    cross_entropy_forward<T>(Space(), max.const_vector(), sum.const_vector(), at_target.const_vector(),
                             targets.const_vector(), loss.vector());
    cross_entropy_backward<T>(Space(), logits.const_matrix(rows, vocab), max.const_vector(), sum.const_vector(),
                              targets.const_vector(), 0, 0.3, gradient.matrix(rows, vocab));
    const auto values = loss.host();
    return std::vector<float>(values.begin(), values.end());
  };
  expect_equal(run(z, dz), run(wide_z, want_dz), "loss");
  expect_rounded(dz.host(), want_dz.host(), "dlogits");
  run(z, z);  // over the logits themselves
  expect_rounded(z.host(), want_dz.host(), "dlogits in place");
}

TEST(Bf16Kernels, SquaredError) {
  const Index rows = 7, width = 33;
  const DeviceArray<bf16> y(some(rows * width, 1)), goal(some(rows * width, 2)), dy(rows * width),
      one_hot(rows * width);
  const DeviceArray<float> wide_y(wide(y.host())), wide_goal(wide(goal.host())), want(rows * width),
      want_one_hot(rows * width);
  const DeviceArray<std::int32_t> targets(std::vector<std::int32_t>{0, 32, -1, 5, 6, 7, 8});
  const DeviceArray<double> loss(rows), want_loss(rows), hot(rows), want_hot(rows);
  squared_error_forward<bf16>(Space(), y.const_matrix(rows, width), goal.const_matrix(rows, width), loss.vector());
  squared_error_forward<float>(Space(), wide_y.const_matrix(rows, width), wide_goal.const_matrix(rows, width),
                               want_loss.vector());
  EXPECT_EQ(loss.host(), want_loss.host());
  squared_error_onehot_forward<bf16>(Space(), y.const_matrix(rows, width), targets.const_vector(), 0, hot.vector());
  squared_error_onehot_forward<float>(Space(), wide_y.const_matrix(rows, width), targets.const_vector(), 0,
                                      want_hot.vector());
  EXPECT_EQ(hot.host(), want_hot.host());
  squared_error_backward<bf16>(Space(), y.const_matrix(rows, width), goal.const_matrix(rows, width), 0.3,
                               dy.matrix(rows, width));
  squared_error_backward<float>(Space(), wide_y.const_matrix(rows, width), wide_goal.const_matrix(rows, width), 0.3,
                                want.matrix(rows, width));
  expect_rounded(dy.host(), want.host(), "dy");
  squared_error_onehot_backward<bf16>(Space(), y.const_matrix(rows, width), targets.const_vector(), 0, 0.3,
                                      one_hot.matrix(rows, width));
  squared_error_onehot_backward<float>(Space(), wide_y.const_matrix(rows, width), targets.const_vector(), 0, 0.3,
                                       want_one_hot.matrix(rows, width));
  expect_rounded(one_hot.host(), want_one_hot.host(), "one-hot dy");
}

TEST(Bf16Kernels, EmbeddingsPositionsAndBias) {
  const Index rows = 20, width = 19, held = 6;
  const DeviceArray<bf16> table(some(held * width, 1)), y(rows * width), x(some(rows * width, 2));
  const DeviceArray<float> wide_table(wide(table.host())), wide_y(rows * width), sums(rows * width),
      want_x(wide(x.host())), biased(wide(x.host()));
  std::vector<std::int32_t> id(rows);
  for (Index r = 0; r < rows; ++r) id[r] = static_cast<std::int32_t>(r % 9 - 1);
  const DeviceArray<std::int32_t> ids(id);
  embedding_forward<bf16>(Space(), ids.const_vector(), table.const_matrix(held, width), 1, y.matrix(rows, width));
  embedding_forward<bf16, float>(Space(), ids.const_vector(), table.const_matrix(held, width), 1,
                                 sums.matrix(rows, width));
  embedding_forward<float>(Space(), ids.const_vector(), wide_table.const_matrix(held, width), 1,
                           wide_y.matrix(rows, width));
  EXPECT_EQ(wide(y.host()), wide_y.host());
  EXPECT_EQ(sums.host(), wide_y.host());

  const DeviceArray<float> dtable(held * width), want_dtable(held * width);
  embedding_backward<bf16>(Space(), ids.const_vector(), x.const_matrix(rows, width), 1, dtable.matrix(held, width));
  embedding_backward<float>(Space(), ids.const_vector(), want_x.const_matrix(rows, width), 1,
                            want_dtable.matrix(held, width));
  EXPECT_EQ(dtable.host(), want_dtable.host());
  position_backward<bf16>(Space(), x.const_matrix(rows, width), {5, 1}, dtable.matrix(held, width));
  position_backward<float>(Space(), want_x.const_matrix(rows, width), {5, 1}, want_dtable.matrix(held, width));
  EXPECT_EQ(dtable.host(), want_dtable.host());
  const DeviceArray<float> db(width), want_db(width);
  bias_backward<bf16>(Space(), x.const_matrix(rows, width), db.vector(), Write::overwrite);
  bias_backward<float>(Space(), want_x.const_matrix(rows, width), want_db.vector(), Write::overwrite);
  EXPECT_EQ(db.host(), want_db.host());

  const Vector<const bf16> bias(table.data(), width);
  const Vector<const float> wide_bias(wide_table.data(), width);
  bias_forward<bf16, float>(Space(), bias, biased.matrix(rows, width));
  bias_forward<float>(Space(), wide_bias, want_x.matrix(rows, width));
  EXPECT_EQ(biased.host(), want_x.host());
  position_forward<bf16>(Space(), table.const_matrix(held, width), {5, 1}, x.matrix(rows, width));
  const DeviceArray<float> with_positions(wide(some(rows * width, 2)));
  position_forward<float>(Space(), wide_table.const_matrix(held, width), {5, 1}, with_positions.matrix(rows, width));
  expect_rounded(x.host(), with_positions.host(), "positions");
}

TEST(Bf16Kernels, RotaryDropoutAndBoxes) {
  const Index rows = 12, heads = 3, d = 10, width = heads * d;
  const DeviceArray<bf16> x(some(rows * width, 1)), dropped(rows * width), copied(rows * width), added(x.host());
  const DeviceArray<float> wide_x(wide(x.host())), want_dropped(rows * width), want_added(wide_x.host());
  const RandomStream stream{7, 3};
  const GlobalRows at{0, 4, 0, 4, 0, width};
  dropout_forward<bf16>(Space(), x.const_matrix(rows, width), stream, 0.3, at, dropped.matrix(rows, width));
  dropout_forward<float>(Space(), wide_x.const_matrix(rows, width), stream, 0.3, at, want_dropped.matrix(rows, width));
  expect_rounded(dropped.host(), want_dropped.host(), "dropout");
  const BoxCopy box{2, 3, width, 0, 6 * width, 2 * width, width, 6 * width, 2 * width};
  copy_box<bf16>(Space(), box, x.const_vector(), copied.vector());
  add_box<bf16>(Space(), box, dropped.const_vector(), added.vector());
  const DeviceArray<float> wide_dropped(wide(dropped.host()));
  add_box<float>(Space(), box, wide_dropped.const_vector(), want_added.vector());
  expect_rounded(added.host(), want_added.host(), "add_box");
  for (Index j = 0; j < width; ++j) EXPECT_EQ(float(copied.host()[width + j]), float(x.host()[j]));
  rotary_forward<bf16>(Space(), heads, d, 0, {4, 2}, 1e4, x.matrix(rows, width));
  rotary_forward<float>(Space(), heads, d, 0, {4, 2}, 1e4, wide_x.matrix(rows, width));
  expect_rounded(x.host(), wide_x.host(), "rotary");
}

TEST(Bf16Kernels, FlatArrays) {
  const Index n = 5003;
  const DeviceArray<bf16> x(some(n, 1)), y(some(n, 2)), rounded(n);
  const DeviceArray<float> wide_x(wide(x.host())), wide_y(wide(y.host()));
  EXPECT_EQ(sum_squares<bf16>(Space(), x.const_vector()), sum_squares<float>(Space(), wide_x.const_vector()));
  EXPECT_EQ(max_abs<bf16>(Space(), x.const_vector()), max_abs<float>(Space(), wide_x.const_vector()));
  EXPECT_EQ(count_nonfinite<bf16>(Space(), x.const_vector()), 0);
  EXPECT_EQ(count_nonfinite<bf16>(Space(), DeviceArray<bf16>(3, bf16(INFINITY)).const_vector()), 3);
  add<bf16>(Space(), x.const_vector(), y.vector());
  add<float>(Space(), wide_x.const_vector(), wide_y.vector());
  expect_rounded(y.host(), wide_y.host(), "add");
  round_to(Space(), wide_y.const_vector(), rounded.vector());
  const auto got = rounded.host();
  const auto want = wide_y.host();
  for (Index i = 0; i < n; ++i) ASSERT_EQ(got[i].bits, bf16(want[i]).bits);
  scale<bf16>(Space(), 0.3, y.vector());
  const DeviceArray<float> scaled(wide(rounded.host()));
  scale<float>(Space(), 0.3, scaled.vector());
  expect_rounded(y.host(), scaled.host(), "scale");
}

// Masters take the float's update on the same gradients; values are the masters rounded.
TEST(Bf16Kernels, Updates) {
  const Index n = 1003;
  const DeviceArray<float> grad(cast_to<float>(normal_numbers(n, 1)));
  const auto start = cast_to<float>(normal_numbers(n, 2));
  AdamW options;
  options.rate = 0.01;
  options.decay = 0.1;
  const auto check = [&](const char* name, auto update, auto plain) {
    const DeviceArray<float> master(start), m(n), v(n), want(start), want_m(n), want_v(n);
    const DeviceArray<bf16> value(n, bf16(9));
    for (int step = 1; step <= 3; ++step) {
      options.step = step;
      update(Weights<bf16>(master.vector(), value.vector()), m, v);
      plain(Weights<float>(want.vector()), want_m, want_v);
    }
    expect_equal(master.host(), want.host(), name);
    expect_equal(m.host(), want_m.host(), name);
    expect_equal(v.host(), want_v.host(), name);
    const auto values = value.host();
    const auto masters = master.host();
    for (Index i = 0; i < n; ++i) ASSERT_EQ(values[i].bits, bf16(masters[i]).bits) << name;
  };
  const Space space;
  check(
      "sgd", [&](auto w, auto&, auto&) { sgd_update<bf16>(space, grad.const_vector(), 0.5, 0.1, 0.1, w); },
      [&](auto w, auto&, auto&) { sgd_update<float>(space, grad.const_vector(), 0.5, 0.1, 0.1, w); });
  check(
      "momentum",
      [&](auto w, auto& m, auto&) {
        momentum_update<bf16>(space, grad.const_vector(), 0.5, 0.1, 0.9, 0.1, w, m.vector());
      },
      [&](auto w, auto& m, auto&) {
        momentum_update<float>(space, grad.const_vector(), 0.5, 0.1, 0.9, 0.1, w, m.vector());
      });
  check(
      "adamw",
      [&](auto w, auto& m, auto& v) {
        adamw_update<bf16>(space, grad.const_vector(), 0.5, options, w, m.vector(), v.vector());
      },
      [&](auto w, auto& m, auto& v) {
        adamw_update<float>(space, grad.const_vector(), 0.5, options, w, m.vector(), v.vector());
      });
  check(
      "lars",
      [&](auto w, auto& m, auto&) { lars_update<bf16>(space, grad.const_vector(), 0.5, 0.1, 0.9, 0.1, w, m.vector()); },
      [&](auto w, auto& m, auto&) {
        lars_update<float>(space, grad.const_vector(), 0.5, 0.1, 0.9, 0.1, w, m.vector());
      });
  check(
      "step_along", [&](auto w, auto&, auto&) { step_along<bf16>(space, 0.1, grad.const_vector(), w); },
      [&](auto w, auto&, auto&) { step_along<float>(space, 0.1, grad.const_vector(), w); });
}

template <class T>
struct AttentionResult {
  std::vector<T> out, dq, dk, dv;
  std::vector<float> lse;
};
template <class T>
AttentionResult<T> attention(const AttentionShape& shape, Index heads, Index kv_heads, unsigned seed) {
  const Index rows = shape.batch * shape.query_tokens, key_rows = shape.batch * shape.key_tokens;
  const Index width = heads * shape.head_dim, kv_width = kv_heads * shape.head_dim;
  const auto given = [&](Index size, unsigned offset) {
    const auto values = some(size, seed + offset);
    return DeviceArray<T>(std::vector<T>(values.begin(), values.end()));
  };
  const auto q = given(rows * width, 0), k = given(key_rows * kv_width, 1), v = given(key_rows * kv_width, 2),
             dout = given(rows * width, 3);
  const DeviceArray<T> out(rows * width, T(7)), dq(rows * width, T(7)), dk(key_rows * kv_width, T(7)),
      dv(key_rows * kv_width, T(7));
  const DeviceArray<float> lse(rows * heads),
      scratch(attention_scratch<T>(shape), std::numeric_limits<float>::quiet_NaN());
  const auto read = [&](const DeviceArray<T>& x, Index count) {
    return Heads<const T>{x.data(), count * shape.head_dim, count};
  };
  const auto write = [&](const DeviceArray<T>& x, Index count) {
    return Heads<T>{x.data(), count * shape.head_dim, count};
  };
  attention_forward<T>(Space(), shape, read(q, heads), read(k, kv_heads), read(v, kv_heads), write(out, heads),
                       lse.vector(), scratch.vector());
  attention_backward<T>(Space(), shape, read(q, heads), read(k, kv_heads), read(v, kv_heads), read(out, heads),
                        lse.const_vector(), read(dout, heads), write(dq, heads), write(dk, kv_heads),
                        write(dv, kv_heads), scratch.vector());
  return {out.host(), dq.host(), dk.host(), dv.host(), lse.host()};
}

// Backward reads out, which is rounded: the gradients agree to that.
TEST(Bf16Kernels, Attention) {
  struct Case {
    Index batch, queries, keys, first, d, heads, kv_heads;
    bool documents = false;
  };
  for (const Case& c : std::vector<Case>{{2, 130, 130, 0, 16, 4, 2},  // several tiles, packed on a host
                                         {1, 40, 200, 160, 12, 2, 2},
                                         {3, 5, 5, 0, 8, 4, 1},  // through the library
                                         {1, 1, 77, 76, 20, 2, 1},
                                         {2, 33, 33, 0, 7, 3, 3},
                                         {1, 4, 0, 0, 4, 2, 2},
                                         {0, 8, 8, 0, 4, 2, 1},
                                         {2, 130, 130, 0, 16, 4, 2, true},
                                         {2, 9, 9, 0, 8, 4, 1, true}}) {
    // Documents of 7 tokens after an empty one: the first queries see nothing.
    std::vector<std::int32_t> first_keys;
    for (Index row = 0; c.documents && row < c.batch * c.queries; ++row) {
      first_keys.push_back(static_cast<std::int32_t>(std::max<Index>(3, row % c.queries / 7 * 7)));
    }
    const DeviceArray<std::int32_t> first_key(first_keys);
    AttentionShape shape;
    if (c.documents) shape.first_key = first_key.data();
    shape.batch = c.batch;
    shape.query_tokens = c.queries;
    shape.key_tokens = c.keys;
    shape.first_query = c.first;
    shape.head_dim = c.d;
    shape.scale = 1 / std::sqrt(static_cast<double>(c.d));
    shape.heads_per_kv = c.heads / c.kv_heads;
    const auto got = attention<bf16>(shape, c.heads, c.kv_heads, 5);
    const auto want = attention<float>(shape, c.heads, c.kv_heads, 5);
    expect_rounded(got.out, want.out, "out");
    expect_equal(got.lse, want.lse, "lse");
    const auto near = [&](const std::vector<bf16>& a, const std::vector<float>& b, const char* what) {
      ASSERT_EQ(a.size(), b.size());
      float largest = 0;
      for (const float x : b) largest = std::max(largest, std::abs(x));
      for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(float(a[i]), b[i], 0x1p-7f * largest) << what << " " << i;
    };
    near(got.dq, want.dq, "dq");
    near(got.dk, want.dk, "dk");
    near(got.dv, want.dv, "dv");
  }
}

}  // namespace
}  // namespace fourfold::kernels
