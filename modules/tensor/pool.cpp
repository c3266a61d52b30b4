#include <fmt/format.h>

#include <limits>

#include "base/error.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

namespace {
using Block = Kokkos::View<std::byte*, Kokkos::LayoutRight, Space::memory_space>;
}  // namespace

// Blocks wait in `free` under their size; a handle's deleter puts its block back.
struct Pool::State {
  explicit State(MemoryLedger& ledger_in) : ledger(ledger_in) {}
  MemoryLedger& ledger;
  std::map<std::int64_t, std::vector<Block>> free;
  std::int64_t allocations = 0;
};

Pool::Pool(MemoryLedger& ledger) : state_(std::make_shared<State>(ledger)) {}

MemoryLedger& Pool::ledger() const {
  return state_->ledger;
}

std::int64_t Pool::allocations() const {
  return state_->allocations;
}

std::shared_ptr<std::byte> Pool::take(MemoryTag tag, std::int64_t bytes) {
  FOURFOLD_ASSERT(bytes >= 0, "a block has a size");
  if (bytes == 0) return nullptr;
  std::vector<Block>& waiting = state_->free[bytes];
  Block block;
  if (waiting.empty()) {
    try {
      block = Block(Kokkos::view_alloc("pool", Kokkos::WithoutInitializing), static_cast<std::size_t>(bytes));
    } catch (const std::exception& error) {
      std::string message =
          fmt::format("out of memory: {} bytes for {} were refused; live now:", bytes, memory_tag_name(tag));
      for (int i = 0; i < kMemoryTags; ++i) {
        const auto each = static_cast<MemoryTag>(i);
        message += fmt::format(" {} {}", memory_tag_name(each), state_->ledger.live(each));
      }
      fail_one(ExitCode::error, message + fmt::format(" ({})", error.what()));
    }
    ++state_->allocations;
  } else {
    block = waiting.back();
    waiting.pop_back();
  }
#ifdef FOURFOLD_POISON
  Kokkos::deep_copy(block, std::byte{0xff});  // a NaN in every floating-point type
#endif
  state_->ledger.add(tag, bytes);
  auto give_back = [state = state_, tag, bytes, block](std::byte*) {
    state->ledger.remove(tag, bytes);
    state->free[bytes].push_back(block);
  };
  return std::shared_ptr<std::byte>(block.data(), std::move(give_back));
}

}  // namespace fourfold
