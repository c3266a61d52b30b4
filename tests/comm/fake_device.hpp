// A Device of host memory that the host may not touch: outside of the device's own work its pages are protected, so
// that a collective which reads a device's buffer itself dies. Its groups do their work over MPI (past the counting
// wrapper) when they are asked whether it is done, so that nobody may look at a result before.
#pragma once

#include <mpi.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/device.hpp"

namespace fourfold::test {

class FakeDevice : public Device {
 public:
  enum class Has { groups, mpi, nothing };  // DeviceGroups; an MPI that reads its memory; neither

  explicit FakeDevice(Has has) : has_(has) {
    memory_ = static_cast<std::byte*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    protect();
  }
  ~FakeDevice() override { munmap(memory_, kBytes); }

  bool holds(const void* address) const override { return address >= memory_ && address < memory_ + kBytes; }
  void copy(const void* from, void* to, std::int64_t bytes) override {
    const Open open(*this);
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  bool mpi_claims_it() const override { return has_ == Has::mpi; }
  std::unique_ptr<DeviceGroup> make_group(int rank, int ranks, const std::string& name,
                                          const FromFirst& from_first) override;

  // Memory of the device, never given back.
  std::shared_ptr<void> allocate(std::int64_t bytes) {
    std::byte* block = memory_ + used_;
    used_ += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    if (used_ > kBytes) throw std::bad_alloc();
    return {block, [](void*) {}};
  }
  template <class T>
  std::span<T> array(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    if (bytes == 0) return {};
    auto* data = static_cast<T*>(allocate(bytes).get());
    copy(values.data(), data, bytes);
    return {data, values.size()};
  }
  template <class T>
  std::vector<T> values(std::span<const T> array) {
    std::vector<T> values(array.size());
    if (!array.empty()) copy(array.data(), values.data(), static_cast<std::int64_t>(array.size_bytes()));
    return values;
  }

 private:
  friend class FakeGroup;
  static constexpr std::size_t kBytes = std::size_t(64) << 20;

  // The device at work.
  class Open {
   public:
    explicit Open(FakeDevice& device) : device_(device) { mprotect(device_.memory_, kBytes, PROT_READ | PROT_WRITE); }
    ~Open() { device_.protect(); }

   private:
    FakeDevice& device_;
  };
  void protect() {
    if (has_ != Has::mpi) mprotect(memory_, kBytes, PROT_NONE);
  }

  Has has_;
  std::byte* memory_ = nullptr;
  std::size_t used_ = 0;
  std::deque<std::function<void()>> queue_;  // of all groups
  std::int64_t queued_ = 0, ran_ = 0;
};

class FakeGroup : public DeviceGroup {
 public:
  FakeGroup(FakeDevice& device, MPI_Comm comm, int rank) : device_(device), comm_(comm), rank_(rank) {}
  ~FakeGroup() override { PMPI_Comm_free(&comm_); }

  void all_reduce(WireNumber number, void* data, std::int64_t count, Reduce reduce) override {
    queue([=, this] {
      PMPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), type(number),
                     reduce == Reduce::sum ? MPI_SUM : MPI_MAX, comm_);
    });
  }
  void all_gather(WireNumber number, const void* mine, void* all, std::span<const std::int64_t> sizes) override {
    queue([=, this, counts = counts_of(sizes)] {
      std::vector<int> at(counts.size());
      std::exclusive_scan(counts.begin(), counts.end(), at.begin(), 0);
      const auto rank = static_cast<std::size_t>(rank_);
      const std::int64_t own = counts[rank] * wire_bytes(number);
      std::byte* place = static_cast<std::byte*>(all) + at[rank] * wire_bytes(number);
      if (own > 0) std::memmove(place, mine, static_cast<std::size_t>(own));
      PMPI_Allgatherv(MPI_IN_PLACE, 0, type(number), all, counts.data(), at.data(), type(number), comm_);
    });
  }
  void reduce_scatter(WireNumber number, const void* all, void* mine, std::span<const std::int64_t> sizes) override {
    queue([=, this, counts = counts_of(sizes)] {
      PMPI_Reduce_scatter(all, mine, counts.data(), type(number), MPI_SUM, comm_);
    });
  }
  void broadcast(WireNumber number, void* data, std::int64_t count, int root) override {
    queue([=, this] { PMPI_Bcast(data, static_cast<int>(count), type(number), root, comm_); });
  }
  void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    queue([this, to = std::vector<Message>(sends.begin(), sends.end()),
           from = std::vector<Message>(receives.begin(), receives.end())] {
      std::vector<MPI_Request> requests;
      for (const Message& m : from)
        PMPI_Irecv(m.data, static_cast<int>(m.bytes), MPI_BYTE, m.peer, 0, comm_, &requests.emplace_back());
      for (const Message& m : to)
        PMPI_Isend(m.data, static_cast<int>(m.bytes), MPI_BYTE, m.peer, 0, comm_, &requests.emplace_back());
      for (MPI_Request& request : requests) PMPI_Wait(&request, MPI_STATUS_IGNORE);
    });
  }
  void add_in_order(WireNumber number, const Terms& terms, void* sum) override {
    queue([=] {
      switch (number) {
        case WireNumber::float32:
          return add<float>(terms, sum);
        case WireNumber::float64:
          return add<double>(terms, sum);
        case WireNumber::int32:
          return add<std::int32_t>(terms, sum);
        default:
          return add<std::int64_t>(terms, sum);
      }
    });
  }
  std::shared_ptr<void> mark() override { return std::make_shared<std::int64_t>(device_.queued_); }
  bool reached(const std::shared_ptr<void>& moment) override {
    const std::int64_t wanted = *static_cast<const std::int64_t*>(moment.get());
    const FakeDevice::Open open(device_);
    for (; device_.ran_ < wanted; ++device_.ran_) {
      device_.queue_.front()();
      device_.queue_.pop_front();
    }
    return true;
  }

 private:
  static MPI_Datatype type(WireNumber number) {
    constexpr WireNumber kNumbers[] = {WireNumber::float32, WireNumber::float64, WireNumber::int32,
                                       WireNumber::int64,   WireNumber::uint16,  WireNumber::byte};
    const MPI_Datatype types[] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T, MPI_UINT16_T, MPI_BYTE};
    return types[std::find(std::begin(kNumbers), std::end(kNumbers), number) - std::begin(kNumbers)];
  }
  static std::vector<int> counts_of(std::span<const std::int64_t> sizes) { return {sizes.begin(), sizes.end()}; }
  template <class T>
  static void add(const Terms& terms, void* sum) {
    for (std::int64_t i = 0; i < terms.count; ++i) {
      T total{};
      for (int r = 0; r < terms.ranks; ++r) {
        const T term = r == terms.rank
                           ? static_cast<const T*>(terms.own)[i]
                           : static_cast<const T*>(terms.others)[(r < terms.rank ? r : r - 1) * terms.count + i];
        total = r == 0 ? term : total + term;
      }
      static_cast<T*>(sum)[i] = total;
    }
  }
  void queue(std::function<void()> work) {
    device_.queue_.push_back(std::move(work));
    ++device_.queued_;
  }

  FakeDevice& device_;
  MPI_Comm comm_;
  int rank_;
};

// All ranks of the world make groups at the same time.
inline std::unique_ptr<DeviceGroup> FakeDevice::make_group(int rank, int /*ranks*/, const std::string& /*name*/,
                                                           const FromFirst& from_first) {
  if (has_ != Has::groups) return nullptr;
  int leader = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &leader);
  from_first(&leader, sizeof leader);
  MPI_Comm comm = MPI_COMM_NULL;
  PMPI_Comm_split(MPI_COMM_WORLD, leader, rank, &comm);
  return std::make_unique<FakeGroup>(*this, comm, rank);
}

}  // namespace fourfold::test
