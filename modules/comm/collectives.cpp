// Movements that add nothing: gathers, broadcasts, exchanges and messages.
#include "comm/collectives.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "comm/gather_scatter.hpp"
#include "comm/staging.hpp"

namespace fourfold {

namespace {

Pending waits_for(const std::shared_ptr<Call>& call) {
  return Pending([call] {
    const Call::Timed waiting(*call);
    call->finish();
  });
}

}  // namespace

template <class T>
Pending start_all_gather(const Communicator& group, std::span<const T> mine, std::span<T> all,
                         std::span<const std::int64_t> sizes, CallSite site) {
  const auto rank = static_cast<std::size_t>(group.rank());
  FOURFOLD_ASSERT(std::ssize(sizes) == group.size(), "one size a rank");
  FOURFOLD_ASSERT(sizes[rank] == std::ssize(mine), "own part as long as its size");
  const std::int64_t total = total_of(sizes);
  FOURFOLD_ASSERT(total == std::ssize(all), "the parts fill the whole");
  if (group.size() == 1) {
    if (mine.data() != all.data()) Call::copy(group, mine.data(), all.data(), total);
    return {};
  }
  if (Call::needs_staging(group, all.data())) {
    auto copy = std::make_shared<HostCopy<T>>(group, all.size());
    const auto begin = static_cast<std::size_t>(offsets_of(sizes)[rank]);
    copy->fetch(mine, begin);
    const std::span<const T> own = copy->span().subspan(begin, mine.size());
    return then_give(start_all_gather<T>(group, own, copy->span(), sizes, site), copy, all);
  }
  auto call = std::make_shared<Call>(group, Operation::all_gather, site);
  const Call::Timed timed(*call);
  call->record({.elements = total,
                .element_size = sizeof(T),
                .ring_elements = total - sizes[rank],
                .largest = (group.size() - 1) * *std::max_element(sizes.begin(), sizes.end()),
                .messages = group.size() - 1});
  if (DeviceGroup* device = call->device(all.data())) {
    device->all_gather(kWireNumber<T>, mine.data(), all.data(), sizes);
    call->queued();
    return waits_for(call);
  }
  const std::int64_t bytes = total * static_cast<std::int64_t>(sizeof(T));
  if (const auto shared = Call::shared_group(group, all.data(), bytes)) {
    const std::vector<std::int64_t> parts(sizes.begin(), sizes.end());
    // An empty part has an address that nobody reads.
    auto gather = shared->start(mine.empty() ? all.data() : mine.data(), bytes,
                                [all, parts, rank](const std::vector<std::byte*>& buffers) {
                                  T* to = all.data();
                                  for (std::size_t r = 0; r < parts.size(); ++r) {
                                    const T* from = reinterpret_cast<const T*>(buffers[r]);
                                    if (r != rank || from != to) copy_elements(from, to, parts[r]);
                                    to += parts[r];
                                  }
                                });
    if (gather != nullptr) return ends(call, shared, gather);
  }
  auto slices = std::make_shared<Slices>(sizes, 0, over_limit<T>(*call, total) ? 0 : total);
  post_gather<T>(*call, mine, all, sizes, *slices);
  return Pending([call, slices] {
    const Call::Timed waiting(*call);
    call->finish();
  });
}

template <class T>
void all_gather(const Communicator& group, std::span<const T> mine, std::span<T> all,
                std::span<const std::int64_t> sizes, CallSite site) {
  start_all_gather(group, mine, all, sizes, site).wait();
}

template <class T>
void broadcast(const Communicator& group, std::span<T> data, int root, CallSite site) {
  FOURFOLD_ASSERT(root >= 0 && root < group.size(), "the root is a rank of the group");
  if (group.size() == 1) return;
  if (Call::needs_staging(group, data.data())) {
    const HostCopy<T> copy(group, data.size());
    if (group.rank() == root) copy.fetch(data);
    broadcast<T>(group, copy.span(), root, site);
    if (group.rank() != root) copy.give(data);
    return;
  }
  const auto count = static_cast<std::int64_t>(data.size());
  auto call = std::make_shared<Call>(group, Operation::broadcast, site);
  const Call::Timed timed(*call);
  const bool last = (group.rank() + 1) % group.size() == root;
  call->record({.elements = count,
                .element_size = sizeof(T),
                .ring_elements = last ? 0 : count,
                .largest = count,
                .messages = last ? 0 : 1});
  if (DeviceGroup* device = call->device(data.data())) {
    device->broadcast(kWireNumber<T>, data.data(), count, root);
    call->queued();
    call->finish();
    return;
  }
  const std::int64_t most = call->chunk(sizeof(T), 1);
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const auto now = static_cast<int>(std::min(most, count - begin));
    call->post([&](MPI_Request* request) {
      return MPI_Ibcast(data.data() + begin, now, mpi_type<T>(), root, call->comm(), request);
    });
  }
  call->finish();
}

template <class T>
void all_to_all(const Communicator& group, std::span<const T> send, std::span<const std::int64_t> send_sizes,
                std::span<T> receive, std::span<const std::int64_t> receive_sizes, CallSite site) {
  const int size = group.size();
  const auto rank = static_cast<std::size_t>(group.rank());
  FOURFOLD_ASSERT(std::ssize(send_sizes) == size && std::ssize(receive_sizes) == size, "one size a rank");
  FOURFOLD_ASSERT(total_of(send_sizes) == std::ssize(send), "the parts fill what is sent");
  FOURFOLD_ASSERT(total_of(receive_sizes) == std::ssize(receive), "the parts fill what is received");
  FOURFOLD_ASSERT(send_sizes[rank] == receive_sizes[rank], "what a rank keeps has one size");
  const std::vector<std::int64_t> send_at = offsets_of(send_sizes);
  const std::vector<std::int64_t> receive_at = offsets_of(receive_sizes);
  Call::copy(group, send.data() + send_at[rank], receive.data() + receive_at[rank], send_sizes[rank]);
  if (size == 1) return;
  const void* buffer = send.empty() ? static_cast<const void*>(receive.data()) : send.data();
  if (Call::needs_staging(group, buffer) && Call::message_needs_staging(group, buffer)) {
    const HostCopy<T> sent(group, send.size());
    const HostCopy<T> received(group, receive.size());
    sent.fetch(send);
    all_to_all<T>(group, sent.span(), send_sizes, received.span(), receive_sizes, site);
    received.give(receive);
    return;
  }
  Call call(group, Operation::all_to_all, site);
  const Call::Timed timed(call);
  const std::int64_t sent = total_of(send_sizes) - send_sizes[rank];
  call.record({.elements = total_of(send_sizes),
               .element_size = sizeof(T),
               .ring_elements = sent,
               .largest = sent,
               .messages = std::count_if(send_sizes.begin(), send_sizes.end(), [](std::int64_t n) { return n > 0; }) -
                           (send_sizes[rank] > 0 ? 1 : 0)});
  if (DeviceGroup* device = call.device(buffer)) {
    std::vector<DeviceGroup::Message> sends, receives;
    const auto message = [](std::size_t peer, T* data, std::int64_t count) {
      return DeviceGroup::Message{static_cast<int>(peer), data, count * static_cast<std::int64_t>(sizeof(T))};
    };
    for (std::size_t peer = 0; peer < static_cast<std::size_t>(size); ++peer) {
      if (peer == rank) continue;
      if (send_sizes[peer] > 0)
        sends.push_back(message(peer, const_cast<T*>(send.data()) + send_at[peer], send_sizes[peer]));
      if (receive_sizes[peer] > 0)
        receives.push_back(message(peer, receive.data() + receive_at[peer], receive_sizes[peer]));
    }
    device->exchange(sends, receives);
    call.queued();
    call.finish();
    return;
  }
  // Messages rather than MPI_Alltoallv, whose displacements are 32-bit; pairs without elements exchange nothing.
  for (int step = 1; step < size; ++step) {
    const auto from = static_cast<std::size_t>((group.rank() - step + size) % size);
    if (receive_sizes[from] > 0)
      call.receive(
          receive.subspan(static_cast<std::size_t>(receive_at[from]), static_cast<std::size_t>(receive_sizes[from])),
          static_cast<int>(from), kTagAllToAll);
  }
  for (int step = 1; step < size; ++step) {
    const auto to = static_cast<std::size_t>((group.rank() + step) % size);
    if (send_sizes[to] > 0)
      call.send(send.subspan(static_cast<std::size_t>(send_at[to]), static_cast<std::size_t>(send_sizes[to])),
                static_cast<int>(to), kTagAllToAll);
  }
  call.finish();
}

template <class T>
Pending start_send(const Communicator& group, std::span<const T> data, int to, int tag, CallSite site, SendMode mode) {
  FOURFOLD_ASSERT(to >= 0 && to < group.size() && to != group.rank(), "a message goes to another rank of the group");
  FOURFOLD_ASSERT(tag >= 0 && tag < kTagLimit, "tags are below 2^15");
  if (Call::message_needs_staging(group, data.data())) {
    auto copy = std::make_shared<HostCopy<T>>(group, data.size());
    copy->fetch(data);
    return then_give(start_send<T>(group, copy->span(), to, tag, site), copy, std::span<T>());
  }
  auto call = std::make_shared<Call>(group, Operation::send, site, to);
  const Call::Timed timed(*call);
  call->record_message(std::ssize(data), sizeof(T), tag);
  call->send(data, to, tag, mode == SendMode::synchronous ? MPI_Issend : MPI_Isend);
  return waits_for(call);
}

template <class T>
Pending start_receive(const Communicator& group, std::span<T> data, int from, int tag, CallSite site) {
  FOURFOLD_ASSERT(from >= 0 && from < group.size() && from != group.rank(),
                  "a message comes from another rank of the group");
  FOURFOLD_ASSERT(tag >= 0 && tag < kTagLimit, "tags are below 2^15");
  if (Call::message_needs_staging(group, data.data())) {
    auto copy = std::make_shared<HostCopy<T>>(group, data.size());
    return then_give(start_receive<T>(group, copy->span(), from, tag, site), copy, data);
  }
  auto call = std::make_shared<Call>(group, Operation::receive, site, from);
  const Call::Timed timed(*call);
  call->record_message(std::ssize(data), sizeof(T), tag);
  call->receive(data, from, tag);
  return waits_for(call);
}

void barrier(const Communicator& group, CallSite site) {
  if (group.size() == 1) return;
  Call call(group, Operation::barrier, site);
  const Call::Timed timed(call);
  call.record({.elements = 0, .element_size = 1, .ring_elements = 0, .largest = 0, .messages = group.size() - 1});
  call.post([&](MPI_Request* request) { return MPI_Ibarrier(call.comm(), request); });
  call.finish();
}

#define FOURFOLD_MOVEMENTS(T)                                                                                       \
  template Pending start_all_gather<T>(const Communicator&, std::span<const T>, std::span<T>,                       \
                                       std::span<const std::int64_t>, CallSite);                                    \
  template void all_gather<T>(const Communicator&, std::span<const T>, std::span<T>, std::span<const std::int64_t>, \
                              CallSite);                                                                            \
  template void broadcast<T>(const Communicator&, std::span<T>, int, CallSite);                                     \
  template void all_to_all<T>(const Communicator&, std::span<const T>, std::span<const std::int64_t>, std::span<T>, \
                              std::span<const std::int64_t>, CallSite);                                             \
  template Pending start_send<T>(const Communicator&, std::span<const T>, int, int, CallSite, SendMode);            \
  template Pending start_receive<T>(const Communicator&, std::span<T>, int, int, CallSite);
FOURFOLD_MOVEMENTS(float)
FOURFOLD_MOVEMENTS(double)
FOURFOLD_MOVEMENTS(std::int32_t)
FOURFOLD_MOVEMENTS(std::int64_t)
FOURFOLD_MOVEMENTS(std::uint16_t)
FOURFOLD_MOVEMENTS(std::byte)
#undef FOURFOLD_MOVEMENTS

}  // namespace fourfold
