#include "comm/channels.hpp"

#include <sched.h>

#include <algorithm>

#include "base/error.hpp"
#include "comm/call.hpp"
#include "comm/mpi_check.hpp"

namespace fourfold {

namespace {

constexpr int kNoticeBytes = sizeof(VirtualOperation::Notice);

}  // namespace

void Channels::check(int code, const VirtualOperation& operation) const {
  check_mpi(code, "the virtual clock's notice", "?", operation.rank, operation.size);
}

void Channels::post(const std::shared_ptr<VirtualOperation>& operation) {
  operation->posted = clock_.now();
  if (operation->kind == VirtualOperation::Kind::receive) {
    check(MPI_Irecv(&operation->stamp, kNoticeBytes, MPI_BYTE, operation->peer, kTagNotice + operation->tag,
                    operation->group->comm, &operation->requests.emplace_back(MPI_REQUEST_NULL)),
          *operation);
    return;
  }
  channels_[static_cast<std::size_t>(operation->link)].posted.push_back(operation);
  progress();
}

void Channels::reset() {
  for (Channel& channel : channels_) {
    FOURFOLD_ASSERT(channel.posted.empty(), "operations end on the clock they were posted on");
    channel.free = 0;
  }
}

void Channels::tell(VirtualOperation& operation, Picoseconds ready) const {
  operation.told = true;
  operation.mine = {ready, operation.bytes};
  operation.heard.resize(static_cast<std::size_t>(operation.size), operation.mine);
  for (int other = 0; other < operation.size; ++other) {
    if (other == operation.rank) continue;
    check(MPI_Irecv(&operation.heard[static_cast<std::size_t>(other)], kNoticeBytes, MPI_BYTE, other, kTagPosted,
                    operation.group->comm, &operation.requests.emplace_back(MPI_REQUEST_NULL)),
          operation);
    check(MPI_Isend(&operation.mine, kNoticeBytes, MPI_BYTE, other, kTagPosted, operation.group->comm,
                    &operation.requests.emplace_back(MPI_REQUEST_NULL)),
          operation);
  }
}

bool Channels::heard_all(VirtualOperation& operation) const {
  for (MPI_Request& request : operation.requests) {
    int complete = 0;
    check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), operation);
    if (complete == 0) return false;
  }
  operation.requests.clear();
  return true;
}

void Channels::progress() {
  for (Channel& channel : channels_) {
    while (!channel.posted.empty()) {
      const std::shared_ptr<VirtualOperation> first = channel.posted.front();
      const Link& link = clock_.machine().link(first->link);
      const Picoseconds ready = std::max(first->posted, channel.free);
      if (first->kind == VirtualOperation::Kind::send) {
        first->end = saturating_add(ready, transfer_time(link, first->bytes));
        first->stamp = {saturating_add(first->end, link.latency), first->bytes};
        check(MPI_Isend(&first->stamp, kNoticeBytes, MPI_BYTE, first->peer, kTagNotice + first->tag, first->group->comm,
                        &first->requests.emplace_back(MPI_REQUEST_NULL)),
              *first);
        sent_.push_back(first);
      } else {
        if (!first->told) tell(*first, ready);
        if (!heard_all(*first)) break;
        Picoseconds start = 0;
        std::int64_t bytes = 0;
        for (const VirtualOperation::Notice& notice : first->heard) {
          start = std::max(start, notice.ready);
          bytes = std::max(bytes, notice.bytes);
        }
        first->end = saturating_add(start, collective_time(link, bytes, first->steps));
      }
      channel.free = first->end;
      channel.posted.pop_front();
    }
  }
  std::erase_if(sent_, [this](const auto& message) { return heard_all(*message); });
}

Picoseconds Channels::wait(VirtualOperation& operation) {
  while (true) {
    progress();
    if (operation.kind == VirtualOperation::Kind::receive && heard_all(operation))
      operation.end = operation.stamp.ready;
    if (operation.end >= 0) return clock_.advance_to(operation.end);
    sched_yield();
  }
}

}  // namespace fourfold
