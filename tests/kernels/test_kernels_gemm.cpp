#include <dlfcn.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>

#include "comparison.hpp"
#include "device_array.hpp"
#include "kernels/gemm.hpp"
#include "kernels/product_parts.hpp"
#include "test_support.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::expect_close;
using test::normal_numbers;
using test::numeric_gradient;
using test::widened;

// The result's rounding of a sum of k products of order one, relative to the largest entry.
template <class C>
constexpr double kTolerance = std::is_same_v<C, bf16>    ? 0x1p-8
                              : std::is_same_v<C, float> ? 2e-6
                                                         : 1e-14;

// Operands and result.
template <class T, class C>
struct Types {
  using Operand = T;
  using Result = C;
};

struct Case {
  bool transpose_a, transpose_b;
  Index m, n, k, padding;  // padding: how much each leading dimension exceeds its row
};

std::string name(const Case& s) {
  return std::string("gemm ") + (s.transpose_a ? "T" : "N") + (s.transpose_b ? "T " : "N ") + std::to_string(s.m) +
         " " + std::to_string(s.n) + " " + std::to_string(s.k) + " padding " + std::to_string(s.padding);
}

// C (+)= op(A) op(B) by plain loops in fp64 on what the kernel is given.
template <class T, class C>
std::vector<double> plain(const Case& s, const std::vector<T>& a, Index lda, const std::vector<T>& b, Index ldb,
                          const std::vector<C>& c, Index ldc, bool add) {
  std::vector<double> result(c.begin(), c.end());
  for (Index i = 0; i < s.m; ++i) {
    for (Index j = 0; j < s.n; ++j) {
      double sum = 0.0;
      for (Index l = 0; l < s.k; ++l) {
        sum += static_cast<double>(a[s.transpose_a ? l * lda + i : i * lda + l]) *
               b[s.transpose_b ? j * ldb + l : l * ldb + j];
      }
      result[i * ldc + j] = add ? result[i * ldc + j] + sum : sum;
    }
  }
  return result;
}

template <class T, class C = T>
void check(const Case& s, Write write, bool reference) {
  if (!std::is_same_v<C, Acc<T>> && write == Write::add) return;  // not offered
  const Index lda = (s.transpose_a ? s.m : s.k) + s.padding, ldb = (s.transpose_b ? s.k : s.n) + s.padding;
  const Index ldc = s.n + s.padding;
  const auto a = cast_to<T>(normal_numbers((s.transpose_a ? s.k : s.m) * lda, 1));
  const auto b = cast_to<T>(normal_numbers((s.transpose_b ? s.n : s.k) * ldb, 2));
  const auto c = cast_to<C>(normal_numbers(s.m * ldc, 3));
  const DeviceArray<T> da(a), db(b);
  const DeviceArray<C> dc(c);
  const auto call = reference ? gemm_reference<T, C> : gemm<T, C>;
  call(Space(), s.transpose_a, s.transpose_b, s.m, s.n, s.k, da.data(), lda, db.data(), ldb, dc.data(), ldc, write);
  // The comparison covers the padding of C, which must stay as it was.
  expect_close(dc.host(), plain(s, a, lda, b, ldb, c, ldc, write == Write::add), kTolerance<C>,
               name(s) + (write == Write::add ? " add" : " overwrite"));
}

std::vector<Case> cases() {
  const std::vector<std::tuple<Index, Index, Index>> sizes{
      {1, 1, 1},   {1, 1, 7},    {1, 9, 1},   {5, 1, 1},   {2, 3, 4},     {7, 5, 3},      {16, 16, 16},
      {17, 33, 9}, {64, 48, 31}, {1, 96, 64}, {96, 1, 33}, {33, 65, 129}, {257, 19, 100}, {130, 257, 1}};
  std::vector<Case> all;
  for (const auto& [m, n, k] : sizes) {
    for (int flags = 0; flags < 4; ++flags) {
      for (const Index padding : {0, 5}) all.push_back({(flags & 1) != 0, (flags & 2) != 0, m, n, k, padding});
    }
  }
  return all;
}

template <class T>
class Gemm : public testing::Test {};
using Scalars = testing::Types<Types<float, float>, Types<double, double>, Types<bf16, bf16>, Types<bf16, float>>;
TYPED_TEST_SUITE(Gemm, Scalars);

TYPED_TEST(Gemm, LibraryMatchesPlainLoops) {
  for (const Case& s : cases()) {
    for (const Write write : {Write::overwrite, Write::add})
      check<typename TypeParam::Operand, typename TypeParam::Result>(s, write, false);
  }
}

TYPED_TEST(Gemm, ReferenceMatchesPlainLoops) {
  for (const Case& s : cases()) {
    for (const Write write : {Write::overwrite, Write::add})
      check<typename TypeParam::Operand, typename TypeParam::Result>(s, write, true);
  }
}

TYPED_TEST(Gemm, NothingToMultiply) {
  using T = typename TypeParam::Operand;
  using C = typename TypeParam::Result;
  for (const auto& [m, n] : std::vector<std::pair<Index, Index>>{{3, 4}, {0, 4}, {3, 0}, {0, 0}}) {
    for (const auto call : {gemm<T, C>, gemm_reference<T, C>}) {
      const DeviceArray<C> c(m * n, C(3));
      if (std::is_same_v<C, Acc<T>>) {
        call(Space(), false, true, m, n, 0, nullptr, 0, nullptr, 0, c.data(), n, Write::add);
        EXPECT_EQ(c.host(), std::vector<C>(m * n, C(3)));
      }
      call(Space(), false, true, m, n, 0, nullptr, 0, nullptr, 0, c.data(), n, Write::overwrite);
      EXPECT_EQ(c.host(), std::vector<C>(m * n, C(0)));
    }
  }
  const DeviceArray<T> a(12, T(1));
  gemm<T, C>(Space(), false, false, 0, 4, 3, nullptr, 3, a.data(), 4, nullptr, 4);
  gemm<T, C>(Space(), false, false, 4, 0, 3, a.data(), 3, nullptr, 0, nullptr, 0);
}

TYPED_TEST(Gemm, OverwriteDoesNotReadTheTarget) {
  using T = typename TypeParam::Operand;
  using C = typename TypeParam::Result;
  const DeviceArray<T> a(6, T(2)), b(12, T(0.5));
  const DeviceArray<C> c(8, C(std::numeric_limits<Acc<C>>::quiet_NaN()));
  gemm<T, C>(Space(), false, false, 2, 4, 3, a.data(), 3, b.data(), 4, c.data(), 4, Write::overwrite);
  EXPECT_EQ(c.host(), std::vector<C>(8, C(3)));
}

// More shapes than the cache of primitives holds, twice over, each with its own leading dimensions.
TYPED_TEST(Gemm, ManyShapes) {
  for (int round = 0; round < 2; ++round) {
    for (Index m = 1; m <= 20; ++m) {
      for (Index k = 1; k <= 15; ++k)
        check<typename TypeParam::Operand, typename TypeParam::Result>({false, true, m, 3, k, m % 3}, Write::add,
                                                                       false);
    }
  }
}

TYPED_TEST(Gemm, LinearForwardAndBackward) {
  using T = typename TypeParam::Operand;
  using C = typename TypeParam::Result;
  for (const auto& [rows, in, out] : std::vector<std::tuple<Index, Index, Index>>{{6, 5, 7},
                                                                                  {33, 64, 17},
                                                                                  {1, 3, 2},
                                                                                  {0, 4, 3},
                                                                                  {1, 71, 10},
                                                                                  {2, 16, 11},
                                                                                  {3, 33, 4},
                                                                                  {4, 67, 9},
                                                                                  {5, 16, 8}}) {
    const auto x = cast_to<T>(normal_numbers(rows * in, 1)), w = cast_to<T>(normal_numbers(out * in, 2));
    const auto dy = cast_to<T>(normal_numbers(rows * out, 3));
    const auto bias = cast_to<T>(normal_numbers(out, 4));
    const DeviceArray<T> dev_x(x), dev_w(w), dev_dy(dy), dev_bias(bias);
    const DeviceArray<C> y(rows * out, C(9)), biased(rows * out, C(9)), dx(rows * in, C(9));
    const DeviceArray<Acc<T>> dw(out * in, Acc<T>(9));
    linear_forward<T, C>(Space(), dev_x.const_matrix(rows, in), dev_w.const_matrix(out, in), y.matrix(rows, out));
    linear_forward<T, C>(Space(), dev_x.const_matrix(rows, in), dev_w.const_matrix(out, in), biased.matrix(rows, out),
                         dev_bias.const_vector());
    linear_backward_input<T, C>(Space(), dev_dy.const_matrix(rows, out), dev_w.const_matrix(out, in),
                                dx.matrix(rows, in));
    linear_backward_weight<T>(Space(), dev_dy.const_matrix(rows, out), dev_x.const_matrix(rows, in), dw.matrix(out, in),
                              Write::overwrite);
    std::vector<double> want_y(rows * out), want_dx(rows * in), want_dw(out * in);
    for (Index r = 0; r < rows; ++r) {
      for (Index o = 0; o < out; ++o) {
        for (Index i = 0; i < in; ++i) {
          want_y[r * out + o] += static_cast<double>(x[r * in + i]) * w[o * in + i];
          want_dx[r * in + i] += static_cast<double>(dy[r * out + o]) * w[o * in + i];
          want_dw[o * in + i] += static_cast<double>(dy[r * out + o]) * x[r * in + i];
        }
      }
    }
    expect_close(y.host(), want_y, kTolerance<C>, "y");
    auto want_biased = want_y;
    for (Index r = 0; r < rows; ++r) {
      for (Index o = 0; o < out; ++o) want_biased[r * out + o] += bias[o];
    }
    expect_close(biased.host(), want_biased, kTolerance<C>, "y with bias");
    expect_close(dx.host(), want_dx, kTolerance<C>, "dx");
    expect_close(dw.host(), want_dw, kTolerance<Acc<T>>, "dw");
    linear_backward_weight<T>(Space(), dev_dy.const_matrix(rows, out), dev_x.const_matrix(rows, in), dw.matrix(out, in),
                              Write::add);
    for (double& value : want_dw) value *= 2.0;
    expect_close(dw.host(), want_dw, kTolerance<Acc<T>>, "dw added");
    if (std::is_same_v<C, Acc<T>>) {
      linear_backward_input<T, C>(Space(), dev_dy.const_matrix(rows, out), dev_w.const_matrix(out, in),
                                  dx.matrix(rows, in), Write::add);
      for (double& value : want_dx) value *= 2.0;
      expect_close(dx.host(), want_dx, kTolerance<C>, "dx added");
    }
  }
}

// Several blocks of the widened product in each direction, whole and cut.
TEST(Product, LargeBf16) {
  for (const auto& [m, n, k] : std::vector<std::tuple<Index, Index, Index>>{
           {1030, 7, 1100}, {5, 1025, 1024}, {1030, 1100, 9}, {2, 1030, 1030}, {1025, 1, 1025}}) {
    for (int flags = 0; flags < 4; ++flags) {
      const Case s{(flags & 1) != 0, (flags & 2) != 0, m, n, k, 3};
      check<bf16, bf16>(s, Write::overwrite, false);
      check<bf16, float>(s, Write::overwrite, false);
      check<bf16, float>(s, Write::add, false);
    }
  }
}

TEST(Linear, BackwardIsTheGradientOfForward) {
  const Index rows = 4, in = 3, out = 5;
  const auto x = normal_numbers(rows * in, 1), w = normal_numbers(out * in, 2), dy = normal_numbers(rows * out, 3);
  const auto loss = [&](const std::vector<double>& at_x, const std::vector<double>& at_w) {
    const DeviceArray<double> dev_x(at_x), dev_w(at_w), y(rows * out);
    linear_forward<double>(Space(), dev_x.const_matrix(rows, in), dev_w.const_matrix(out, in), y.matrix(rows, out));
    return test::inner_product(y.host(), dy);
  };
  const DeviceArray<double> dev_x(x), dev_w(w), dev_dy(dy), dx(rows * in), dw(out * in);
  linear_backward_input<double>(Space(), dev_dy.const_matrix(rows, out), dev_w.const_matrix(out, in),
                                dx.matrix(rows, in));
  linear_backward_weight<double>(Space(), dev_dy.const_matrix(rows, out), dev_x.const_matrix(rows, in),
                                 dw.matrix(out, in), Write::overwrite);
  expect_close(dx.host(), numeric_gradient(x, [&](const auto& at) { return loss(at, w); }), 1e-10, "dx");
  expect_close(dw.host(), numeric_gradient(w, [&](const auto& at) { return loss(x, at); }), 1e-10, "dw");
}

// Products of small integers have one right answer in any order of additions.
TEST(Product, DyadicNumbersAreExact) {
  const Index m = 70, n = 90, k = 200;
  std::vector<double> a(m * k), b(k * n), want(m * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * 7 % 5) * 0.5 - 1.0;
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<double>(i * 11 % 7) / 256.0;
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      for (Index l = 0; l < k; ++l) want[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  const DeviceArray<double> da(a), db(b), c(m * n);
  gemm<double>(Space(), false, false, m, n, k, da.data(), k, db.data(), n, c.data(), n);
  EXPECT_EQ(c.host(), want);
}

TEST(Product, PartsCoverEverythingOnceInOrder) {
  const Index m = 7, n = 5, k = 11, limit = 3;
  std::vector<Index> next(m * n, 0);  // the next term of the sum that each element of C waits for
  for_each_product_part(m, n, k, limit, [&](const ProductPart& part) {
    EXPECT_LE(std::max({part.rows, part.cols, part.inners}), limit);
    EXPECT_GE(std::min({part.rows, part.cols, part.inners}), 1);
    for (Index i = part.row; i < part.row + part.rows; ++i) {
      for (Index j = part.col; j < part.col + part.cols; ++j) {
        EXPECT_EQ(next[i * n + j], part.inner);
        next[i * n + j] = part.inner + part.inners;
      }
    }
  });
  EXPECT_EQ(next, std::vector<Index>(m * n, k));
  for_each_product_part(0, 5, 5, 3, [](const ProductPart&) { ADD_FAILURE(); });
}

TEST(Threads, OneByDefaultAndAsSet) {
  const auto blas_threads = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_num_threads"));
  if (blas_threads == nullptr)
    GTEST_SKIP() << "NOT TESTED on this machine: only OpenBLAS tells its threads, and the BLAS in use is another";
  const DeviceArray<double> a(4, 1.0), c(4);
  gemm<double>(Space(), false, false, 2, 2, 2, a.data(), 2, a.data(), 2, c.data(), 2);
  EXPECT_EQ(blas_threads(), 1);
  set_product_threads(2);
  EXPECT_EQ(blas_threads(), 2);
  check<float>({false, true, 64, 48, 31, 0}, Write::add, false);
  check<double>({false, true, 64, 48, 31, 0}, Write::add, false);
  set_product_threads(1);
  EXPECT_EQ(blas_threads(), 1);
  EXPECT_THROW(set_product_threads(0), std::invalid_argument);
}

// A product leaves the caller's OpenMP setting as it was.
TEST(Threads, CallersOpenMpSettingStays) {
  const auto get = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (get == nullptr || set == nullptr)
    GTEST_SKIP()
        << "NOT TESTED on this machine: no OpenMP runtime in this program, so none whose threads could be many";
  const int before = get();
  set(3);
  check<float>({false, true, 64, 48, 31, 0}, Write::add, false);
  EXPECT_EQ(get(), 3);
  set(before);
}

}  // namespace
}  // namespace fourfold::kernels
