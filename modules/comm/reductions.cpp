// Sums and maxima over a group.
#include <array>
#include <memory>

#include "base/error.hpp"
#include "comm/gather_scatter.hpp"
#include "comm/staging.hpp"
#include "grid/partition.hpp"

namespace fourfold {

namespace {

// Equal parts of `count` elements, as `part` of grid/partition.hpp cuts them.
std::vector<std::int64_t> equal_parts(std::int64_t count, int parts) {
  std::vector<std::int64_t> sizes;
  for (int r = 0; r < parts; ++r) sizes.push_back(part(count, parts, r).size());
  return sizes;
}

constexpr std::int64_t kBlock = 512;  // of additions: what fits in the first-level cache

// Rank 0's contribution plus rank 1's plus ..., in this order for every element, block by block: `terms(r)` points to
// rank r's, `put(begin, block, count)` takes each block of sums.
template <class T, class Terms, class Put>
void add_in_rank_order(int ranks, std::int64_t count, const Terms& terms, const Put& put) {
  std::array<T, kBlock> block;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t now = std::min(kBlock, count - begin);
    copy_elements<T>(terms(0) + begin, block.data(), now);
    for (int r = 1; r < ranks; ++r) {
      const T* term = terms(r) + begin;
      for (std::int64_t i = 0; i < now; ++i) block[static_cast<std::size_t>(i)] += term[i];
    }
    put(begin, block.data(), now);
  }
}

// Pairwise exchange of parts: each rank receives the others' contributions to its own part, and adds them at the end.
template <class T>
class PairwiseSum {
 public:
  // Starts the exchange. `all` holds this rank's contributions to every part.
  PairwiseSum(Call& call, std::span<const T> all, std::span<const std::int64_t> sizes)
      : own_(all.data() + offsets_of(sizes)[static_cast<std::size_t>(call.rank())]),
        count_(sizes[static_cast<std::size_t>(call.rank())]),
        size_(call.size()),
        rank_(call.rank()),
        received_(call.scratch(count_ * (size_ - 1) * static_cast<std::int64_t>(sizeof(T)))) {
    const std::vector<std::int64_t> offsets = offsets_of(sizes);
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ - step + size_) % size_;
      if (count_ > 0) call.receive(std::span<T>(slot(from), static_cast<std::size_t>(count_)), from, kTagReduceScatter);
    }
    for (int step = 1; step < size_; ++step) {
      const auto to = static_cast<std::size_t>((rank_ + step) % size_);
      if (sizes[to] > 0)
        call.send(all.subspan(static_cast<std::size_t>(offsets[to]), static_cast<std::size_t>(sizes[to])),
                  static_cast<int>(to), kTagReduceScatter);
    }
  }

  // After call.wait(). `sum` may be the own part itself.
  void add(T* sum) const {
    add_in_rank_order<T>(
        size_, count_, [this](int r) { return contribution(r); },
        [sum](std::int64_t begin, const T* block, std::int64_t count) { copy_elements(block, sum + begin, count); });
  }

 private:
  T* slot(int r) const { return received_.as<T>() + (r < rank_ ? r : r - 1) * count_; }
  const T* contribution(int r) const { return r == rank_ ? own_ : slot(r); }

  const T* own_;
  std::int64_t count_;
  int size_, rank_;
  ScratchPool::Lease received_;
};

// The same in a device's memory: queues the exchange and the additions into `sum`, which may be the own part. The
// result holds what was received until the call is complete.
template <class T>
std::shared_ptr<const ScratchPool::Lease> queue_pairwise_sum(Call& call, DeviceGroup& device, std::span<const T> all,
                                                             std::span<const std::int64_t> sizes, T* sum) {
  const std::vector<std::int64_t> offsets = offsets_of(sizes);
  const auto rank = static_cast<std::size_t>(call.rank());
  const std::int64_t count = sizes[rank];
  const std::int64_t width = sizeof(T);
  auto received = std::make_shared<const ScratchPool::Lease>(call.device_scratch(count * (call.size() - 1) * width));
  std::vector<DeviceGroup::Message> sends, receives;
  for (int r = 0; r < call.size(); ++r) {
    const auto peer = static_cast<std::size_t>(r);
    if (peer == rank) continue;
    if (sizes[peer] > 0) sends.push_back({r, const_cast<T*>(all.data()) + offsets[peer], sizes[peer] * width});
    if (count > 0)
      receives.push_back({r, received->template as<T>() + (peer < rank ? r : r - 1) * count, count * width});
  }
  device.exchange(sends, receives);
  if (count > 0) {
    device.add_in_order(kWireNumber<T>,
                        {all.data() + offsets[rank], received->template as<T>(), call.rank(), call.size(), count}, sum);
  }
  return received;
}

// Of a part that a rank receives from each other. Messages of such a size cross memory once inside a node, where the
// MPI library's own non-blocking sums may move each several times (Open MPI 4.1, 2 ranks, 64 MB: 140 ms, pairwise 36);
// below it, and between nodes, the library knows its ways better.
constexpr std::int64_t kPairwiseBytes = std::int64_t{8} << 10;

template <class T>
bool pairwise(const Communicator& group, std::span<const T> data, Summation summation) {
  return summation == Summation::deterministic ||
         (!group.between_nodes() && !Call::on_device(group, data.data()) &&
          std::ssize(data) / group.size() * static_cast<std::int64_t>(sizeof(T)) >= kPairwiseBytes);
}

template <class T>
void record_all_reduce(Call& call, std::int64_t count) {
  call.record({.elements = count,
               .element_size = sizeof(T),
               .ring_elements = 2 * (count - part(count, call.size(), call.rank()).size()),
               .largest = 2 * (call.size() - 1) * part(count, call.size(), 0).size(),
               .messages = 2 * (call.size() - 1)});
}

// What ends an operation that was started.
using Finish = std::function<void()>;

Finish finish_of(const std::shared_ptr<Call>& call) {
  return [call] {
    const Call::Timed waiting(*call);
    call->finish();
  };
}

// MPI's own.
template <class T>
Finish post_all_reduce(const std::shared_ptr<Call>& call, std::span<T> data, MPI_Op op) {
  const auto count = static_cast<std::int64_t>(data.size());
  // A multiple of the ranks, so that the pieces' parts add up to the whole's.
  const std::int64_t most = call->chunk(sizeof(T), call->size());
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const auto now = static_cast<int>(std::min(most, count - begin));
    call->post([&](MPI_Request* request) {
      return MPI_Iallreduce(MPI_IN_PLACE, data.data() + begin, now, mpi_type<T>(), op, call->comm(), request);
    });
  }
  return finish_of(call);
}

template <class T>
Finish post_pairwise_all_reduce(const std::shared_ptr<Call>& call, std::span<T> data) {
  const auto count = static_cast<std::int64_t>(data.size());
  const std::vector<std::int64_t> sizes = equal_parts(count, call->size());
  const auto rank = static_cast<std::size_t>(call->rank());
  auto sum = std::make_shared<PairwiseSum<T>>(*call, data, sizes);
  return [call, sum, sizes, data, rank, count] {
    const Call::Timed waiting(*call);
    call->wait();
    T* own = data.data() + offsets_of(sizes)[rank];
    sum->add(own);
    Slices slices(sizes, 0, over_limit<T>(*call, count) ? 0 : count);
    post_gather<T>(*call, {own, static_cast<std::size_t>(sizes[rank])}, data, sizes, slices);
    call->finish();
  };
}

// Each rank adds its part of everybody's buffer and writes the sums to all of them: every element is read and written
// once a rank, and the ranks wait for each other twice.
template <class T>
std::shared_ptr<SharedOperation> share_all_reduce(SharedGroup& group, const Call& call, std::span<T> data) {
  const Range mine = part(std::ssize(data), call.size(), call.rank());
  const int ranks = call.size();
  return group.start(
      data.data(), static_cast<std::int64_t>(data.size_bytes()), [mine, ranks](const std::vector<std::byte*>& buffers) {
        const auto part_of = [&](int r) {
          return reinterpret_cast<T*>(buffers[static_cast<std::size_t>(r)]) + mine.begin;
        };
        add_in_rank_order<T>(ranks, mine.size(), part_of, [&](std::int64_t begin, const T* block, std::int64_t count) {
          for (int r = 0; r < ranks; ++r) copy_elements(block, part_of(r) + begin, count);
        });
      });
}

// sum: this rank's part of the sum of `bytes` at `all` on each rank; it begins at element `begin` of these.
template <class T>
std::shared_ptr<SharedOperation> share_reduce_scatter(SharedGroup& group, const Call& call, std::span<const T> all,
                                                      std::int64_t begin, std::span<T> sum) {
  const int ranks = call.size();
  return group.start(
      all.data(), static_cast<std::int64_t>(all.size_bytes()),
      [begin, sum, ranks](const std::vector<std::byte*>& buffers) {
        add_in_rank_order<T>(
            ranks, std::ssize(sum),
            [&](int r) { return reinterpret_cast<const T*>(buffers[static_cast<std::size_t>(r)]) + begin; },
            [&](std::int64_t at, const T* block, std::int64_t count) { copy_elements(block, sum.data() + at, count); });
      });
}

template <class T>
void record_reduce_scatter(Call& call, std::span<const std::int64_t> sizes) {
  const std::int64_t total = total_of(sizes);
  call.record({.elements = total,
               .element_size = sizeof(T),
               .ring_elements = total - sizes[static_cast<std::size_t>(call.rank())],
               .largest = (call.size() - 1) * *std::max_element(sizes.begin(), sizes.end()),
               .messages = call.size() - 1});
}

// By messages in pairs, or MPI's own.
template <class T>
Finish post_reduce_scatter(const std::shared_ptr<Call>& call, std::span<const T> all, std::span<T> mine,
                           const std::vector<std::int64_t>& sizes, bool pairs) {
  if (pairs) {
    auto sum = std::make_shared<PairwiseSum<T>>(*call, all, sizes);
    return [call, sum, mine] {
      const Call::Timed waiting(*call);
      call->finish();
      sum->add(mine.data());
    };
  }
  const std::int64_t total = total_of(sizes);
  if (total == 0) return finish_of(call);
  if (over_limit<T>(*call, total)) {
    const auto rank = static_cast<std::size_t>(call->rank());
    const std::vector<std::int64_t> offsets = offsets_of(sizes);
    for_each_round<T>(*call, sizes, [&](std::int64_t begin, const Slices& round, T* scratch) {
      for (std::size_t r = 0; r < sizes.size(); ++r)
        copy_elements(all.data() + offsets[r] + begin, scratch + round.displacements[r], round.counts[r]);
      call->post([&](MPI_Request* request) {
        return MPI_Ireduce_scatter(scratch, mine.data() + std::min(begin, sizes[rank]), round.counts.data(),
                                   mpi_type<T>(), MPI_SUM, call->comm(), request);
      });
      call->wait();
    });
    return finish_of(call);
  }
  auto slices = std::make_shared<Slices>(sizes, 0, total);
  call->post([&](MPI_Request* request) {
    return MPI_Ireduce_scatter(all.data(), mine.data(), slices->counts.data(), mpi_type<T>(), MPI_SUM, call->comm(),
                               request);
  });
  return [finish = finish_of(call), slices] { finish(); };
}

template <class T>
void check_parts(const Communicator& group, std::span<const T> all, std::span<const T> mine,
                 std::span<const std::int64_t> sizes) {
  FOURFOLD_ASSERT(std::ssize(sizes) == group.size(), "one size a rank");
  FOURFOLD_ASSERT(sizes[static_cast<std::size_t>(group.rank())] == std::ssize(mine), "own part as long as its size");
  FOURFOLD_ASSERT(total_of(sizes) == std::ssize(all), "the parts fill the whole");
}

}  // namespace

template <class T>
Pending start_all_reduce_sum(const Communicator& group, std::span<T> data, Summation summation, CallSite site) {
  if (group.size() == 1) return {};
  if (Call::needs_staging(group, data.data())) {
    auto copy = std::make_shared<HostCopy<T>>(group, data.size());
    copy->fetch(data);
    return then_give(start_all_reduce_sum<T>(group, copy->span(), summation, site), copy, data);
  }
  auto call = std::make_shared<Call>(group, Operation::all_reduce, site);
  const Call::Timed timed(*call);
  const auto count = static_cast<std::int64_t>(data.size());
  record_all_reduce<T>(*call, count);
  const bool pairs = pairwise<T>(group, data, summation);
  if (DeviceGroup* device = call->device(data.data())) {
    std::shared_ptr<const ScratchPool::Lease> received;
    if (pairs) {
      const std::vector<std::int64_t> sizes = equal_parts(count, group.size());
      T* own = data.data() + offsets_of(sizes)[static_cast<std::size_t>(group.rank())];
      received = queue_pairwise_sum<T>(*call, *device, data, sizes, own);
      device->all_gather(kWireNumber<T>, own, data.data(), sizes);
    } else {
      device->all_reduce(kWireNumber<T>, data.data(), count, DeviceGroup::Reduce::sum);
    }
    call->queued();
    return Pending([finish = finish_of(call), received] { finish(); });
  }
  if (const auto shared = Call::shared_group(group, data.data(), static_cast<std::int64_t>(data.size_bytes()))) {
    if (auto operation = share_all_reduce(*shared, *call, data)) return ends(call, shared, operation);
  }
  return Pending(pairs ? post_pairwise_all_reduce(call, data) : post_all_reduce(call, data, MPI_SUM));
}

template <class T>
void all_reduce_sum(const Communicator& group, std::span<T> data, Summation summation, CallSite site) {
  start_all_reduce_sum(group, data, summation, site).wait();
}

template <class T>
void all_reduce_max(const Communicator& group, std::span<T> data, CallSite site) {
  if (group.size() == 1) return;
  if (Call::needs_staging(group, data.data())) {
    const HostCopy<T> copy(group, data.size());
    copy.fetch(data);
    all_reduce_max<T>(group, copy.span(), site);
    copy.give(data);
    return;
  }
  const auto call = std::make_shared<Call>(group, Operation::all_reduce, site);
  const Call::Timed timed(*call);
  record_all_reduce<T>(*call, std::ssize(data));
  if (DeviceGroup* device = call->device(data.data())) {
    device->all_reduce(kWireNumber<T>, data.data(), std::ssize(data), DeviceGroup::Reduce::max);
    call->queued();
    call->finish();
    return;
  }
  post_all_reduce(call, data, MPI_MAX);
  call->finish();
}

template <class T>
Pending start_reduce_scatter_sum(const Communicator& group, std::span<const T> all, std::span<T> mine,
                                 std::span<const std::int64_t> sizes, Summation summation, CallSite site) {
  check_parts<T>(group, all, mine, sizes);
  const auto rank = static_cast<std::size_t>(group.rank());
  if (group.size() == 1) {
    Call::copy(group, all.data(), mine.data(), std::ssize(all));
    return {};
  }
  if (Call::needs_staging(group, all.data())) {
    const auto whole = std::make_shared<HostCopy<T>>(group, all.size());
    auto part = std::make_shared<HostCopy<T>>(group, mine.size());
    whole->fetch(all);
    Pending sum = start_reduce_scatter_sum<T>(group, whole->span(), part->span(), sizes, summation, site);
    auto pending = std::make_shared<Pending>(std::move(sum));
    return then_give(Pending([whole, pending] { pending->wait(); }), part, mine);
  }
  auto call = std::make_shared<Call>(group, Operation::reduce_scatter, site);
  const Call::Timed timed(*call);
  record_reduce_scatter<T>(*call, sizes);
  if (DeviceGroup* device = call->device(all.data())) {
    std::shared_ptr<const ScratchPool::Lease> received;
    if (summation == Summation::deterministic) {
      received = queue_pairwise_sum<T>(*call, *device, all, sizes, mine.data());
    } else {
      device->reduce_scatter(kWireNumber<T>, all.data(), mine.data(), sizes);
    }
    call->queued();
    return Pending([finish = finish_of(call), received] { finish(); });
  }
  const bool pairs = pairwise<T>(group, all, summation);
  if (const auto shared = Call::shared_group(group, all.data(), static_cast<std::int64_t>(all.size_bytes()))) {
    const std::int64_t begin = offsets_of(sizes)[rank];
    if (auto operation = share_reduce_scatter<T>(*shared, *call, all, begin, mine))
      return ends(call, shared, operation);
  }
  return Pending(post_reduce_scatter<T>(call, all, mine, {sizes.begin(), sizes.end()}, pairs));
}

template <class T>
Pending start_reduce_scatter_slices(const Communicator& group, const T* all, std::int64_t stride, std::span<T> mine,
                                    Summation summation, CallSite site) {
  const std::int64_t size = std::ssize(mine);
  const auto ranks = static_cast<std::int64_t>(group.size());
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks), size);
  const std::int64_t bytes = ranks * size * static_cast<std::int64_t>(sizeof(T));
  const auto shared = group.size() > 1 ? Call::shared_group(group, all, bytes) : nullptr;
  if (shared != nullptr) {
    auto call = std::make_shared<Call>(group, Operation::reduce_scatter, site);
    const Call::Timed timed(*call);
    const std::span<const T> reach(all, static_cast<std::size_t>((ranks - 1) * stride + size));
    if (auto operation = share_reduce_scatter<T>(*shared, *call, reach, group.rank() * stride, mine)) {
      record_reduce_scatter<T>(*call, sizes);
      return ends(call, shared, operation);
    }
  }
  // The slices side by side.
  const auto staging = std::make_shared<const ScratchPool::Lease>(Call::scratch_beside(group, all, bytes));
  T* const together = staging->template as<T>();
  for (std::int64_t r = 0; r < ranks; ++r) Call::copy(group, all + r * stride, together + r * size, size);
  auto sum = std::make_shared<Pending>(start_reduce_scatter_sum<T>(
      group, {together, static_cast<std::size_t>(ranks * size)}, mine, sizes, summation, site));
  return Pending([sum, staging] { sum->wait(); });
}

template <class T>
void reduce_scatter_sum(const Communicator& group, std::span<const T> all, std::span<T> mine,
                        std::span<const std::int64_t> sizes, Summation summation, CallSite site) {
  start_reduce_scatter_sum(group, all, mine, sizes, summation, site).wait();
}

#define FOURFOLD_REDUCTIONS(T)                                                                               \
  template Pending start_reduce_scatter_slices<T>(const Communicator&, const T*, std::int64_t, std::span<T>, \
                                                  Summation, CallSite);                                      \
  template Pending start_all_reduce_sum<T>(const Communicator&, std::span<T>, Summation, CallSite);          \
  template void all_reduce_sum<T>(const Communicator&, std::span<T>, Summation, CallSite);                   \
  template void all_reduce_max<T>(const Communicator&, std::span<T>, CallSite);                              \
  template Pending start_reduce_scatter_sum<T>(const Communicator&, std::span<const T>, std::span<T>,        \
                                               std::span<const std::int64_t>, Summation, CallSite);          \
  template void reduce_scatter_sum<T>(const Communicator&, std::span<const T>, std::span<T>,                 \
                                      std::span<const std::int64_t>, Summation, CallSite);
FOURFOLD_REDUCTIONS(float)
FOURFOLD_REDUCTIONS(double)
FOURFOLD_REDUCTIONS(std::int32_t)
FOURFOLD_REDUCTIONS(std::int64_t)
#undef FOURFOLD_REDUCTIONS

}  // namespace fourfold
