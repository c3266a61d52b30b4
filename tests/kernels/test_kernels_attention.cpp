#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

#include "device_array.hpp"
#include "kernels/attention.hpp"
#include "test_support.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

struct Case {
  AttentionShape shape;
  Index heads = 1, kv_heads = 1;
  std::vector<std::int32_t> first_key = {};  // of each query row; empty: one document

  Index query_rows() const { return shape.batch * shape.query_tokens; }
  Index key_rows() const { return shape.batch * shape.key_tokens; }
  Index kv_head(Index head) const { return (shape.first_head + head) / shape.heads_per_kv - shape.first_kv; }
  // Rows of q and of the fused k, v are longer than their heads: what lies between must stay as it is.
  Index q_stride() const { return heads * shape.head_dim + 3; }
  Index kv_stride() const { return 2 * kv_heads * shape.head_dim + 5; }
  Index v_offset() const { return kv_heads * shape.head_dim + 2; }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  const AttentionShape& s = c.shape;
  return out << "batch " << s.batch << " queries " << s.query_tokens << " from " << s.first_query << " keys "
             << s.key_tokens << " head_dim " << s.head_dim << " heads " << c.heads << " from " << s.first_head
             << " kv_heads " << c.kv_heads << " from " << s.first_kv << " heads_per_kv " << s.heads_per_kv
             << (c.first_key.empty() ? "" : ", documents");
}

// batch, queries, keys, first query, head_dim, heads, kv heads, heads per kv, first head, first kv
Case make_case(Index batch, Index queries, Index keys, Index first_query, Index head_dim, Index heads, Index kv_heads,
               Index heads_per_kv, Index first_head = 0, Index first_kv = 0) {
  return {{batch, queries, keys, first_query, head_dim, 1.0 / std::sqrt(static_cast<double>(head_dim)), heads_per_kv,
           first_head, first_kv},
          heads,
          kv_heads,
          {}};
}

// The same with a document boundary before each key in `starts`, another one in every second sequence.
Case with_documents(Case c, const std::vector<std::int32_t>& starts) {
  for (Index b = 0; b < c.shape.batch; ++b) {
    for (Index t = 0; t < c.shape.query_tokens; ++t) {
      std::int32_t first = 0;
      for (const std::int32_t start : starts) {
        const auto moved = static_cast<std::int32_t>(start + 3 * (b % 2));
        if (moved <= c.shape.first_query + t) first = std::max(first, moved);
      }
      c.first_key.push_back(first);
    }
  }
  return c;
}

// The same with first_key(t) for query t of every sequence.
template <class FirstKey>
Case with_first_keys(Case c, FirstKey first_key) {
  for (Index row = 0; row < c.query_rows(); ++row) {
    c.first_key.push_back(static_cast<std::int32_t>(first_key(row % c.shape.query_tokens)));
  }
  return c;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      make_case(2, 5, 5, 0, 3, 2, 2, 1),
      make_case(1, 1, 1, 0, 1, 1, 1, 1),
      make_case(1, 64, 64, 0, 8, 2, 1, 2),
      make_case(2, 65, 65, 0, 5, 4, 2, 2),
      make_case(1, 300, 300, 0, 7, 2, 1, 2),
      make_case(1, 600, 600, 0, 4, 1, 1, 1),
      make_case(2, 33, 33, 0, 6, 3, 1, 4, 5, 1),  // heads 5, 6, 7 of KV head 1
      make_case(1, 40, 40, 0, 4, 6, 2, 4, 2, 0),  // heads 2, 3 of KV head 0, heads 4 to 7 of KV head 1
      make_case(2, 1, 37, 36, 8, 4, 2, 2),        // generation
      make_case(1, 1, 520, 519, 16, 2, 2, 1),     // the same over several tiles
      make_case(2, 20, 90, 31, 4, 2, 1, 2),       // a part of a sequence; the last keys are seen by nobody
      make_case(1, 70, 30, 0, 4, 1, 1, 1),        // queries past the keys see all of them
      make_case(1, 200, 200, 0, 64, 2, 1, 2),     // whole panels and blocks
      make_case(2, 131, 131, 0, 20, 1, 1, 1),     // a whole panel and a part
      make_case(1, 40, 40, 0, 4, 2, 2, 2),        // KV head 1 is read by nobody
      make_case(2, 50, 170, 61, 17, 4, 2, 2),     // several tiles for a part of a sequence
      make_case(0, 8, 8, 0, 4, 2, 1, 2),
      make_case(2, 8, 8, 0, 4, 0, 1, 2),
      make_case(2, 0, 8, 8, 4, 2, 1, 2),
      make_case(1, 4, 0, 0, 4, 2, 1, 2),  // no key at all
      with_documents(make_case(2, 9, 9, 0, 3, 2, 2, 1), {2, 3, 7}),
      with_documents(make_case(1, 1, 520, 519, 16, 2, 2, 1), {300, 510}),            // generation
      with_documents(make_case(2, 400, 400, 0, 8, 2, 1, 2), {1, 95, 96, 128, 300}),  // whole tiles are skipped
      with_documents(make_case(2, 50, 170, 61, 17, 4, 2, 2), {70, 80}),
      with_documents(make_case(1, 300, 300, 0, 7, 2, 1, 2), {299}),
      // Queries that see themselves alone; none at all, or not all of a block; beyond the keys; before them.
      with_first_keys(make_case(2, 140, 140, 0, 4, 2, 1, 2), [](Index t) { return t; }),
      with_first_keys(make_case(2, 9, 9, 0, 4, 2, 1, 2), [](Index t) { return t; }),
      with_first_keys(make_case(1, 140, 140, 0, 4, 2, 1, 2), [](Index t) { return t + 1; }),
      with_first_keys(make_case(1, 9, 9, 0, 4, 2, 1, 2), [](Index t) { return t + 1; }),
      with_first_keys(make_case(2, 200, 200, 0, 5, 2, 1, 2), [](Index t) { return t < 100 ? 0 : 150; }),
      with_first_keys(make_case(2, 60, 60, 0, 5, 2, 1, 2), [](Index t) { return t < 20 ? 1 : 1000; }),
      with_first_keys(make_case(1, 40, 0, 0, 4, 2, 1, 2), [](Index t) { return t; }),
      with_first_keys(make_case(1, 33, 33, 0, 4, 2, 1, 2), [](Index) { return -3; }),
  };
  return all;
}

// Inputs of a case with the buffers' gaps filled, in fp64.
struct Inputs {
  std::vector<double> q, kv, dout;
};

Inputs inputs(const Case& c, unsigned seed) {
  return {normal_numbers(c.query_rows() * c.q_stride(), seed, 1.5),
          normal_numbers(c.key_rows() * c.kv_stride(), seed + 1, 1.5),
          normal_numbers(c.query_rows() * c.q_stride(), seed + 2)};
}

constexpr double kGap = 7.0;

template <class T>
struct Result {
  std::vector<T> out, lse, dq, dkv;
};

template <class T>
Result<T> attention(const Case& c, const Inputs& in, bool with_backward = true) {
  const Space space;
  const DeviceArray<T> q(cast_to<T>(in.q)), kv(cast_to<T>(in.kv)), dout(cast_to<T>(in.dout));
  const DeviceArray<T> out(q.size(), T(kGap)), dq(q.size(), T(kGap)), dkv(kv.size(), T(kGap));
  const DeviceArray<T> lse(c.query_rows() * c.heads, T(kGap));
  const T poison = std::numeric_limits<T>::quiet_NaN();
  const DeviceArray<std::int32_t> first_key(c.first_key);
  AttentionShape shape = c.shape;
  if (!c.first_key.empty()) shape.first_key = first_key.data();
  const DeviceArray<T> scratch(attention_scratch<T>(c.shape), poison), more_scratch(scratch.size(), poison);
  const Heads<const T> q_heads{q.data(), c.q_stride(), c.heads}, dout_heads{dout.data(), c.q_stride(), c.heads};
  const Heads<const T> k_heads{kv.data(), c.kv_stride(), c.kv_heads};
  const Heads<const T> v_heads{kv.data() + c.v_offset(), c.kv_stride(), c.kv_heads};
  attention_forward<T>(space, shape, q_heads, k_heads, v_heads, {out.data(), c.q_stride(), c.heads}, lse.vector(),
                       scratch.vector());
  if (with_backward) {
    attention_backward<T>(space, shape, q_heads, k_heads, v_heads, {out.data(), c.q_stride(), c.heads},
                          lse.const_vector(), dout_heads, {dq.data(), c.q_stride(), c.heads},
                          {dkv.data(), c.kv_stride(), c.kv_heads},
                          {dkv.data() + c.v_offset(), c.kv_stride(), c.kv_heads}, more_scratch.vector());
  }
  return {out.host(), lse.host(), dq.host(), dkv.host()};
}

// By plain loops, one query at a time, in fp64; gaps hold kGap, as in attention().
Result<double> plain(const Case& c, const Inputs& in) {
  const AttentionShape& s = c.shape;
  const Index d = s.head_dim;
  Result<double> result;
  result.out.assign(in.q.size(), kGap);
  result.dq.assign(in.q.size(), kGap);
  result.dkv.assign(in.kv.size(), kGap);
  result.lse.assign(c.query_rows() * c.heads, kGap);
  for (Index row = 0; row < c.key_rows(); ++row) {
    for (const Index offset : {Index(0), c.v_offset()}) {
      for (Index i = 0; i < c.kv_heads * d; ++i) result.dkv[row * c.kv_stride() + offset + i] = 0;
    }
  }
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < c.heads; ++h) {
      for (Index t = 0; t < s.query_tokens; ++t) {
        const Index at = (b * s.query_tokens + t) * c.q_stride() + h * d;
        const Index seen = std::min(s.key_tokens, s.first_query + t + 1);
        const Index begin = c.first_key.empty() ? 0 : std::max(0, c.first_key[b * s.query_tokens + t]);
        const auto key_at = [&](Index j) { return (b * s.key_tokens + j) * c.kv_stride() + c.kv_head(h) * d; };
        std::vector<double> p(seen), dp(seen);
        double top = -std::numeric_limits<double>::infinity(), sum = 0, delta = 0;
        for (Index j = begin; j < seen; ++j) {
          for (Index i = 0; i < d; ++i) {
            p[j] += s.scale * in.q[at + i] * in.kv[key_at(j) + i];
            dp[j] += in.dout[at + i] * in.kv[key_at(j) + c.v_offset() + i];
          }
          top = std::max(top, p[j]);
        }
        for (Index j = begin; j < seen; ++j) sum += p[j] = std::exp(p[j] - top);
        for (Index j = begin; j < seen; ++j) delta += dp[j] * (p[j] /= sum);
        result.lse[(b * c.heads + h) * s.query_tokens + t] = top + std::log(sum);
        for (Index i = 0; i < d; ++i) {
          double out = 0, dq = 0;
          for (Index j = begin; j < seen; ++j) {
            const double ds = p[j] * (dp[j] - delta) * s.scale;
            out += p[j] * in.kv[key_at(j) + c.v_offset() + i];
            dq += ds * in.kv[key_at(j) + i];
            result.dkv[key_at(j) + i] += ds * in.q[at + i];
            result.dkv[key_at(j) + c.v_offset() + i] += p[j] * in.dout[at + i];
          }
          result.out[at + i] = out;
          result.dq[at + i] = dq;
        }
      }
    }
  }
  return result;
}

// Relative to the largest magnitude, which is at least kGap's here.
template <class T>
void expect_near(const std::vector<T>& a, const std::vector<double>& b, double tolerance, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  double largest = 1.0;
  for (const double value : b) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (b[i] == a[i]) continue;  // also the infinities
    ASSERT_NEAR(a[i], b[i], tolerance * largest) << what << " " << i;
  }
}

template <class T>
void expect_matches_plain(double tolerance) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::Message() << c);
    Inputs in = inputs(c, 21);
    for (auto* values : {&in.q, &in.kv, &in.dout}) {
      for (double& value : *values) value = static_cast<double>(static_cast<T>(value));
    }
    const Result<double> expected = plain(c, in);
    const Result<T> result = attention<T>(c, in);
    expect_near(result.out, expected.out, tolerance, "out");
    expect_near(result.lse, expected.lse, tolerance, "lse");
    expect_near(result.dq, expected.dq, tolerance, "dq");
    expect_near(result.dkv, expected.dkv, tolerance, "dkv");
  }
}

TEST(Attention, MatchesPlainLoopsInDouble) {
  expect_matches_plain<double>(1e-14);
}

TEST(Attention, MatchesPlainLoopsInSingle) {
  expect_matches_plain<float>(2e-6);
}

// Every input against five-point differences of sum(dout out).
TEST(Attention, MatchesFiniteDifferences) {
  for (const Case& c : {make_case(2, 7, 7, 0, 3, 4, 2, 2), make_case(1, 3, 6, 2, 2, 3, 2, 2, 1, 0)}) {
    SCOPED_TRACE(testing::Message() << c);
    Inputs in = inputs(c, 31);
    const Result<double> result = attention<double>(c, in);
    const auto objective = [&] {
      const std::vector<double> out = attention<double>(c, in, false).out;
      double sum = 0;
      for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * in.dout[i];
      return sum;
    };
    const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double kept = values[i], h = 1e-3;
        double numeric = 0;
        const double weights[] = {8.0, -8.0, -1.0, 1.0}, steps[] = {h, -h, 2 * h, -2 * h};
        for (int point = 0; point < 4; ++point) {
          values[i] = kept + steps[point];
          numeric += weights[point] * objective() / (12 * h);
        }
        values[i] = kept;
        // Gaps keep their filling and have no influence.
        if (gradient[i] == kGap) {
          EXPECT_EQ(numeric, 0.0);
        } else {
          EXPECT_NEAR(gradient[i], numeric, 1e-9);
        }
      }
    };
    check(in.q, result.dq);
    check(in.kv, result.dkv);
  }
}

// Queries of a part of a sequence, and single ones as generation makes them, give the rows of the whole.
TEST(Attention, PartsOfASequenceGiveTheWhole) {
  const Index tokens = 150;
  const Case whole = make_case(1, tokens, tokens, 0, 8, 4, 2, 2);
  const Inputs in = inputs(whole, 41);
  const Result<double> expected = attention<double>(whole, in, false);
  for (const auto& [from, count] : std::vector<std::pair<Index, Index>>{{0, 70}, {70, 80}, {149, 1}, {33, 1}}) {
    Case part = whole;
    part.shape.query_tokens = count;
    part.shape.first_query = from;
    part.shape.key_tokens = from + count;
    const auto rows = [&](const std::vector<double>& values, Index stride, Index first, Index n) {
      return std::vector<double>(values.begin() + first * stride, values.begin() + (first + n) * stride);
    };
    const Inputs part_in{
        rows(in.q, whole.q_stride(), from, count), rows(in.kv, whole.kv_stride(), 0, from + count), {}};
    const std::vector<double> out = attention<double>(part, part_in, false).out;
    expect_near(out, rows(expected.out, whole.q_stride(), from, count), 1e-15, "out");
  }
}

// Documents side by side give what each gives alone.
TEST(Attention, DocumentsAreApart) {
  const Index tokens = 330;
  const std::vector<std::int32_t> starts{0, 131, 140, 330};
  const Case whole = with_documents(make_case(1, tokens, tokens, 0, 8, 4, 2, 2), {131, 140});
  const Inputs in = inputs(whole, 43);
  const Result<double> together = attention<double>(whole, in);
  for (std::size_t document = 0; document + 1 < starts.size(); ++document) {
    const Index from = starts[document], count = starts[document + 1] - from;
    const Case part = make_case(1, count, count, 0, 8, 4, 2, 2);
    const auto rows = [&](const std::vector<double>& values, Index stride) {
      return std::vector<double>(values.begin() + from * stride, values.begin() + (from + count) * stride);
    };
    const Result<double> alone = attention<double>(
        part, {rows(in.q, part.q_stride()), rows(in.kv, part.kv_stride()), rows(in.dout, part.q_stride())});
    expect_near(alone.out, rows(together.out, part.q_stride()), 1e-14, "out");
    expect_near(alone.dq, rows(together.dq, part.q_stride()), 1e-14, "dq");
    expect_near(alone.dkv, rows(together.dkv, part.kv_stride()), 1e-14, "dkv");
  }
}

// No bit of an output depends on a later token.
TEST(Attention, IsCausal) {
  const Index tokens = 300, cut = 130;
  const Case c = make_case(1, tokens, tokens, 0, 8, 2, 1, 2);
  Inputs in = inputs(c, 51);
  const auto before = attention<float>(c, in, false);
  for (Index i = cut * c.kv_stride(); i < tokens * c.kv_stride(); ++i) in.kv[i] += 3.0;
  const auto after = attention<float>(c, in, false);
  for (Index i = 0; i < cut * c.q_stride(); ++i) ASSERT_EQ(after.out[i], before.out[i]);
  EXPECT_NE(after.out[cut * c.q_stride()], before.out[cut * c.q_stride()]);
}

// Scores of some hundreds that grow along the keys: every tile moves the running max, and exp would overflow without
// it.
TEST(Attention, GrowingLargeScoresStayFinite) {
  const Index tokens = 700;
  const Case c = make_case(1, tokens, tokens, 0, 4, 1, 1, 1);
  Inputs in = inputs(c, 61);
  for (Index t = 0; t < tokens; ++t) {
    for (Index i = 0; i < 4; ++i) {
      in.q[t * c.q_stride() + i] = 10.0 + 0.1 * in.q[t * c.q_stride() + i];
      in.kv[t * c.kv_stride() + i] += 0.05 * static_cast<double>(t);
    }
  }
  const Result<double> expected = plain(c, in);
  const Result<double> result = attention<double>(c, in);
  expect_near(result.out, expected.out, 1e-12, "out");
  expect_near(result.dq, expected.dq, 1e-12, "dq");
  expect_near(result.dkv, expected.dkv, 1e-12, "dkv");
  EXPECT_GT(expected.lse[tokens - 1], 600.0);
}

// Equal keys share equally: out is the running mean of v.
TEST(Attention, EqualKeysGiveTheRunningMean) {
  const Index tokens = 90;
  const Case c = make_case(1, tokens, tokens, 0, 2, 1, 1, 1);
  Inputs in = inputs(c, 71);
  for (Index t = 0; t < tokens; ++t) in.kv[t * c.kv_stride()] = in.kv[t * c.kv_stride() + 1] = 0.5;
  const auto result = attention<double>(c, in, false);
  double sum = 0;
  for (Index t = 0; t < tokens; ++t) {
    sum += in.kv[t * c.kv_stride() + c.v_offset()];
    EXPECT_NEAR(result.out[t * c.q_stride()], sum / static_cast<double>(t + 1), 1e-14);
  }
}

TEST(Attention, RepeatsBitForBit) {
  const Case c = make_case(2, 130, 130, 0, 16, 4, 2, 2);
  const Inputs in = inputs(c, 81);
  const auto first = attention<float>(c, in), second = attention<float>(c, in);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(first.dq, second.dq);
  EXPECT_EQ(first.dkv, second.dkv);
}

}  // namespace
}  // namespace fourfold::kernels
