#include <Kokkos_Core.hpp>
#include <map>
#include <vector>

#include "kernels/types.hpp"
#include "tensor/away_store.hpp"

namespace fourfold {

namespace {

using kernels::Space;
#ifdef KOKKOS_ENABLE_CUDA
using HostMemory = Kokkos::CudaHostPinnedSpace;  // so that copies need not be waited for
#else
using HostMemory = Kokkos::HostSpace;
#endif

template <class Byte>
using DeviceBytes =
    Kokkos::View<Byte*, Kokkos::LayoutRight, Space::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

class HostStore : public AwayStore {
 public:
  Place put(const std::byte* data, std::int64_t bytes) override {
    std::vector<Place>& free = free_[bytes];
    if (free.empty()) {
      free.push_back(static_cast<Place>(blocks_.size()));
      blocks_.emplace_back(Kokkos::view_alloc("offloaded", Kokkos::WithoutInitializing),
                           static_cast<std::size_t>(bytes));
    }
    const Place place = free.back();
    free.pop_back();
    Kokkos::deep_copy(Space(), at(place), DeviceBytes<const std::byte>(data, static_cast<std::size_t>(bytes)));
    ++calls_;
    return place;
  }

  // Whoever uses the bytes, or the place, does so in the order of the kernels.
  void get(Place place, std::byte* data, std::int64_t bytes) override {
    Kokkos::deep_copy(Space(), DeviceBytes<std::byte>(data, static_cast<std::size_t>(bytes)), at(place));
    free_[bytes].push_back(place);
    ++calls_;
  }

  std::int64_t calls() const override { return calls_; }
  void wait(std::int64_t) override {}
  std::string fault() const override { return ""; }

 private:
  using Block = Kokkos::View<std::byte*, Kokkos::LayoutRight, HostMemory>;
  Block& at(Place place) { return blocks_[static_cast<std::size_t>(place)]; }

  std::vector<Block> blocks_;
  std::map<std::int64_t, std::vector<Place>> free_;  // by size
  std::int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<AwayStore> make_host_store() {
  return std::make_unique<HostStore>();
}

}  // namespace fourfold
