// Hand-offs between two grids, all ranks played by this one: what is sent is what is received, every element arrives at
// every replica, and the way back is the adjoint.
#include "tensor/crossing.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>

#include "base/error.hpp"
#include "test_support.hpp"

namespace fourfold {
namespace {

struct Lengths {
  Index sequences, tokens, cols;
};
struct Cuts {
  int sequences, tokens, cols, replicas;
};

// Parts of sequences x tokens x columns, each on several ranks. Some have two ranges of tokens, as under depth_splits:
// sequence.
std::vector<TokenLayout> layouts(const Lengths& all, const Cuts& cuts, bool mirrored) {
  std::vector<TokenLayout> list;
  for (int replica = 0; replica < cuts.replicas; ++replica) {
    for (int s = 0; s < cuts.sequences; ++s) {
      for (int t = 0; t < cuts.tokens; ++t) {
        for (int c = 0; c < cuts.cols; ++c) {
          TokenLayout& layout = list.emplace_back();
          const Range cols = part(all.cols, cuts.cols, c);
          layout.width = cols.size();
          std::vector<Range> tokens = {part(all.tokens, cuts.tokens, t)};
          if (mirrored) {
            tokens = {part(all.tokens, 2 * cuts.tokens, t), part(all.tokens, 2 * cuts.tokens, 2 * cuts.tokens - 1 - t)};
          }
          for (const Range& range : tokens)
            layout.blocks.push_back({part(all.sequences, cuts.sequences, s), range, cols});
        }
      }
    }
  }
  return list;
}

// Matrices of rows x cols cut over both, each box flattened and cut again.
std::vector<Shard> shards(Index rows, Index cols, const Cuts& cuts, int depth) {
  std::vector<Shard> list;
  for (int replica = 0; replica < cuts.replicas; ++replica) {
    for (int d = 0; d < depth; ++d) {
      for (int r = 0; r < cuts.tokens; ++r) {
        for (int c = 0; c < cuts.cols; ++c) {
          const Box box{part(rows, cuts.tokens, r), part(cols, cuts.cols, c)};
          list.push_back({{rows, cols}, box, part(box_size(box), depth, d)});
        }
      }
    }
  }
  return list;
}

using Memory = std::vector<double>;

// The elements in the order of the holding: `value` of their place in the whole.
Memory filled(const Holding& holding, const Lengths& all, const std::function<double(Index)>& value) {
  Memory memory(static_cast<std::size_t>(size_of(holding)), 0);
  for (const HeldBox& held : holding) {
    for (Index i = held.box[0].begin; i < held.box[0].end; ++i) {
      for (Index j = held.box[1].begin; j < held.box[1].end; ++j) {
        for (Index k = held.box[2].begin; k < held.box[2].end; ++k) {
          const Index at = held.first + (i - held.box[0].begin) * held.strides[0] +
                           (j - held.box[1].begin) * held.strides[1] + k - held.box[2].begin;
          memory[static_cast<std::size_t>(at)] = value((i * all.tokens + j) * all.cols + k);
        }
      }
    }
  }
  return memory;
}

kernels::Vector<double> view(Memory& memory) {
  return kernels::Vector<double>(memory.data(), memory.size());
}
kernels::Vector<const double> view(const Memory& memory) {
  return kernels::Vector<const double>(memory.data(), memory.size());
}

// `memories` of the senders to those of the receivers, which are added to.
std::vector<Memory> carried(const std::vector<Holding>& senders, const std::vector<Holding>& receivers,
                            const std::vector<Memory>& memories, double start) {
  std::map<std::pair<int, int>, Memory> messages;
  for (int s = 0; s < static_cast<int>(senders.size()); ++s) {
    for (const CrossingPiece& piece : pieces_to_send(senders, receivers, s)) {
      const Memory& from = memories[static_cast<std::size_t>(s)];
      Memory& message = messages[{s, piece.peer}];
      EXPECT_TRUE(message.empty()) << "one message from rank to rank";
      message.assign(static_cast<std::size_t>(piece.elements), 0);
      pack<double>(piece, view(from), view(message));
      if (piece.whole) {
        EXPECT_EQ(message, from);
      }
    }
  }
  std::vector<Memory> arrived;
  std::size_t taken = 0;
  for (int r = 0; r < static_cast<int>(receivers.size()); ++r) {
    Memory& memory =
        arrived.emplace_back(static_cast<std::size_t>(size_of(receivers[static_cast<std::size_t>(r)])), start);
    for (const CrossingPiece& piece : pieces_to_receive(senders, receivers, r)) {
      const Memory& message = messages[{piece.peer, r}];
      EXPECT_EQ(std::ssize(message), piece.elements);
      if (std::ssize(message) != piece.elements) return {};
      unpack_add<double>(piece, view(message), view(memory));
      ++taken;
      Memory again(memory.size(), -1);
      unpack<double>(piece, view(message), view(again));
      for (std::size_t i = 0; i < again.size(); ++i) {
        if (again[i] >= 0) {
          EXPECT_EQ(memory[i], again[i] + start);
        }
      }
    }
  }
  EXPECT_EQ(taken, messages.size()) << "every message has a receiver";
  return arrived;
}

void expect_carried(const std::vector<Holding>& a, const std::vector<Holding>& b, const Lengths& all) {
  const auto x = [](Index i) { return static_cast<double>(3 * i + 1); };
  const auto y = [](Index i) { return static_cast<double>((7 * i) % 11); };
  const auto held = [&](const std::vector<Holding>& side, const std::function<double(Index)>& value) {
    std::vector<Memory> memories;
    for (const Holding& holding : side) memories.push_back(filled(holding, all, value));
    return memories;
  };
  const auto shifted = [](std::vector<Memory> memories, double by) {
    for (Memory& memory : memories) {
      for (double& value : memory) value += by;
    }
    return memories;
  };
  EXPECT_EQ(carried(a, b, held(a, x), 100), shifted(held(b, x), 100));
  EXPECT_EQ(carried(b, a, held(b, y), 100), shifted(held(a, y), 100));  // each element once: <F x, y> = <x, F* y>
}

template <class Part>
std::vector<Holding> holdings(const std::vector<Part>& parts) {
  std::vector<Holding> list;
  for (const Part& one : parts) list.push_back(holding_of(one));
  return list;
}

TEST(Crossing, BetweenAnyTwoLayouts) {
  std::mt19937_64 engine(test::seed());
  const auto draw = [&](int most) { return 1 + static_cast<int>(engine() % static_cast<unsigned>(most)); };
  for (int sample = 0; sample < (test::full() ? 2000 : 150); ++sample) {
    const Lengths all{draw(5), draw(6), draw(5)};
    const Cuts a{draw(4), draw(3), draw(3), draw(3)}, b{draw(4), draw(3), draw(3), draw(3)};
    SCOPED_TRACE("sample " + std::to_string(sample));
    expect_carried(holdings(layouts(all, a, engine() % 2 == 0)), holdings(layouts(all, b, engine() % 2 == 0)), all);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Crossing, BetweenAnyTwoShardings) {
  std::mt19937_64 engine(test::seed());
  const auto draw = [&](int most) { return 1 + static_cast<int>(engine() % static_cast<unsigned>(most)); };
  for (int sample = 0; sample < (test::full() ? 2000 : 150); ++sample) {
    const Index rows = draw(7), cols = draw(6);
    const Cuts a{1, draw(3), draw(3), draw(3)}, b{1, draw(3), draw(3), draw(3)};
    SCOPED_TRACE("sample " + std::to_string(sample));
    expect_carried(holdings(shards(rows, cols, a, draw(4))), holdings(shards(rows, cols, b, draw(4))), {1, rows, cols});
    if (testing::Test::HasFailure()) return;
  }
}

// Equal grids hand on place by place, and pack nothing.
TEST(Crossing, EqualSidesGoPlaceByPlace) {
  const std::vector<Holding> side = holdings(layouts({4, 5, 3}, {2, 1, 2, 3}, true));
  for (int rank = 0; rank < static_cast<int>(side.size()); ++rank) {
    for (const auto& pieces : {pieces_to_send(side, side, rank), pieces_to_receive(side, side, rank)}) {
      ASSERT_EQ(pieces.size(), 1u);
      EXPECT_EQ(pieces[0].peer, rank);
      EXPECT_TRUE(pieces[0].whole);
    }
  }
}

TEST(Crossing, WhatNobodyHoldsIsAnAssertion) {
  const std::vector<Holding> part = holdings(shards(4, 4, {1, 2, 1, 1}, 1)),
                             whole = holdings(shards(4, 4, {1, 1, 1, 1}, 1));
  EXPECT_THROW(pieces_to_receive({part[0]}, whole, 0), Error);
  EXPECT_EQ(pieces_to_send({part[0]}, whole, 0).size(), 1u);
}

}  // namespace
}  // namespace fourfold
