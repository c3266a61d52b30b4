#include <gtest/gtest.h>

#include "comparison.hpp"
#include "device_array.hpp"
#include "kernels/embedding.hpp"

namespace fourfold::kernels {
namespace {

using test::cast_to;
using test::DeviceArray;
using test::normal_numbers;

struct Shape {
  Index rows, vocabulary, first_id, held, width;  // this part of the table holds ids [first_id, first_id + held)
};
const std::vector<Shape> kShapes{{0, 5, 0, 5, 3},       {1, 1, 0, 1, 1},  {50, 7, 0, 7, 5},      {50, 9, 3, 4, 17},
                                 {200, 11, 6, 5, 1030}, {20, 4, 4, 0, 3}, {300, 257, 0, 257, 33}};

std::vector<std::int32_t> ids(const Shape& s) {
  std::vector<std::int32_t> result(s.rows);
  for (Index r = 0; r < s.rows; ++r) result[r] = static_cast<std::int32_t>((r * r + 3 * r) % s.vocabulary);
  return result;
}

template <class T>
class Embedding : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Embedding, Scalars);

TYPED_TEST(Embedding, ForwardReadsItsPartOfTheTable) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    const auto id = ids(s);
    const auto table = cast_to<T>(normal_numbers(s.held * s.width, 1));
    const DeviceArray<std::int32_t> dev_id(id);
    const DeviceArray<T> dev_table(table), y(s.rows * s.width, T(9));
    embedding_forward<T>(Space(), dev_id.const_vector(), dev_table.const_matrix(s.held, s.width), s.first_id,
                         y.matrix(s.rows, s.width));
    std::vector<T> want(s.rows * s.width, T(0));
    for (Index r = 0; r < s.rows; ++r) {
      const Index row = id[r] - s.first_id;
      if (row < 0 || row >= s.held) continue;
      for (Index j = 0; j < s.width; ++j) want[r * s.width + j] = table[row * s.width + j];
    }
    EXPECT_EQ(y.host(), want);
  }
}

// Bit for bit: rows in ascending order onto what was there.
TYPED_TEST(Embedding, BackwardAddsRowsInOrder) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    const auto id = ids(s);
    const auto dy = cast_to<T>(normal_numbers(s.rows * s.width, 1)),
               old = cast_to<T>(normal_numbers(s.held * s.width, 2));
    const DeviceArray<std::int32_t> dev_id(id);
    const DeviceArray<T> dev_dy(dy), dtable(old);
    embedding_backward<T>(Space(), dev_id.const_vector(), dev_dy.const_matrix(s.rows, s.width), s.first_id,
                          dtable.matrix(s.held, s.width));
    auto want = old;
    for (Index r = 0; r < s.rows; ++r) {
      const Index row = id[r] - s.first_id;
      if (row < 0 || row >= s.held) continue;
      for (Index j = 0; j < s.width; ++j) want[row * s.width + j] += dy[r * s.width + j];
    }
    EXPECT_EQ(dtable.host(), want);
  }
}

TYPED_TEST(Embedding, NegativeIdsReadZerosAndTakeNothing) {
  using T = TypeParam;
  const DeviceArray<std::int32_t> id(std::vector<std::int32_t>{-1, 0});
  const DeviceArray<T> table(std::vector<T>{T(1), T(2)}), y(4, T(9)), dtable(2, T(0)), dy(4, T(1));
  embedding_forward<T>(Space(), id.const_vector(), table.const_matrix(1, 2), 0, y.matrix(2, 2));
  EXPECT_EQ(y.host(), (std::vector<T>{0, 0, 1, 2}));
  embedding_backward<T>(Space(), id.const_vector(), dy.const_matrix(2, 2), 0, dtable.matrix(1, 2));
  EXPECT_EQ(dtable.host(), (std::vector<T>{1, 1}));
}

struct Positions {
  Index rows, tokens, offset, held, width;
};
const std::vector<Positions> kPositions{{0, 4, 0, 4, 3},   {1, 1, 0, 1, 1},     {12, 4, 0, 4, 3}, {30, 5, 7, 12, 9},
                                        {3, 8, 2, 10, 33}, {20, 8, 0, 8, 1027}, {11, 4, 0, 6, 5}};

TYPED_TEST(Embedding, PositionsForwardAndBackward) {
  using T = TypeParam;
  for (const Positions& s : kPositions) {
    const auto table = cast_to<T>(normal_numbers(s.held * s.width, 1)),
               x = cast_to<T>(normal_numbers(s.rows * s.width, 2));
    const DeviceArray<T> dev_table(table), y(x), dtable(table), dev_x(x);
    position_forward<T>(Space(), dev_table.const_matrix(s.held, s.width), {s.tokens, s.offset},
                        y.matrix(s.rows, s.width));
    position_backward<T>(Space(), dev_x.const_matrix(s.rows, s.width), {s.tokens, s.offset},
                         dtable.matrix(s.held, s.width));
    auto want = x, want_table = table;
    for (Index r = 0; r < s.rows; ++r) {
      const Index position = s.offset + r % s.tokens;
      for (Index j = 0; j < s.width; ++j) {
        want[r * s.width + j] += table[position * s.width + j];
        want_table[position * s.width + j] += x[r * s.width + j];
      }
    }
    EXPECT_EQ(y.host(), want);
    EXPECT_EQ(dtable.host(), want_table);

    // The same places, each row's by itself.
    std::vector<std::int32_t> places;
    for (Index r = 0; r < s.rows; ++r) places.push_back(static_cast<std::int32_t>(s.offset + r % s.tokens));
    const DeviceArray<std::int32_t> at(places);
    const RowPositions own{1, 0, at.const_vector().data()};
    const DeviceArray<T> again(x), dagain(table);
    position_forward<T>(Space(), dev_table.const_matrix(s.held, s.width), own, again.matrix(s.rows, s.width));
    position_backward<T>(Space(), dev_x.const_matrix(s.rows, s.width), own, dagain.matrix(s.held, s.width));
    EXPECT_EQ(again.host(), want);
    EXPECT_EQ(dagain.host(), want_table);
  }
}

TEST(EmbeddingGradient, MatchesDifferences) {
  const Index rows = 6, held = 3, width = 2;
  const DeviceArray<std::int32_t> id(std::vector<std::int32_t>{2, 0, 2, 2, 1, 5});
  const auto table = normal_numbers(held * width, 1), dy = normal_numbers(rows * width, 2);
  const auto loss = [&](const std::vector<double>& at) {
    const DeviceArray<double> dev(at), y(rows * width);
    embedding_forward<double>(Space(), id.const_vector(), dev.const_matrix(held, width), 0, y.matrix(rows, width));
    position_forward<double>(Space(), dev.const_matrix(held, width), {3, 0}, y.matrix(rows, width));
    return test::inner_product(y.host(), dy);
  };
  const DeviceArray<double> dev_dy(dy), dtable(held * width);
  embedding_backward<double>(Space(), id.const_vector(), dev_dy.const_matrix(rows, width), 0,
                             dtable.matrix(held, width));
  position_backward<double>(Space(), dev_dy.const_matrix(rows, width), {3, 0}, dtable.matrix(held, width));
  test::expect_close(dtable.host(), test::numeric_gradient(table, loss), 1e-10, "dtable");
}

}  // namespace
}  // namespace fourfold::kernels
