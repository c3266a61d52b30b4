// Test bodies for collectives: known values, and the comparison of the ledger with the real MPI calls after every test.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "comm/ledger.hpp"
#include "comm/pmpi_counter.hpp"
#include "mpi_test.hpp"

namespace fourfold::test {

inline constexpr std::int64_t kDefaultLimit = std::int64_t{1} << 30;

// Element i of rank r: magnitudes over six decades, so that the order of a floating-point sum shows in its bits.
template <class T>
T value_of(int rank, std::int64_t i, std::uint64_t salt = 0) {
  std::uint64_t x = (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank) * 977 +
                    salt * 0xd1342543de82ef95u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  if constexpr (std::is_floating_point_v<T>) {
    const double unit = static_cast<double>(x >> 11) * 0x1p-53 - 0.5;
    return static_cast<T>(std::ldexp(unit, static_cast<int>(x % 20) - 10));
  } else if constexpr (std::is_same_v<T, std::byte>) {
    return static_cast<std::byte>(x & 255u);
  } else {
    return static_cast<T>(static_cast<std::int64_t>(x % 2000001u) - 1000000);
  }
}

template <class T>
std::vector<T> values_of(int rank, std::int64_t count, std::int64_t first = 0, std::uint64_t salt = 0) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(value_of<T>(rank, first + i, salt));
  return values;
}

// Rank 0's element plus rank 1's plus ...: what a deterministic sum must give, bit for bit.
template <class T>
std::vector<T> serial_sums(int ranks, std::int64_t count, std::uint64_t salt = 0) {
  std::vector<T> sums = values_of<T>(0, count, 0, salt);
  for (int r = 1; r < ranks; ++r)
    for (std::int64_t i = 0; i < count; ++i) sums[static_cast<std::size_t>(i)] += value_of<T>(r, i, salt);
  return sums;
}

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return same_bits(std::span<const T>(a), std::span<const T>(b));
}

class CommTest : public testing::Test {
 protected:
  void SetUp() override {
    launch().ledger().clear();
    clear_mpi_traffic();
  }
  // What the ledger says is what the real calls were given, or what went through shared memory; nothing passed beside.
  void TearDown() override {
    launch().set_transfer_limit(kDefaultLimit);
    const CommSums sums = launch().ledger().total();
    EXPECT_EQ(mpi_traffic().ring_bytes + sums.bytes_shared, sums.ring_bytes) << launch().ledger().report();
    EXPECT_EQ(mpi_traffic().outside, 0);
    if (world().size() == 1) {
      EXPECT_EQ(mpi_traffic().calls, 0);
      EXPECT_EQ(sums.calls, 0);
    }
  }
  static const Communicator& world() { return launch().world(); }
  static CommSums recorded(Operation operation, Phase phase) {
    return launch().ledger().sum(operation, world().name(), phase);
  }
};

}  // namespace fourfold::test
