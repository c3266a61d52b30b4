// Buffers that collectives need for themselves (the parts that a deterministic sum receives, the rounds of a transfer
// over the limit). They are kept and used again, so that a training step allocates none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fourfold {

class ScratchPool {
 public:
  // Returns `bytes` bytes, aligned for any number type. The program passes one that records the memory ledger.
  using Allocate = std::function<std::shared_ptr<void>(std::int64_t bytes)>;

  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    template <class T>
    T* as() const {
      return static_cast<T*>(memory_.get());
    }

   private:
    friend class ScratchPool;
    Lease(ScratchPool* pool, std::shared_ptr<void> memory, std::int64_t bytes)
        : pool_(pool), memory_(std::move(memory)), bytes_(bytes) {}
    void give_back();
    ScratchPool* pool_ = nullptr;
    std::shared_ptr<void> memory_;
    std::int64_t bytes_ = 0;
  };

  // The smallest free buffer that is large enough; where there is none, a new one in place of the largest free one.
  Lease take(std::int64_t bytes);
  // Drops the free buffers, which the old allocator made; an empty function restores plain `operator new`.
  void set_allocator(Allocate allocate);
  std::int64_t allocations() const { return allocations_; }

 private:
  struct Buffer {
    std::shared_ptr<void> memory;
    std::int64_t bytes;
  };
  std::vector<Buffer> free_;
  Allocate allocate_;
  std::int64_t allocations_ = 0;
};

}  // namespace fourfold
