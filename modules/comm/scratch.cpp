#include "comm/scratch.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace fourfold {

ScratchPool::Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), memory_(std::move(other.memory_)), bytes_(other.bytes_) {}

ScratchPool::Lease& ScratchPool::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::exchange(other.pool_, nullptr);
    memory_ = std::move(other.memory_);
    bytes_ = other.bytes_;
  }
  return *this;
}

ScratchPool::Lease::~Lease() {
  give_back();
}

void ScratchPool::Lease::give_back() {
  if (pool_ != nullptr && memory_ != nullptr) pool_->free_.push_back({std::move(memory_), bytes_});
  pool_ = nullptr;
}

ScratchPool::Lease ScratchPool::take(std::int64_t bytes) {
  if (bytes == 0) return {};
  const auto by_size = [](const Buffer& a, const Buffer& b) { return a.bytes < b.bytes; };
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->bytes >= bytes && (best == free_.end() || it->bytes < best->bytes)) best = it;
  if (best == free_.end()) {
    if (!free_.empty()) free_.erase(std::max_element(free_.begin(), free_.end(), by_size));
    ++allocations_;
    constexpr std::align_val_t alignment{64};
    std::shared_ptr<void> memory =
        allocate_ ? allocate_(bytes)
                  : std::shared_ptr<void>(::operator new(static_cast<std::size_t>(bytes), alignment),
                                          [](void* p) { ::operator delete (p, std::align_val_t{64}); });
    return Lease(this, std::move(memory), bytes);
  }
  Lease lease(this, std::move(best->memory), best->bytes);
  free_.erase(best);
  return lease;
}

void ScratchPool::set_allocator(Allocate allocate) {
  free_.clear();
  allocate_ = std::move(allocate);
}

}  // namespace fourfold
