#include "comm/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // Open MPI
#endif

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "comm/ordered_sum.hpp"

namespace fourfold {

namespace {

void check_cuda(cudaError_t code, const char* call, ExitCode exit = ExitCode::error) {
  if (code != cudaSuccess) fail_one(exit, std::string(call) + " says \"" + cudaGetErrorString(code) + "\"");
}

struct Event {
  Event() { check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t event = nullptr;
};

// The stream of all transfers, beside the one that kernels run on.
class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

ncclDataType_t nccl_type(WireNumber number) {
  switch (number) {
    case WireNumber::float32:
      return ncclFloat32;
    case WireNumber::float64:
      return ncclFloat64;
    case WireNumber::int32:
      return ncclInt32;
    case WireNumber::int64:
      return ncclInt64;
    default:
      return ncclUint8;
  }
}

// Elements of nccl_type: NCCL has no 16-bit integer, which is moved as two bytes.
std::size_t nccl_count(WireNumber number, std::int64_t count) {
  return static_cast<std::size_t>(number == WireNumber::uint16 ? 2 * count : count);
}

bool equal(std::span<const std::int64_t> sizes) {
  return std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
}

std::byte* at(const void* base, std::int64_t elements, WireNumber number) {
  return static_cast<std::byte*>(const_cast<void*>(base)) + elements * wire_bytes(number);
}

class NcclGroup : public DeviceGroup {
 public:
  NcclGroup(std::shared_ptr<Stream> stream, int rank, int ranks, std::string name, const Device::FromFirst& from_first)
      : stream_(std::move(stream)), rank_(rank), ranks_(ranks), name_(std::move(name)) {
    ncclUniqueId id{};
    if (rank_ == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    from_first(&id, sizeof id);
    check(ncclCommInitRank(&comm_, ranks_, id, rank_), "ncclCommInitRank");
  }
  // Not while an exception is on its way: the others may never come.
  ~NcclGroup() override {
    if (comm_ != nullptr && std::uncaught_exceptions() == 0) ncclCommDestroy(comm_);
  }

  void all_reduce(WireNumber number, void* data, std::int64_t count, Reduce reduce) override {
    check(ncclAllReduce(data, data, nccl_count(number, count), nccl_type(number),
                        reduce == Reduce::sum ? ncclSum : ncclMax, comm_, stream_->get()),
          "ncclAllReduce");
  }

  // Unequal parts: a broadcast from each rank, in one group.
  void all_gather(WireNumber number, const void* mine, void* all, std::span<const std::int64_t> sizes) override {
    if (equal(sizes)) {
      check(ncclAllGather(mine, all, nccl_count(number, sizes[0]), nccl_type(number), comm_, stream_->get()),
            "ncclAllGather");
      return;
    }
    together([&] {
      for_each_part(sizes, [&](int root, std::int64_t begin, std::int64_t size) {
        std::byte* place = at(all, begin, number);
        check(ncclBroadcast(root == rank_ ? mine : place, place, nccl_count(number, size), nccl_type(number), root,
                            comm_, stream_->get()),
              "ncclBroadcast");
      });
    });
  }

  // Unequal parts: a reduction to each rank, in one group.
  void reduce_scatter(WireNumber number, const void* all, void* mine, std::span<const std::int64_t> sizes) override {
    if (equal(sizes)) {
      check(
          ncclReduceScatter(all, mine, nccl_count(number, sizes[0]), nccl_type(number), ncclSum, comm_, stream_->get()),
          "ncclReduceScatter");
      return;
    }
    together([&] {
      for_each_part(sizes, [&](int root, std::int64_t begin, std::int64_t size) {
        check(ncclReduce(at(all, begin, number), root == rank_ ? mine : nullptr, nccl_count(number, size),
                         nccl_type(number), ncclSum, root, comm_, stream_->get()),
              "ncclReduce");
      });
    });
  }

  void broadcast(WireNumber number, void* data, std::int64_t count, int root) override {
    check(ncclBroadcast(data, data, nccl_count(number, count), nccl_type(number), root, comm_, stream_->get()),
          "ncclBroadcast");
  }

  void exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    together([&] {
      for (const Message& message : receives) {
        check(ncclRecv(message.data, static_cast<std::size_t>(message.bytes), ncclUint8, message.peer, comm_,
                       stream_->get()),
              "ncclRecv");
      }
      for (const Message& message : sends) {
        check(ncclSend(message.data, static_cast<std::size_t>(message.bytes), ncclUint8, message.peer, comm_,
                       stream_->get()),
              "ncclSend");
      }
    });
  }

  void add_in_order(WireNumber number, const Terms& terms, void* sum) override {
    check_cuda(launch_ordered_sum(number, terms, sum, stream_->get()), "the kernel of a deterministic sum");
  }

  std::shared_ptr<void> mark() override {
    std::shared_ptr<Event> event = free_.empty() ? std::make_shared<Event>() : std::move(free_.back());
    if (!free_.empty()) free_.pop_back();
    check_cuda(cudaEventRecord(event->event, stream_->get()), "cudaEventRecord");
    return event;
  }

  bool reached(const std::shared_ptr<void>& moment) override {
    auto event = std::static_pointer_cast<Event>(moment);
    const cudaError_t code = cudaEventQuery(event->event);
    if (code == cudaErrorNotReady) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
      if (state != ncclInProgress) check(state, "an operation of NCCL");
      return false;
    }
    check_cuda(code, "an operation on the device, seen by cudaEventQuery,");
    free_.push_back(std::move(event));
    return true;
  }

 private:
  // A failed communicator is given up first, so that its kernels do not wait for other ranks for ever.
  void check(ncclResult_t code, const char* call) {
    if (code == ncclSuccess) return;
    const char* last = ncclGetLastError(comm_);
    const std::string text = std::string(call) + " failed in group '" + name_ + "' on rank " + std::to_string(rank_) +
                             " of its " + std::to_string(ranks_) + ": " + ncclGetErrorString(code) +
                             (last != nullptr && *last != '\0' ? std::string(" (") + last + ")" : "");
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
    fail_one(ExitCode::error, text);
  }

  template <class Work>
  void together(Work&& work) {
    check(ncclGroupStart(), "ncclGroupStart");
    work();
    check(ncclGroupEnd(), "ncclGroupEnd");
  }

  template <class Part>
  static void for_each_part(std::span<const std::int64_t> sizes, Part&& part) {
    std::int64_t begin = 0;
    for (std::size_t r = 0; r < sizes.size(); ++r) {
      if (sizes[r] > 0) part(static_cast<int>(r), begin, sizes[r]);
      begin += sizes[r];
    }
  }

  std::shared_ptr<Stream> stream_;
  int rank_, ranks_;
  std::string name_;
  ncclComm_t comm_ = nullptr;
  std::vector<std::shared_ptr<Event>> free_;
};

class CudaDevice : public Device {
 public:
  explicit CudaDevice(bool with_groups) : with_groups_(with_groups), stream_(std::make_shared<Stream>()) {}

  bool holds(const void* address) const override {
    if (address == nullptr) return false;
    cudaPointerAttributes attributes{};
    check_cuda(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  }

  void copy(const void* from, void* to, std::int64_t bytes) override {
    check_cuda(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_->get()),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(stream_->get()), "cudaStreamSynchronize");
  }

  std::unique_ptr<DeviceGroup> make_group(int rank, int ranks, const std::string& name,
                                          const FromFirst& from_first) override {
    if (!with_groups_) return nullptr;
    return std::make_unique<NcclGroup>(stream_, rank, ranks, name, from_first);
  }

  bool mpi_claims_it() const override {
    const char* wanted = std::getenv("FOURFOLD_GPU_AWARE_MPI");
    if (wanted != nullptr && std::string(wanted) == "0") return false;
#if defined(OMPI_HAVE_MPI_EXT_CUDA) && OMPI_HAVE_MPI_EXT_CUDA
    return MPIX_Query_cuda_support() == 1;
#elif defined(MPIX_GPU_SUPPORT_CUDA)  // MPICH 4
    int supported = 0;
    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) == MPI_SUCCESS && supported != 0;
#else                                 // Cray MPICH is told so by its user
    const char* cray = std::getenv("MPICH_GPU_SUPPORT_ENABLED");
    return cray != nullptr && std::string(cray) == "1";
#endif
  }

 private:
  bool with_groups_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace

int cuda_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string cuda_device_id(int device) {
  char id[64] = "";
  check_cuda(cudaDeviceGetPCIBusId(id, sizeof id, device), "cudaDeviceGetPCIBusId", ExitCode::launch);
  return id;
}

std::shared_ptr<Device> make_cuda_device(int device, bool with_groups) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0) {
    fail_one(ExitCode::launch, std::string("no CUDA device: cudaGetDeviceCount says \"") + cudaGetErrorString(code) +
                                   "\" and finds " + std::to_string(count));
  }
  check_cuda(cudaSetDevice(device), "cudaSetDevice", ExitCode::launch);
  return std::make_shared<CudaDevice>(with_groups);
}

}  // namespace fourfold
