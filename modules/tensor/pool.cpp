#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/error.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

namespace {

std::shared_ptr<std::byte> kokkos_block(std::int64_t bytes) {
  const Kokkos::View<std::byte*, Kokkos::LayoutRight, Space::memory_space> view(
      Kokkos::view_alloc("pool", Kokkos::WithoutInitializing), static_cast<std::size_t>(bytes));
  return {view.data(), [view](std::byte*) {}};
}

}  // namespace

// Blocks wait in `free` under their size; a handle's deleter puts its block back.
struct Pool::State {
  State(MemoryLedger& ledger_in, Source source_in) : ledger(ledger_in), source(std::move(source_in)) {}
  MemoryLedger& ledger;
  Source source;
  std::map<std::int64_t, std::vector<std::shared_ptr<std::byte>>> free;
  std::int64_t allocations = 0;
};

struct Pool::GiveBack {
  std::shared_ptr<State> state;
  MemoryTag tag;
  std::int64_t bytes;
  std::shared_ptr<std::byte> block;
  void operator()(std::byte*) const {
    state->ledger.remove(tag, bytes);
    state->free[bytes].push_back(block);
  }
};

void Pool::relabel(const std::shared_ptr<std::byte>& block, MemoryTag tag) {
  auto* back = std::get_deleter<GiveBack>(block);
  FOURFOLD_ASSERT(back != nullptr, "the block is of a pool");
  back->state->ledger.remove(back->tag, back->bytes);
  back->tag = tag;
  back->state->ledger.add(tag, back->bytes);
}

MemoryTag Pool::tag_of(const std::shared_ptr<std::byte>& block) {
  const auto* back = std::get_deleter<GiveBack>(block);
  FOURFOLD_ASSERT(back != nullptr, "the block is of a pool");
  return back->tag;
}

Pool::Pool(MemoryLedger& ledger, Source source) : state_(std::make_shared<State>(ledger, std::move(source))) {}

void Pool::set_source(Source source) {
  state_->source = std::move(source);
}

MemoryLedger& Pool::ledger() const {
  return state_->ledger;
}

std::int64_t Pool::allocations() const {
  return state_->allocations;
}

std::shared_ptr<std::byte> Pool::take(MemoryTag tag, std::int64_t bytes) {
  FOURFOLD_ASSERT(bytes >= 0, "a block has a size");
  if (bytes == 0) return nullptr;
  auto& waiting = state_->free[bytes];
  std::shared_ptr<std::byte> block;
  if (waiting.empty()) {
    try {
      // No rank reads another's optimizer state; its pages are cheaper alone.
      if (state_->source && tag != MemoryTag::optimizer) block = state_->source(bytes);
      if (block == nullptr) block = kokkos_block(bytes);
    } catch (const std::exception& error) {
      const std::string_view why = error.what();
      fail_one(ExitCode::error,
               fmt::format("{} ({})", state_->ledger.out_of_memory(tag, bytes), why.substr(0, why.find('\n'))));
    }
    ++state_->allocations;
  } else {
    block = waiting.back();
    waiting.pop_back();
  }
#ifdef FOURFOLD_POISON
  using Bytes = Kokkos::View<std::byte*, Kokkos::LayoutRight, Space::memory_space, Kokkos::MemoryUnmanaged>;
  Kokkos::deep_copy(Bytes(block.get(), static_cast<std::size_t>(bytes)),
                    std::byte{0xff});  // a NaN in every floating-point type
#endif
  state_->ledger.add(tag, bytes);
  return std::shared_ptr<std::byte>(block.get(), GiveBack{state_, tag, bytes, block});
}

}  // namespace fourfold
