#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "comparison.hpp"
#include "device_array.hpp"
#include "kernels/norm.hpp"
#include "kernels/vector.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::expect_close;
using test::normal_numbers;

constexpr double kEps = 1e-5;
template <class T>
constexpr double kTolerance = std::is_same_v<T, float> ? 2e-6 : 1e-14;

struct Shape {
  Index rows, width;
};
const std::vector<Shape> kShapes{{0, 8}, {1, 1}, {1, 2}, {3, 7}, {33, 65}, {4, 1024}, {5, 2050}, {200, 33}};

// The whole of a norm over rows that one rank holds: forward, then backward of dy.
template <class T>
struct Result {
  std::vector<T> y, dx, dw, db;
};

template <class T>
Result<T> kernels_norm(bool layer, const Shape& s, const std::vector<T>& x, const std::vector<T>& w,
                       const std::vector<T>& b, const std::vector<T>& dy) {
  const Space space;
  const DeviceArray<T> dev_x(x), dev_w(w), dev_b(b), dev_dy(dy), y(x.size()), dx(x.size()), dw(w.size(), T(5)),
      db(b.size(), T(5));
  const DeviceArray<Acc<T>> sum(s.rows), squares(s.rows), mean(layer ? s.rows : 0), rstd(s.rows),
      c1(layer ? s.rows : 0), c2(s.rows);
  const auto mx = dev_x.const_matrix(s.rows, s.width), mdy = dev_dy.const_matrix(s.rows, s.width);
  if (layer) {
    norm_row_sum<T>(space, mx, sum.vector());
    norm_centred_squares<T>(space, mx, sum.const_vector(), s.width, squares.vector());
    layer_norm_forward<T>(space, mx, sum.const_vector(), squares.const_vector(), s.width, kEps, dev_w.const_vector(),
                          dev_b.const_vector(), y.matrix(s.rows, s.width), mean.vector(), rstd.vector());
  } else {
    norm_row_squares<T>(space, mx, squares.vector());
    rms_norm_forward<T>(space, mx, squares.const_vector(), s.width, kEps, dev_w.const_vector(),
                        y.matrix(s.rows, s.width), rstd.vector());
  }
  norm_backward_sums<T>(space, mx, mean.const_vector(), rstd.const_vector(), dev_w.const_vector(), mdy, c1.vector(),
                        c2.vector());
  norm_backward_input<T>(space, mx, mean.const_vector(), rstd.const_vector(), dev_w.const_vector(), mdy,
                         c1.const_vector(), c2.const_vector(), s.width, dx.matrix(s.rows, s.width));
  norm_backward_weight<T>(space, mx, mean.const_vector(), rstd.const_vector(), mdy, dw.vector(), db.vector(),
                          Write::overwrite);
  return {y.host(), dx.host(), dw.host(), db.host()};
}

// The textbook's formulas in fp64.
template <class T>
Result<double> plain_norm(bool layer, const Shape& s, const std::vector<T>& x, const std::vector<T>& w,
                          const std::vector<T>& b, const std::vector<T>& dy) {
  Result<double> result{std::vector<double>(x.size()), std::vector<double>(x.size()), std::vector<double>(w.size()),
                        std::vector<double>(b.size())};
  const double width = static_cast<double>(s.width);
  for (Index r = 0; r < s.rows; ++r) {
    const T* in = x.data() + r * s.width;
    const T* d = dy.data() + r * s.width;
    double mean = 0, squares = 0, c1 = 0, c2 = 0;
    for (Index j = 0; layer && j < s.width; ++j) mean += in[j] / width;
    for (Index j = 0; j < s.width; ++j) squares += (in[j] - mean) * (in[j] - mean);
    const double rstd = 1 / std::sqrt(squares / width + kEps);
    for (Index j = 0; j < s.width; ++j) {
      const double hat = (in[j] - mean) * rstd;
      result.y[r * s.width + j] = hat * w[j] + (b.empty() ? 0.0 : static_cast<double>(b[j]));
      c1 += layer ? static_cast<double>(d[j]) * w[j] : 0.0;
      c2 += d[j] * w[j] * hat;
      result.dw[j] += d[j] * hat;
      if (!b.empty()) result.db[j] += d[j];
    }
    for (Index j = 0; j < s.width; ++j) {
      const double hat = (in[j] - mean) * rstd;
      result.dx[r * s.width + j] = rstd * (static_cast<double>(d[j]) * w[j] - c1 / width - hat * c2 / width);
    }
  }
  return result;
}

template <class T>
class Norm : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Norm, Scalars);

TYPED_TEST(Norm, MatchesPlainLoops) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    for (int kind = 0; kind < 3; ++kind) {  // layer norm with and without bias, RMS norm
      auto x = cast_to<T>(normal_numbers(s.rows * s.width, 1));
      for (T& value : x) value += T(3);  // a mean that matters
      const auto w = cast_to<T>(normal_numbers(s.width, 2)), dy = cast_to<T>(normal_numbers(s.rows * s.width, 3));
      const auto b = cast_to<T>(normal_numbers(kind == 0 ? s.width : 0, 4));
      const bool layer = kind < 2;
      // Widths 1 and 2 divide by a deviation near zero, which magnifies rounding.
      const double tolerance = kTolerance<T> * (s.width < 3 ? 2e3 : 10.0);
      const auto got = kernels_norm(layer, s, x, w, b, dy);
      const auto want = plain_norm(layer, s, x, w, b, dy);
      const std::string what = "kind " + std::to_string(kind) + " width " + std::to_string(s.width) + " ";
      expect_close(got.y, want.y, tolerance, what + "y", 1.0);
      expect_close(got.dx, want.dx, tolerance, what + "dx", 1.0);
      expect_close(got.dw, want.dw, tolerance, what + "dw", 1.0);
      expect_close(got.db, want.db, tolerance, what + "db", 1.0);
    }
  }
}

TEST(NormGradient, MatchesDifferences) {
  const Shape s{3, 5};
  const auto x = normal_numbers(15, 1), w = normal_numbers(5, 2), dy = normal_numbers(15, 3);
  for (int kind = 0; kind < 3; ++kind) {
    const bool layer = kind < 2;
    const auto b = normal_numbers(kind == 0 ? 5 : 0, 4);
    const auto loss = [&](const auto& at_x, const auto& at_w, const auto& at_b) {
      return test::inner_product(kernels_norm(layer, s, at_x, at_w, at_b, dy).y, dy);
    };
    const auto got = kernels_norm(layer, s, x, w, b, dy);
    expect_close(got.dx, test::numeric_gradient(x, [&](const auto& at) { return loss(at, w, b); }), 1e-8, "dx");
    expect_close(got.dw, test::numeric_gradient(w, [&](const auto& at) { return loss(x, at, b); }), 1e-8, "dw");
    expect_close(got.db, test::numeric_gradient(b, [&](const auto& at) { return loss(x, w, at); }), 1e-8, "db");
  }
}

// Two ranks with 3 and 4 of 7 columns, sums reduced by hand, make the same rows as one.
TYPED_TEST(Norm, SplitColumnsMatchWholeRows) {
  using T = TypeParam;
  const Shape s{6, 7};
  const Space space;
  const auto x = cast_to<T>(normal_numbers(42, 1)), w = cast_to<T>(normal_numbers(7, 2)),
             dy = cast_to<T>(normal_numbers(42, 3));
  const std::vector<Index> first{0, 3}, width{3, 4};
  for (const bool layer : {true, false}) {
    const auto whole = plain_norm(layer, s, x, w, layer ? std::vector<T>(7) : std::vector<T>(), dy);
    std::vector<DeviceArray<T>> part_x, part_w, part_dy;
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<T> px, pw, pdy;
      for (Index r = 0; r < s.rows; ++r) {
        for (Index j = 0; j < width[rank]; ++j) {
          px.push_back(x[r * 7 + first[rank] + j]);
          pdy.push_back(dy[r * 7 + first[rank] + j]);
        }
      }
      for (Index j = 0; j < width[rank]; ++j) pw.push_back(w[first[rank] + j]);
      part_x.emplace_back(px);
      part_w.emplace_back(pw);
      part_dy.emplace_back(pdy);
    }
    const auto matrix = [&](const std::vector<DeviceArray<T>>& parts, int rank) {
      return parts[rank].const_matrix(s.rows, width[rank]);
    };
    // What an all-reduce over the two ranks would leave on both.
    const auto reduced = [&](const auto& pass) {
      const DeviceArray<Acc<T>> total(s.rows);
      for (int rank = 0; rank < 2; ++rank) {
        const DeviceArray<Acc<T>> part(s.rows, Acc<T>(7));
        pass(rank, part.vector());
        add<Acc<T>>(space, part.const_vector(), total.vector());
      }
      return total;
    };
    const auto sum = reduced([&](int rank, auto out) { norm_row_sum<T>(space, matrix(part_x, rank), out); });
    const auto squares = reduced([&](int rank, auto out) {
      if (layer) {
        norm_centred_squares<T>(space, matrix(part_x, rank), sum.const_vector(), 7, out);
      } else {
        norm_row_squares<T>(space, matrix(part_x, rank), out);
      }
    });
    const DeviceArray<Acc<T>> mean(layer ? s.rows : 0), rstd(s.rows), none(0);
    const DeviceArray<T> no_bias(0);
    const auto column = [&](const std::vector<double>& rows, int rank) {
      std::vector<double> part;
      for (Index r = 0; r < s.rows; ++r) {
        for (Index j = 0; j < width[rank]; ++j) part.push_back(rows[r * 7 + first[rank] + j]);
      }
      return part;
    };
    for (int rank = 0; rank < 2; ++rank) {
      const DeviceArray<T> y(s.rows * width[rank]);
      if (layer) {
        layer_norm_forward<T>(space, matrix(part_x, rank), sum.const_vector(), squares.const_vector(), 7, kEps,
                              part_w[rank].const_vector(), no_bias.const_vector(), y.matrix(s.rows, width[rank]),
                              mean.vector(), rstd.vector());
      } else {
        rms_norm_forward<T>(space, matrix(part_x, rank), squares.const_vector(), 7, kEps, part_w[rank].const_vector(),
                            y.matrix(s.rows, width[rank]), rstd.vector());
      }
      expect_close(y.host(), column(whole.y, rank), 10 * kTolerance<T>, "y");
    }
    const auto sums = [&](bool second) {
      return reduced([&](int rank, auto out) {
        const DeviceArray<Acc<T>> other(layer ? s.rows : 0), other2(s.rows);
        norm_backward_sums<T>(space, matrix(part_x, rank), mean.const_vector(), rstd.const_vector(),
                              part_w[rank].const_vector(), matrix(part_dy, rank), second ? other.vector() : out,
                              second ? out : other2.vector());
      });
    };
    const auto c1 = layer ? sums(false) : DeviceArray<Acc<T>>(0);
    const auto c2 = sums(true);
    for (int rank = 0; rank < 2; ++rank) {
      const DeviceArray<T> dx(s.rows * width[rank]);
      norm_backward_input<T>(space, matrix(part_x, rank), mean.const_vector(), rstd.const_vector(),
                             part_w[rank].const_vector(), matrix(part_dy, rank), c1.const_vector(), c2.const_vector(),
                             7, dx.matrix(s.rows, width[rank]));
      expect_close(dx.host(), column(whole.dx, rank), 10 * kTolerance<T>, "dx");
    }
  }
}

// Rows in one pass are the passes, and so is the sum with a branch before and a residual after.
TYPED_TEST(Norm, WholeRowsAreThePassesTogether) {
  using T = TypeParam;
  const Space space;
  for (const Shape& s : kShapes) {
    const Index size = s.rows * s.width;
    const auto x = cast_to<T>(normal_numbers(size, 1)), w = cast_to<T>(normal_numbers(s.width, 2)),
               dy = cast_to<T>(normal_numbers(size, 3)), b = cast_to<T>(normal_numbers(s.width, 4)),
               other = cast_to<T>(normal_numbers(size, 5));
    auto sum = x;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    for (const bool with_branch : {false, true}) {
      for (int kind = 0; kind < 3; ++kind) {  // layer norm with and without bias, RMS norm
        const bool layer = kind < 2;
        const auto bias = kind == 0 ? b : std::vector<T>();
        const auto want = kernels_norm(layer, s, with_branch ? sum : x, w, bias, dy);
        const DeviceArray<T> dev_x(x), branch(with_branch ? other : std::vector<T>()), dev_w(w), dev_b(bias),
            dev_dy(dy), y(size, T(9)), dx(size, T(9)), residual(other);
        const DeviceArray<Acc<T>> mean(layer ? s.rows : 0), rstd(s.rows);
        const Matrix<T> added = with_branch ? branch.matrix(s.rows, s.width) : Matrix<T>();
        if (layer) {
          layer_norm_rows<T>(space, dev_x.const_matrix(s.rows, s.width), added, kEps, dev_w.const_vector(),
                             dev_b.const_vector(), y.matrix(s.rows, s.width), mean.vector(), rstd.vector());
        } else {
          rms_norm_rows<T>(space, dev_x.const_matrix(s.rows, s.width), added, kEps, dev_w.const_vector(),
                           y.matrix(s.rows, s.width), rstd.vector());
        }
        const double tolerance = 4 * std::numeric_limits<T>::epsilon();
        expect_close(y.host(), test::widened(want.y), tolerance, "y", 1.0);
        if (with_branch) {
          EXPECT_EQ(branch.host(), sum);
        }
        const auto normed = (with_branch ? branch : dev_x).const_matrix(s.rows, s.width);
        const auto back = [&](Matrix<const T> before) {
          norm_backward_rows<T>(space, normed, mean.const_vector(), rstd.const_vector(), dev_w.const_vector(),
                                dev_dy.const_matrix(s.rows, s.width), before, dx.matrix(s.rows, s.width));
        };
        back({});
        expect_close(dx.host(), test::widened(want.dx), tolerance, "dx", 1.0);
        back(residual.const_matrix(s.rows, s.width));
        auto want_sum = test::widened(want.dx);
        for (std::size_t i = 0; i < want_sum.size(); ++i) want_sum[i] += other[i];
        expect_close(dx.host(), want_sum, tolerance, "dx and residual", 1.0);
      }
    }
  }
}

// Adding must keep what was there; the sums over rows do not depend on it.
TYPED_TEST(Norm, BackwardWeightAdds) {
  using T = TypeParam;
  const Index rows = 9, width = 1030;
  const DeviceArray<T> x(cast_to<T>(normal_numbers(rows * width, 1))), dy(cast_to<T>(normal_numbers(rows * width, 2)));
  const DeviceArray<Acc<T>> mean(cast_to<Acc<T>>(normal_numbers(rows, 3))), rstd(rows, Acc<T>(1.5));
  const auto old = cast_to<T>(normal_numbers(width, 4));
  const DeviceArray<T> w_over(old), b_over(old), w_add(old), b_add(old);
  const auto call = [&](const DeviceArray<T>& dw, const DeviceArray<T>& db, Write write) {
    norm_backward_weight<T>(Space(), x.const_matrix(rows, width), mean.const_vector(), rstd.const_vector(),
                            dy.const_matrix(rows, width), dw.vector(), db.vector(), write);
  };
  call(w_over, b_over, Write::overwrite);
  call(w_add, b_add, Write::add);
  const auto w = w_over.host(), b = b_over.host(), w_sum = w_add.host(), b_sum = b_add.host(), d = dy.host();
  for (Index j = 0; j < width; ++j) {
    ASSERT_EQ(w_sum[j], old[j] + w[j]);
    ASSERT_EQ(b_sum[j], old[j] + b[j]);
    T in_order = T(0);
    for (Index r = 0; r < rows; ++r) in_order += d[r * width + j];
    ASSERT_EQ(b[j], in_order);
  }
}

// A NaN or an infinity spoils its row, forward and on the way back, and no other. Nor do squares that
// overflow pass as zeros.
TYPED_TEST(Norm, WhatIsNotFiniteStaysInItsRow) {
  using T = TypeParam;
  const Index rows = 4, width = 37;
  auto values = cast_to<T>(normal_numbers(rows * width, 1));
  values[1 * width + 5] = std::numeric_limits<T>::quiet_NaN();
  values[2 * width + 36] = std::numeric_limits<T>::infinity();
  values[3 * width + 7] = std::numeric_limits<T>::max() / 2;
  const DeviceArray<T> x(values), w(cast_to<T>(normal_numbers(width, 2))),
      dy(cast_to<T>(normal_numbers(rows * width, 3)));
  for (const bool layer : {true, false}) {
    const DeviceArray<T> y(rows * width), dx(rows * width);
    const DeviceArray<Acc<T>> mean(layer ? rows : 0), rstd(rows);
    if (layer) {
      layer_norm_rows<T>(Space(), x.const_matrix(rows, width), {}, kEps, w.const_vector(), w.const_vector(),
                         y.matrix(rows, width), mean.vector(), rstd.vector());
    } else {
      rms_norm_rows<T>(Space(), x.const_matrix(rows, width), {}, kEps, w.const_vector(), y.matrix(rows, width),
                       rstd.vector());
    }
    norm_backward_rows<T>(Space(), x.const_matrix(rows, width), mean.const_vector(), rstd.const_vector(),
                          w.const_vector(), dy.const_matrix(rows, width), {}, dx.matrix(rows, width));
    const auto spoilt = [&](const DeviceArray<T>& array, Index row) {
      const auto all = array.host();
      return std::any_of(all.begin() + row * width, all.begin() + (row + 1) * width,
                         [](T value) { return !std::isfinite(value); });
    };
    for (const DeviceArray<T>* array : {&y, &dx}) {
      EXPECT_FALSE(spoilt(*array, 0));
      EXPECT_TRUE(spoilt(*array, 1));
      EXPECT_TRUE(spoilt(*array, 2));
      EXPECT_TRUE(spoilt(*array, 3));
    }
  }
}

}  // namespace
}  // namespace fourfold::kernels
