#include "data/goldfish.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.hpp"

namespace fourfold {
namespace {

Batch random_batch(std::int64_t sequences, std::int64_t tokens, std::uint64_t seed) {
  Batch batch;
  batch.sequences = sequences;
  batch.tokens = tokens;
  const RandomStream stream = random_stream(seed, "goldfish");
  for (std::int64_t i = 0; i < sequences * tokens; ++i) {
    batch.ids.push_back(static_cast<std::int32_t>(stream.bits(static_cast<std::uint64_t>(i)) % 257));
    batch.targets.push_back(5);
  }
  return batch;
}

std::int64_t dropped(const Batch& batch) {
  return std::count(batch.targets.begin(), batch.targets.end(), -1);
}

// Of 1e5 rows with a whole past, one in k goes, within one per cent of all.
TEST(Goldfish, DropsOneInK) {
  for (const std::int64_t k : {2, 3, 4, 10}) {
    for (const std::int64_t h : {2, 5, 13}) {
      Batch batch = random_batch(100, 1000 + h - 1, 7);
      drop_targets({k, h}, batch);
      EXPECT_NEAR(static_cast<double>(dropped(batch)) / 1e5, 1.0 / static_cast<double>(k), 0.01) << k << " " << h;
    }
  }
}

TEST(Goldfish, RepeatedPassageLosesTheSameTokens) {
  Batch batch = random_batch(1, 400, 3);
  // The same 100 tokens at two places of one sequence and in another batch.
  for (std::size_t i = 0; i < 100; ++i) batch.ids[250 + i] = batch.ids[20 + i];
  Batch other = random_batch(2, 150, 4);
  for (std::size_t i = 0; i < 100; ++i) other.ids[150 + 37 + i] = batch.ids[20 + i];
  const GoldfishDeck goldfish{3, 8};
  drop_targets(goldfish, batch);
  drop_targets(goldfish, other);
  std::int64_t seen = 0;
  for (std::size_t i = 7; i < 100; ++i) {  // rows whose eight ids are all of the passage
    EXPECT_EQ(batch.targets[250 + i], batch.targets[20 + i]) << i;
    EXPECT_EQ(other.targets[150 + 37 + i], batch.targets[20 + i]) << i;
    seen += batch.targets[20 + i] == -1 ? 1 : 0;
  }
  EXPECT_GT(seen, 10);
  EXPECT_LT(seen, 60);
}

// The verdict on a row follows from the h ids up to the row itself: the first and the last of them count, those before
// and after do not.
TEST(Goldfish, TheIdsUpToTheRowDecide) {
  const std::int64_t h = 4, tokens = 6, row = 4;
  const auto verdicts = [&](std::int64_t changed) {
    Batch batch = random_batch(200, tokens, 11);
    if (changed >= 0) {
      for (std::int64_t s = 0; s < 200; ++s) batch.ids[static_cast<std::size_t>(s * tokens + changed)] += 300;
    }
    drop_targets({2, h}, batch);
    std::vector<std::int32_t> of_row;
    for (std::int64_t s = 0; s < 200; ++s) of_row.push_back(batch.targets[static_cast<std::size_t>(s * tokens + row)]);
    return of_row;
  };
  for (std::int64_t id = 0; id < tokens; ++id) {
    EXPECT_EQ(verdicts(id) != verdicts(-1), row - h < id && id <= row) << "id " << id << ", row " << row;
  }
}

TEST(Goldfish, ShortPastsStayAndOrderCounts) {
  Batch batch = random_batch(50, 12, 5);
  Batch off = batch;
  drop_targets({0, 13}, off);
  EXPECT_EQ(dropped(off), 0);
  drop_targets({2, 13}, batch);
  EXPECT_EQ(dropped(batch), 0);  // no row has 13 ids of past
  drop_targets({2, 4}, batch);
  EXPECT_GT(dropped(batch), 0);
  for (std::size_t s = 0; s < 50; ++s) {
    for (std::size_t t = 0; t < 3; ++t) EXPECT_EQ(batch.targets[s * 12 + t], 5);
  }
  // Two ids in either order: over many pairs the verdicts must differ somewhere.
  std::int64_t different = 0;
  for (std::int32_t a = 0; a < 20; ++a) {
    Batch pair;
    pair.sequences = 2;
    pair.tokens = 2;
    pair.ids = {a, 100, 100, a};
    pair.targets = {1, 1, 1, 1};
    drop_targets({2, 2}, pair);
    different += pair.targets[1] != pair.targets[3] ? 1 : 0;
  }
  EXPECT_GT(different, 0);
}

}  // namespace
}  // namespace fourfold
