#include "tensor/offload.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace fourfold {

Offload::Set Offload::start(const HeldBlocks& blocks) {
  settle();
  Space().fence();  // they are written by kernels
  Set set;
  for (const HeldBlock& block : blocks) {
    // Several tensors may share a block.
    const auto same = std::find_if(set.parts.begin(), set.parts.end(),
                                   [&](const Set::Part& part) { return *part.handles.front() == *block.handle; });
    if (same == set.parts.end()) {
      set.parts.push_back({{block.handle}, block.bytes, 0});
    } else {
      same->handles.push_back(block.handle);
    }
  }
  for (Set::Part& part : set.parts) {
    std::shared_ptr<std::byte> data = *part.handles.front();
    for (std::shared_ptr<std::byte>* handle : part.handles) handle->reset();
    FOURFOLD_ASSERT(data.use_count() == 1, "what is offloaded is held by nobody else");
    Pool::relabel(data, MemoryTag::buffers);
    part.place = store_->put(data.get(), part.bytes);
    leaving_.push_back(std::move(data));
  }
  leaving_calls_ = store_->calls();
  return set;
}

void Offload::load(Set& set) {
  Space().fence();  // kernels may still read what was in these blocks before
  for (Set::Part& part : set.parts) {
    const std::shared_ptr<std::byte> data = pool_.take(MemoryTag::activations, part.bytes);
    for (std::shared_ptr<std::byte>* handle : part.handles) *handle = data;
    store_->get(part.place, data.get(), part.bytes);
  }
  set.calls = store_->calls();
}

void Offload::finish(Set& set) {
  store_->wait(set.calls);
  set.parts.clear();
}

void Offload::settle() {
  store_->wait(leaving_calls_);
  leaving_.clear();
}

}  // namespace fourfold
