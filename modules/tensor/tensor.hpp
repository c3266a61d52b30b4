// A tensor is a shared handle on a row-major block of rows x cols elements from a Pool. The Pool is the one function
// that allocates views: it records requested bytes per tag in the memory ledger, and hands freed blocks out again by
// size, so that a training loop allocates nothing after its first steps.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "base/memory_ledger.hpp"
#include "kernels/types.hpp"

namespace fourfold {

using kernels::Index;
using kernels::Space;

// Blocks of bytes by size. Handles keep the pool's state alive; not thread-safe (one thread computes).
class Pool {
 public:
  // Where blocks of host memory come from in place of Kokkos; null: from Kokkos after all (comm/shared_memory.hpp).
  using Source = std::function<std::shared_ptr<std::byte>(std::int64_t bytes)>;

  explicit Pool(MemoryLedger& ledger, Source source = {});
  void set_source(Source source);

  // `bytes` bytes, aligned to 64; recorded under `tag` until the last handle goes. Zero bytes are legal (null data).
  // Contents are what was there (NaN in poisoned builds). Errors: fail_one (error): MemoryLedger::out_of_memory.
  std::shared_ptr<std::byte> take(MemoryTag tag, std::int64_t bytes);

  // What a block is recorded under from now on, and what it is.
  static void relabel(const std::shared_ptr<std::byte>& block, MemoryTag tag);
  static MemoryTag tag_of(const std::shared_ptr<std::byte>& block);

  std::int64_t allocations() const;  // new blocks: constant in a steady loop
  MemoryLedger& ledger() const;

 private:
  struct State;
  struct GiveBack;
  std::shared_ptr<State> state_;
};

// A handle on a block that somebody holds, to be emptied and filled again (offload).
struct HeldBlock {
  std::shared_ptr<std::byte>* handle = nullptr;
  std::int64_t bytes = 0;
};
using HeldBlocks = std::vector<HeldBlock>;

template <class T>
class Tensor {
 public:
  Tensor() = default;
  Tensor(Pool& pool, MemoryTag tag, Index rows, Index cols)
      : block_(pool.take(tag, rows * cols * static_cast<Index>(sizeof(T)))), rows_(rows), cols_(cols) {}

  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  Index size() const { return rows_ * cols_; }
  T* data() const { return reinterpret_cast<T*>(block_.get()); }
  kernels::Matrix<T> matrix() const { return kernels::Matrix<T>(data(), rows_, cols_); }
  kernels::Vector<T> vector() const { return kernels::Vector<T>(data(), size()); }
  // Adds its block, if it has one.
  void hold(HeldBlocks& blocks) {
    if (block_) blocks.push_back({&block_, size() * static_cast<Index>(sizeof(T))});
  }

 private:
  std::shared_ptr<std::byte> block_;
  Index rows_ = 0;
  Index cols_ = 0;
};

}  // namespace fourfold
