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

  // After call.wait(): rank 0's contribution plus rank 1's plus ..., in this order for every element. `sum` may be the
  // own part itself.
  void add(T* sum) const {
    constexpr std::int64_t kBlock = 512;
    std::array<T, kBlock> block;
    for (std::int64_t begin = 0; begin < count_; begin += kBlock) {
      const std::int64_t count = std::min(kBlock, count_ - begin);
      copy_elements(contribution(0) + begin, block.data(), count);
      for (int r = 1; r < size_; ++r) {
        const T* term = contribution(r) + begin;
        for (std::int64_t i = 0; i < count; ++i) block[static_cast<std::size_t>(i)] += term[i];
      }
      copy_elements(block.data(), sum + begin, count);
    }
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

template <class T>
Pending start_all_reduce(const Communicator& group, std::span<T> data, MPI_Op op, Phase phase) {
  const auto count = static_cast<std::int64_t>(data.size());
  auto call = std::make_shared<Call>(group, Operation::all_reduce, phase);
  const Call::Timed timed(*call);
  record_all_reduce<T>(*call, count);
  const auto finish = [call] {
    const Call::Timed waiting(*call);
    call->finish();
  };
  if (DeviceGroup* device = call->device(data.data())) {
    device->all_reduce(kWireNumber<T>, data.data(), count,
                       op == MPI_SUM ? DeviceGroup::Reduce::sum : DeviceGroup::Reduce::max);
    call->queued();
    return Pending(finish);
  }
  // A multiple of the ranks, so that the pieces' parts add up to the whole's.
  const std::int64_t most = call->chunk(sizeof(T), group.size());
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const auto now = static_cast<int>(std::min(most, count - begin));
    call->post([&](MPI_Request* request) {
      return MPI_Iallreduce(MPI_IN_PLACE, data.data() + begin, now, mpi_type<T>(), op, call->comm(), request);
    });
  }
  return Pending(finish);
}

template <class T>
Pending start_pairwise_all_reduce(const Communicator& group, std::span<T> data, Phase phase) {
  const auto count = static_cast<std::int64_t>(data.size());
  auto call = std::make_shared<Call>(group, Operation::all_reduce, phase);
  const Call::Timed timed(*call);
  const std::vector<std::int64_t> sizes = equal_parts(count, group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  record_all_reduce<T>(*call, count);
  if (DeviceGroup* device = call->device(data.data())) {
    T* own = data.data() + offsets_of(sizes)[rank];
    auto received = queue_pairwise_sum<T>(*call, *device, data, sizes, own);
    device->all_gather(kWireNumber<T>, own, data.data(), sizes);
    call->queued();
    return Pending([call, received] {
      const Call::Timed waiting(*call);
      call->finish();
    });
  }
  auto sum = std::make_shared<PairwiseSum<T>>(*call, data, sizes);
  return Pending([call, sum, sizes, data, rank, count] {
    const Call::Timed waiting(*call);
    call->wait();
    T* own = data.data() + offsets_of(sizes)[rank];
    sum->add(own);
    Slices slices(sizes, 0, over_limit<T>(*call, count) ? 0 : count);
    post_gather<T>(*call, {own, static_cast<std::size_t>(sizes[rank])}, data, sizes, slices);
    call->finish();
  });
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
Pending start_all_reduce_sum(const Communicator& group, std::span<T> data, Summation summation, Phase phase) {
  if (group.size() == 1) return {};
  if (Call::needs_staging(group, data.data())) {
    auto copy = std::make_shared<HostCopy<T>>(group, data.size());
    copy->fetch(data);
    return then_give(start_all_reduce_sum<T>(group, copy->span(), summation, phase), copy, data);
  }
  return pairwise<T>(group, data, summation) ? start_pairwise_all_reduce(group, data, phase)
                                             : start_all_reduce(group, data, MPI_SUM, phase);
}

template <class T>
void all_reduce_sum(const Communicator& group, std::span<T> data, Summation summation, Phase phase) {
  start_all_reduce_sum(group, data, summation, phase).wait();
}

template <class T>
void all_reduce_max(const Communicator& group, std::span<T> data, Phase phase) {
  if (group.size() == 1) return;
  if (Call::needs_staging(group, data.data())) {
    const HostCopy<T> copy(group, data.size());
    copy.fetch(data);
    all_reduce_max<T>(group, copy.span(), phase);
    copy.give(data);
    return;
  }
  start_all_reduce(group, data, MPI_MAX, phase).wait();
}

template <class T>
Pending start_reduce_scatter_sum(const Communicator& group, std::span<const T> all, std::span<T> mine,
                                 std::span<const std::int64_t> sizes, Summation summation, Phase phase) {
  check_parts<T>(group, all, mine, sizes);
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::int64_t total = total_of(sizes);
  if (group.size() == 1) {
    Call::copy(group, all.data(), mine.data(), total);
    return {};
  }
  if (Call::needs_staging(group, all.data())) {
    const auto whole = std::make_shared<HostCopy<T>>(group, all.size());
    auto part = std::make_shared<HostCopy<T>>(group, mine.size());
    whole->fetch(all);
    Pending sum = start_reduce_scatter_sum<T>(group, whole->span(), part->span(), sizes, summation, phase);
    auto pending = std::make_shared<Pending>(std::move(sum));
    return then_give(Pending([whole, pending] { pending->wait(); }), part, mine);
  }
  auto call = std::make_shared<Call>(group, Operation::reduce_scatter, phase);
  const Call::Timed timed(*call);
  call->record({.elements = total,
                .element_size = sizeof(T),
                .ring_elements = total - sizes[rank],
                .largest = (group.size() - 1) * *std::max_element(sizes.begin(), sizes.end()),
                .messages = group.size() - 1});
  const auto finish = [call] {
    const Call::Timed waiting(*call);
    call->finish();
  };
  if (DeviceGroup* device = call->device(all.data())) {
    std::shared_ptr<const ScratchPool::Lease> received;
    if (summation == Summation::deterministic) {
      received = queue_pairwise_sum<T>(*call, *device, all, sizes, mine.data());
    } else {
      device->reduce_scatter(kWireNumber<T>, all.data(), mine.data(), sizes);
    }
    call->queued();
    return Pending([finish, received] { finish(); });
  }
  if (pairwise<T>(group, all, summation)) {
    auto sum = std::make_shared<PairwiseSum<T>>(*call, all, sizes);
    return Pending([call, sum, mine] {
      const Call::Timed waiting(*call);
      call->finish();
      sum->add(mine.data());
    });
  }
  if (total == 0) return Pending(finish);
  if (over_limit<T>(*call, total)) {
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
    return Pending(finish);
  }
  auto slices = std::make_shared<Slices>(sizes, 0, total);
  call->post([&](MPI_Request* request) {
    return MPI_Ireduce_scatter(all.data(), mine.data(), slices->counts.data(), mpi_type<T>(), MPI_SUM, call->comm(),
                               request);
  });
  return Pending([finish, slices] { finish(); });
}

template <class T>
void reduce_scatter_sum(const Communicator& group, std::span<const T> all, std::span<T> mine,
                        std::span<const std::int64_t> sizes, Summation summation, Phase phase) {
  start_reduce_scatter_sum(group, all, mine, sizes, summation, phase).wait();
}

#define FOURFOLD_REDUCTIONS(T)                                                                        \
  template Pending start_all_reduce_sum<T>(const Communicator&, std::span<T>, Summation, Phase);      \
  template void all_reduce_sum<T>(const Communicator&, std::span<T>, Summation, Phase);               \
  template void all_reduce_max<T>(const Communicator&, std::span<T>, Phase);                          \
  template Pending start_reduce_scatter_sum<T>(const Communicator&, std::span<const T>, std::span<T>, \
                                               std::span<const std::int64_t>, Summation, Phase);      \
  template void reduce_scatter_sum<T>(const Communicator&, std::span<const T>, std::span<T>,          \
                                      std::span<const std::int64_t>, Summation, Phase);
FOURFOLD_REDUCTIONS(float)
FOURFOLD_REDUCTIONS(double)
FOURFOLD_REDUCTIONS(std::int32_t)
FOURFOLD_REDUCTIONS(std::int64_t)
#undef FOURFOLD_REDUCTIONS

}  // namespace fourfold
