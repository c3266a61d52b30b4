// The order of samples: each epoch is a permutation of its own, computed and not stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/random.hpp"

namespace fourfold {

// Sample number k of a run (k counts over all epochs) is sample at(k) of the data set: epoch k / n, place k % n. Within
// an epoch each of the n samples comes once. A pure function of (seed, n, k): neither steps, batch nor ranks enter.
//
// The permutation is an eight-round Feistel network whose round function is a Philox draw (stream "data/order", with
// the number of a further corpus behind it, step = epoch) on the smallest 4^h >= n, walked along its cycle until it
// falls below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): under four walks on average.
class SampleOrder {
 public:
  SampleOrder(std::uint64_t seed, std::int64_t samples, std::size_t corpus = 0);  // samples >= 1
  std::int64_t samples() const { return samples_; }
  std::int64_t at(std::int64_t k) const;

 private:
  std::uint64_t seed_;
  std::string stream_;
  std::int64_t samples_;
  int half_bits_;
};

}  // namespace fourfold
