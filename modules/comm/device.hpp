// Memory that the host cannot read (a GPU's), as collectives see it. They ask the launch's Device of every buffer
// whether it holds it. Collectives on its buffers go through the group's DeviceGroup (NCCL) where it has one; all that
// is left goes through MPI: as it is where MPI was seen to move such memory, else on copies in the host's. The ledger
// and the virtual clock do not see which.
//
// cuda_device.hpp makes the real one; the tests have one of protected host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

namespace fourfold {

enum class WireNumber { float32, float64, int32, int64, uint16, byte };

template <class T>
inline constexpr WireNumber kWireNumber = std::is_same_v<T, float>           ? WireNumber::float32
                                          : std::is_same_v<T, double>        ? WireNumber::float64
                                          : std::is_same_v<T, std::int32_t>  ? WireNumber::int32
                                          : std::is_same_v<T, std::int64_t>  ? WireNumber::int64
                                          : std::is_same_v<T, std::uint16_t> ? WireNumber::uint16
                                                                             : WireNumber::byte;
constexpr std::int64_t wire_bytes(WireNumber number) {
  switch (number) {
    case WireNumber::float64:
    case WireNumber::int64:
      return 8;
    case WireNumber::float32:
    case WireNumber::int32:
      return 4;
    case WireNumber::uint16:
      return 2;
    default:
      return 1;
  }
}

// The collectives of one communicator on device memory. Calls queue an operation behind the earlier ones of all groups
// and return; all members make the same calls. Counts are elements; sizes may be zero. Errors: Error (one rank).
class DeviceGroup {
 public:
  enum class Reduce { sum, max };
  struct Message {
    int peer;
    void* data;  // only read when it is sent
    std::int64_t bytes;
  };
  // Every rank's contribution to one part: this rank's own, the others' side by side in rank order.
  struct Terms {
    const void* own;
    const void* others;
    int rank, ranks;
    std::int64_t count;
  };

  DeviceGroup() = default;
  virtual ~DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  virtual void all_reduce(WireNumber number, void* data, std::int64_t count, Reduce reduce) = 0;
  // `mine` may lie at its place in `all`.
  virtual void all_gather(WireNumber number, const void* mine, void* all, std::span<const std::int64_t> sizes) = 0;
  virtual void reduce_scatter(WireNumber number, const void* all, void* mine, std::span<const std::int64_t> sizes) = 0;
  virtual void broadcast(WireNumber number, void* data, std::int64_t count, int root) = 0;
  virtual void exchange(std::span<const Message> sends, std::span<const Message> receives) = 0;
  // sum = rank 0's term plus rank 1's plus ..., in this order for every element; `sum` may be the own term.
  virtual void add_in_order(WireNumber number, const Terms& terms, void* sum) = 0;

  // The moment at which all that is queued is complete, and whether it has come. Asking keeps an eye on the group: a
  // failed one is given up, and the error names it.
  virtual std::shared_ptr<void> mark() = 0;
  virtual bool reached(const std::shared_ptr<void>& moment) = 0;
};

class Device {
 public:
  // Sends `bytes` of the group's rank 0 to all its ranks.
  using FromFirst = std::function<void(void* data, std::int64_t bytes)>;

  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual bool holds(const void* address) const = 0;
  // Either side may be the host's. Complete on return.
  virtual void copy(const void* from, void* to, std::int64_t bytes) = 0;
  // Collective over the group. Null: it has none.
  virtual std::unique_ptr<DeviceGroup> make_group(int rank, int ranks, const std::string& name,
                                                  const FromFirst& from_first) = 0;
  // Whether the MPI library says that it moves this memory.
  virtual bool mpi_claims_it() const = 0;
};

}  // namespace fourfold
