// A device's buffers in the host's memory, for operations that MPI does on copies. Included by this module's sources
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "comm/call.hpp"
#include "comm/device.hpp"

namespace fourfold {

template <class T>
class HostCopy {
 public:
  HostCopy(const Communicator& group, std::size_t count)
      : device_(Call::device_of(group)),
        memory_(Call::host_scratch(group, static_cast<std::int64_t>(count * sizeof(T)))),
        span_(memory_.template as<T>(), count) {}

  std::span<T> span() const { return span_; }
  void fetch(std::span<const T> from, std::size_t begin = 0) const {
    if (!from.empty()) device_->copy(from.data(), span_.data() + begin, static_cast<std::int64_t>(from.size_bytes()));
  }
  void give(std::span<T> to) const {
    if (!to.empty()) device_->copy(span_.data(), to.data(), static_cast<std::int64_t>(to.size_bytes()));
  }

 private:
  std::shared_ptr<Device> device_;
  ScratchPool::Lease memory_;
  std::span<T> span_;
};

// An operation on `copy`, which goes to `to` when it has ended.
template <class T>
Pending then_give(Pending&& operation, std::shared_ptr<HostCopy<T>> copy, std::span<T> to) {
  auto pending = std::make_shared<Pending>(std::move(operation));
  return Pending([pending, copy = std::move(copy), to] {
    pending->wait();
    copy->give(to);
  });
}

}  // namespace fourfold
