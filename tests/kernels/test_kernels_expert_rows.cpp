// The router's choices, and rows on their way to experts, against plain host loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "device_array.hpp"
#include "kernels/expert_rows.hpp"
#include "kernels/router.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

std::vector<std::int32_t> top_k(const std::vector<double>& keys, Index experts, Index k, const TopK& rule = {},
                                const std::vector<double>& bias = {}) {
  const Index rows = std::ssize(keys) / experts;
  const DeviceArray<double> in(keys), added(bias);
  const DeviceArray<std::int32_t> choice(rows * k, -7);
  router_top_k<double>(Space(), rule, in.const_matrix(rows, experts), added.const_vector(), choice.matrix(rows, k));
  return choice.host();
}

using Choices = std::vector<std::int32_t>;

TEST(RouterTopK, LargestFirstAndTiesToTheLower) {
  EXPECT_EQ(top_k({1, 3, 2, 3}, 4, 3), (Choices{1, 3, 2}));
  EXPECT_EQ(top_k({0, 0, 0, 0, 5, 5, 5, 5}, 4, 2), (Choices{0, 1, 0, 1}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(top_k({nan, nan, nan}, 3, 2), (Choices{0, 1}));  // in range
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(top_k({-inf, 1, -inf}, 3, 1), (Choices{1}));
}

TEST(RouterTopK, BiasMovesChoices) {
  EXPECT_EQ(top_k({1, 3, 2, 0}, 4, 2, {}, {2.5, 0, 0, 0}), (Choices{0, 1}));
}

// Groups (0, 1) (2, 3) (4, 5): by their largest, or by their sum of two.
TEST(RouterTopK, BestGroups) {
  const std::vector<double> keys{9, 0, 5, 5, 4, 3};
  EXPECT_EQ(top_k(keys, 6, 2, {Scores::softmax, 3, 1}), (Choices{0, 1}));
  EXPECT_EQ(top_k(keys, 6, 2, {Scores::sigmoid, 3, 1}), (Choices{2, 3}));
  EXPECT_EQ(top_k(keys, 6, 3, {Scores::sigmoid, 3, 2}), (Choices{0, 2, 3}));
  EXPECT_EQ(top_k({1, 1, 1, 1, 1, 1}, 6, 2, {Scores::softmax, 3, 1}), (Choices{0, 1}));  // ties among groups too
}

// Scores, weights and their adjoint stay finite where scores vanish.
TEST(Router, VanishingScores) {
  const DeviceArray<double> logits(std::vector<double>{-900, 0, 900, -900}), scores(4), lse(1), total(1);
  router_scores<double>(Space(), Scores::softmax, logits.const_matrix(1, 4), scores.matrix(1, 4), lse.vector(),
                        total.vector());
  EXPECT_EQ(lse.host()[0], 900);
  const DeviceArray<std::int32_t> choice(Choices{0, ~3});
  const DeviceArray<double> weights(2);
  router_weights_forward<double>(Space(), true, scores.const_matrix(1, 4), choice.const_matrix(1, 2),
                                 weights.matrix(1, 2));
  EXPECT_EQ(weights.host(), (std::vector<double>{0.5, 0.5}));
  const DeviceArray<double> dweights(std::vector<double>{3, 4}), dlogits(4);
  router_backward<double>(Space(), Scores::softmax, true, logits.const_matrix(1, 4), lse.const_vector(),
                          choice.const_matrix(1, 2), dweights.const_matrix(1, 2), {}, dlogits.matrix(1, 4));
  for (const double d : dlogits.host()) EXPECT_EQ(d, 0);
}

// More pairs than a task sorts, some dropped, places that are not the experts' order.
TEST(ExpertRows, SortIsStable) {
  const Index experts = 7;
  for (const Index pairs : {Index{0}, Index{5}, Index{4096}, Index{20011}}) {
    std::vector<std::int32_t> choice;
    for (Index p = 0; p < pairs; ++p) {
      const auto e = static_cast<std::int32_t>((p * p + p / 3) % (experts - 1));  // the last is idle
      choice.push_back(p % 11 == 3 ? ~e : e);
    }
    const std::vector<Index> place{3, 0, 6, 1, 5, 2, 4};
    const DeviceArray<std::int32_t> chosen(choice);
    const DeviceArray<Index> places(place), scratch(sort_pairs_scratch(pairs, experts)), position(pairs), order(pairs),
        counts(experts);
    sort_pairs(Space(), chosen.const_vector(), places.const_vector(), scratch.vector(), position.vector(),
               order.vector(), counts.vector());
    std::vector<Index> expected, each(static_cast<std::size_t>(experts));
    for (Index q = 0; q < experts; ++q) {
      for (Index p = 0; p < pairs; ++p) {
        if (choice[p] < 0 || place[choice[p]] != q) continue;
        expected.push_back(p);
        ++each[q];
      }
    }
    std::vector<Index> got = order.host();
    got.resize(expected.size());
    EXPECT_EQ(got, expected);
    EXPECT_EQ(counts.host(), each);
    const std::vector<Index> at = position.host();
    for (Index p = 0; p < pairs; ++p) {
      if (choice[p] < 0) {
        ASSERT_EQ(at[p], -1);
      } else {
        ASSERT_EQ(expected[at[p]], p);
      }
    }
  }
}

// Three sources, two experts, empty runs among them.
TEST(ExpertRows, MergeBySeveralSources) {
  const std::vector<std::int64_t> ids{4, 9, 1, /**/ 7, /**/ 2, 5, 6};
  const std::vector<Index> run_begin{0, 2, 3, 4, 4, 4, 7};  // source 1 has none of expert 1, source 2 none of expert 0
  const std::vector<Index> row_begin{10, 12, 20, 30, 40, 50};
  const DeviceArray<std::int64_t> numbers(ids);
  const DeviceArray<Index> begins(run_begin), rows(row_begin), first(std::vector<Index>{0, 3, 7}), row_of(7);
  merge_runs(Space(), {3, 2, begins.const_vector(), rows.const_vector(), first.const_vector()}, numbers.const_vector(),
             row_of.vector());
  // Expert 0: 4 (row 10), 7 (row 20), 9 (row 11). Expert 1: 1, 2, 5, 6.
  EXPECT_EQ(row_of.host(), (std::vector<Index>{10, 20, 11, 12, 50, 51, 52}));
}

template <class T>
class ExpertRows : public testing::Test {};
using Scalars = testing::Types<float, double, bf16>;
TYPED_TEST_SUITE(ExpertRows, Scalars);

// Around the caches (16 MiB and more) and not, widths that do not divide.
TYPED_TEST(ExpertRows, GatherAndCombine) {
  using T = TypeParam;
  using A = Acc<T>;
  const Index k = 2;
  for (const auto& [tokens, width] : {std::pair<Index, Index>{5, 13}, {3000, 1500}}) {
    const Index pairs = tokens * k;
    const auto x = cast_to<T>(normal_numbers(tokens * width, 1));
    const auto w = cast_to<A>(normal_numbers(pairs, 2));
    std::vector<Index> order(static_cast<std::size_t>(pairs)), position(order.size());
    std::iota(order.begin(), order.end(), Index{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    for (Index i = 0; i < pairs; ++i) position[order[i]] = i;
    position[1] = -1;  // a dropped pair
    const DeviceArray<T> in(x), rows(pairs * width), y(tokens * width);
    const DeviceArray<A> weights(w), dots(pairs);
    const DeviceArray<Index> list(order), at(position);
    gather_pairs<T>(Space(), in.const_matrix(tokens, width), k, weights.const_vector(), list.const_vector(),
                    rows.matrix(pairs, width));
    const std::vector<T> got = rows.host();
    for (Index i = 0; i < pairs; ++i) {
      for (Index j = 0; j < width; ++j)
        ASSERT_EQ(static_cast<A>(got[i * width + j]),
                  static_cast<A>(static_cast<T>(w[order[i]] * static_cast<A>(x[order[i] / k * width + j]))));
    }
    combine_pairs_forward<T>(Space(), rows.const_matrix(pairs, width), at.const_matrix(tokens, k),
                             weights.const_vector(), {}, y.matrix(tokens, width));
    combine_pairs_backward<T>(Space(), rows.const_matrix(pairs, width), at.const_matrix(tokens, k),
                              in.const_matrix(tokens, width), dots.matrix(tokens, k));
    const std::vector<T> sums = y.host();
    const std::vector<A> inner = dots.host();
    for (Index t = 0; t < tokens; ++t) {
      for (Index j = 0; j < width; ++j) {
        double sum = 0;
        for (Index slot = 0; slot < k; ++slot) {
          const Index row = position[t * k + slot];
          if (row >= 0) sum += static_cast<double>(w[t * k + slot]) * static_cast<double>(got[row * width + j]);
        }
        ASSERT_NEAR(static_cast<double>(sums[t * width + j]), sum,
                    (sizeof(T) == 2 ? 0.01 : 1e-5) * (1 + std::abs(sum)));
      }
      for (Index slot = 0; slot < k; ++slot) {
        const Index row = position[t * k + slot];
        double sum = 0, scale = 0;
        for (Index j = 0; j < width && row >= 0; ++j) {
          const double term = static_cast<double>(x[t * width + j]) * static_cast<double>(got[row * width + j]);
          sum += term;
          scale += std::abs(term);
        }
        ASSERT_NEAR(static_cast<double>(inner[t * k + slot]), sum, 1e-5 * (1 + scale));
      }
    }
  }
}

}  // namespace
}  // namespace fourfold::kernels
