#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "device_array.hpp"
#include "kernels/activation.hpp"
#include "kernels/dropout.hpp"
#include "kernels/embedding.hpp"
#include "kernels/loss.hpp"
#include "kernels/norm.hpp"
#include "kernels/permute.hpp"
#include "kernels/stream.hpp"
#include "kernels/vector.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

template <class T>
class Stream : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Stream, Scalars);

// Every place within a line and every length to some lines; what lies around stays as it is.
TYPED_TEST(Stream, WritesWhatItShouldAndNoMore) {
  using T = TypeParam;
  if (!kStreamsOnHost) GTEST_SKIP() << "NOT TESTED on this device: only a host writes around its caches";
  const Index room = 600;
  const auto from = cast_to<T>(normal_numbers(room, 1));
  const auto square = [&](Index j) { return from[j] * from[j]; };
  std::vector<T> copied, made, left, right;
  for (Index at = 0; at < 20; ++at) {
    for (const Index n : {0, 1, 2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 129, 300}) {
      for (auto* values : {&copied, &made, &left, &right}) values->assign(room, T(7));
      copy_run(true, n, from.data(), copied.data() + at);
      write_run(true, n, made.data() + at, square);
      write_two_runs(true, n, left.data() + at, right.data() + at, [&](Index j, T& l, T& r) {
        l = from[j] + T(1);
        r = -from[j];
      });
      finish_stores_around_caches(true);
      for (Index i = 0; i < room; ++i) {
        const bool in = i >= at && i < at + n;
        const Index j = in ? i - at : 0;
        ASSERT_EQ(copied[i], in ? from[j] : T(7)) << at << " " << n << " " << i;
        ASSERT_EQ(made[i], in ? square(j) : T(7)) << at << " " << n << " " << i;
        ASSERT_EQ(left[i], in ? from[j] + T(1) : T(7)) << at << " " << n << " " << i;
        ASSERT_EQ(right[i], in ? -from[j] : T(7)) << at << " " << n << " " << i;
      }
    }
  }
}

// Few drawn numbers, over and over: the arrays are long.
template <class T>
std::vector<T> long_numbers(Index size, unsigned seed) {
  const auto some = cast_to<T>(normal_numbers(10007, seed));
  std::vector<T> values(static_cast<std::size_t>(size));
  for (std::size_t first = 0; first < values.size(); first += some.size()) {
    std::copy_n(some.begin(), std::min(some.size(), values.size() - first),
                values.begin() + static_cast<std::ptrdiff_t>(first));
  }
  return values;
}

template <class T>
bool same_bits(const DeviceArray<T>& a, const DeviceArray<T>& b) {
  const auto x = a.host(), y = b.host();
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

// Rows enough to go around the caches and the same rows in parts too small for it: equal bit for bit.
template <class T>
struct Large {
  static constexpr Index kWidth = 1027;  // odd: rows start anywhere in a line
  static constexpr Index kRows = kStreamBytes / static_cast<Index>(sizeof(T)) / kWidth + 3;
  static constexpr Index kPart = 700;

  DeviceArray<T> x{long_numbers<T>(kRows * kWidth, 1)}, dy{long_numbers<T>(kRows * kWidth, 2)};
  DeviceArray<T> whole{kRows * kWidth, T(7)}, parts{kRows * kWidth, T(7)};

  // call(first row, rows, out) writes rows of `width` elements.
  void expect_equal(const char* name, Index width, const std::function<void(Index, Index, T*)>& call) {
    call(0, kRows, whole.data());
    for (Index row = 0; row < kRows; row += kPart) {
      call(row, std::min(kPart, kRows - row), parts.data() + row * width);
    }
    EXPECT_TRUE(same_bits(whole, parts)) << name;
  }
};

TYPED_TEST(Stream, LargeOutputsEqualTheirParts) {
  using T = TypeParam;
  const Space space;
  Large<T> data;
  constexpr Index kWidth = Large<T>::kWidth, kRows = Large<T>::kRows;
  ASSERT_GE(kRows * kWidth * static_cast<Index>(sizeof(T)), kStreamBytes);
  const auto in = [&](const DeviceArray<T>& x, Index row, Index rows) {
    return Matrix<const T>(x.data() + row * kWidth, rows, kWidth);
  };
  const auto flat = [&](const DeviceArray<T>& x, Index row, Index rows) {
    return Vector<const T>(x.data() + row * kWidth, rows * kWidth);
  };
  const auto to = [&](T* out, Index rows) { return Matrix<T>(out, rows, kWidth); };
  const auto flat_to = [&](T* out, Index rows) { return Vector<T>(out, rows * kWidth); };
  const DeviceArray<T>&x = data.x, &dy = data.dy;

  using Forward = void (*)(const Space&, Vector<const T>, Vector<T>);
  for (const Forward forward : {relu_forward<T>, gelu_forward<T>, gelu_tanh_forward<T>, copy<T>}) {
    data.expect_equal("forward", kWidth,
                      [&](Index row, Index rows, T* out) { forward(space, flat(x, row, rows), flat_to(out, rows)); });
  }
  using Backward = void (*)(const Space&, Vector<const T>, Vector<const T>, Vector<T>);
  for (const Backward backward : {relu_backward<T>, gelu_backward<T>, gelu_tanh_backward<T>}) {
    data.expect_equal("backward", kWidth, [&](Index row, Index rows, T* out) {
      backward(space, flat(x, row, rows), flat(dy, row, rows), flat_to(out, rows));
    });
  }

  const DeviceArray<T> sum(kRows), squares(kRows), mean(kRows), rstd(kRows), c1(kRows), c2(kRows);
  const DeviceArray<T> weight(cast_to<T>(normal_numbers(kWidth, 3))), bias(cast_to<T>(normal_numbers(kWidth, 4)));
  const auto part = [](const DeviceArray<T>& values, Index row, Index rows) {
    return Vector<T>(values.data() + row, rows);
  };
  norm_row_sum<T>(space, in(x, 0, kRows), sum.vector());
  norm_centred_squares<T>(space, in(x, 0, kRows), sum.const_vector(), kWidth, squares.vector());
  for (const bool biased : {true, false}) {
    const Vector<const T> b = biased ? bias.const_vector() : Vector<const T>();
    data.expect_equal("layer_norm_forward", kWidth, [&](Index row, Index rows, T* out) {
      layer_norm_forward<T>(space, in(x, row, rows), part(sum, row, rows), part(squares, row, rows), kWidth, 1e-5,
                            weight.const_vector(), b, to(out, rows), part(mean, row, rows), part(rstd, row, rows));
    });
  }
  norm_backward_sums<T>(space, in(x, 0, kRows), mean.const_vector(), rstd.const_vector(), weight.const_vector(),
                        in(dy, 0, kRows), c1.vector(), c2.vector());
  data.expect_equal("norm_backward_input", kWidth, [&](Index row, Index rows, T* out) {
    norm_backward_input<T>(space, in(x, row, rows), part(mean, row, rows), part(rstd, row, rows), weight.const_vector(),
                           in(dy, row, rows), part(c1, row, rows), part(c2, row, rows), kWidth, to(out, rows));
  });
  data.expect_equal("rms_norm_forward", kWidth, [&](Index row, Index rows, T* out) {
    rms_norm_forward<T>(space, in(x, row, rows), part(squares, row, rows), kWidth, 1e-5, weight.const_vector(),
                        to(out, rows), part(rstd, row, rows));
  });

  data.expect_equal("dropout_forward", kWidth, [&](Index row, Index rows, T* out) {
    dropout_forward<T>(space, in(x, row, rows), RandomStream{5, 6}, 0.3, GlobalRows{0, kRows, row, kRows, 0, kWidth},
                       to(out, rows));
  });
  std::vector<std::int32_t> some(kRows);
  for (Index r = 0; r < kRows; ++r) some[r] = static_cast<std::int32_t>(r * 13 % 90);
  const DeviceArray<std::int32_t> ids(some);
  const auto these = [&](Index row, Index rows) { return Vector<const std::int32_t>(ids.data() + row, rows); };
  data.expect_equal("embedding_forward", kWidth, [&](Index row, Index rows, T* out) {
    embedding_forward<T>(space, these(row, rows), in(x, 0, 80), 0, to(out, rows));
  });
  cross_entropy_max<T>(space, in(x, 0, kRows), c1.vector());
  cross_entropy_sums<T>(space, in(x, 0, kRows), c1.const_vector(), ids.const_vector(), 0, sum.vector(), c2.vector());
  data.expect_equal("cross_entropy_backward", kWidth, [&](Index row, Index rows, T* out) {
    cross_entropy_backward<T>(space, in(x, row, rows), part(c1, row, rows), part(sum, row, rows), these(row, rows), 0,
                              0.5, to(out, rows));
  });
  data.expect_equal("copy_columns", kWidth, [&](Index row, Index rows, T* out) {
    copy_columns<T>(space, in(x, row, rows), 0, kWidth, to(out, rows), 0);
  });
  data.expect_equal("copy_box", kWidth, [&](Index row, Index rows, T* out) {
    copy_box<T>(space, {1, rows, kWidth, 0, 0, kWidth, 0, 0, kWidth}, flat(x, row, rows), flat_to(out, rows));
  });
  // Gates and ups of half a row each; backward makes both.
  constexpr Index kHalf = kWidth / 2;
  const auto pairs = [&](Index row, Index rows) {
    return Matrix<const T>(x.data() + row * 2 * kHalf, rows, 2 * kHalf);
  };
  data.expect_equal("swiglu_backward", 2 * kHalf, [&](Index row, Index rows, T* out) {
    swiglu_backward<T>(space, pairs(row, rows), Matrix<const T>(dy.data() + row * kHalf, rows, kHalf),
                       Matrix<T>(out, rows, 2 * kHalf));
  });
}

TYPED_TEST(Stream, LargeSwigluEqualsItsParts) {
  using T = TypeParam;
  const Index width = 1027, rows = kStreamBytes / static_cast<Index>(sizeof(T)) / width + 3, half = rows / 2;
  const DeviceArray<T> x(long_numbers<T>(rows * 2 * width, 5));
  const DeviceArray<T> whole(rows * width), parts(rows * width);
  const auto call = [&](Index row, Index count, T* out) {
    swiglu_forward<T>(Space(), Matrix<const T>(x.data() + row * 2 * width, count, 2 * width),
                      Matrix<T>(out, count, width));
  };
  call(0, rows, whole.data());
  call(0, half, parts.data());
  call(half, rows - half, parts.data() + half * width);
  EXPECT_TRUE(same_bits(whole, parts));
}

}  // namespace
}  // namespace fourfold::kernels
