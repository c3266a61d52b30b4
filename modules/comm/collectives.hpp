// Collectives on spans of numbers: T is float or double where a sum is asked, else also std::int32_t, std::int64_t,
// std::uint16_t (bf16 travels so) or std::byte.
//
// Each call is blocking, records itself in the communicator's ledger (operation, phase, elements, ring-equivalent
// elements) and checks MPI's return. Counts are 64-bit; transfers are split below 2^31 bytes. A group of one rank moves
// nothing and records nothing. Every call has a start/wait form (Pending) with the same arithmetic and the same
// operations, so that overlap changes no bit.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "comm/communicator.hpp"
#include "comm/phase.hpp"

namespace fourfold {

// How sums over ranks are made.
//   fast           MPI's own reduction; inside a node large ones as below
//   deterministic  pairwise reduce-scatter whose parts are added in coordinate order (rank 0's part first), then
//                  all-gather: independent of buckets, overlap and the MPI library's choice
enum class Summation { fast, deterministic };

// An operation under way; wait() (or destruction) completes it. Buffers belong to the caller and stay valid until then.
// Destroyed while an exception is on its way it waits for nobody: the job is about to end.
class Pending {
 public:
  Pending();
  explicit Pending(std::function<void()> finish);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();
  void wait();
  bool done() const { return !finish_; }

 private:
  std::function<void()> finish_;
};

// In place. Sum over the group.
template <class T>
void all_reduce_sum(const Communicator& group, std::span<T> data, Summation summation, CallSite site);
template <class T>
Pending start_all_reduce_sum(const Communicator& group, std::span<T> data, Summation summation, CallSite site);

// In place. Maximum over the group (exact in any order).
template <class T>
void all_reduce_max(const Communicator& group, std::span<T> data, CallSite site);

// `mine` of every rank side by side in rank order; sizes[r] elements come from rank r (sizes[rank] == mine.size()).
// `mine` may already lie at its place in `all`; otherwise the two must not overlap.
template <class T>
void all_gather(const Communicator& group, std::span<const T> mine, std::span<T> all,
                std::span<const std::int64_t> sizes, CallSite site);
template <class T>
Pending start_all_gather(const Communicator& group, std::span<const T> mine, std::span<T> all,
                         std::span<const std::int64_t> sizes, CallSite site);

// Sums `all` over the group and leaves part r (sizes[r] elements, parts side by side) on rank r, in `mine`, which must
// not overlap `all`.
template <class T>
void reduce_scatter_sum(const Communicator& group, std::span<const T> all, std::span<T> mine,
                        std::span<const std::int64_t> sizes, Summation summation, CallSite site);
template <class T>
Pending start_reduce_scatter_sum(const Communicator& group, std::span<const T> all, std::span<T> mine,
                                 std::span<const std::int64_t> sizes, Summation summation, CallSite site);

// The same for parts of mine.size() elements each of which part r begins at `all` + r `stride`. `mine` may be this
// rank's part itself.
template <class T>
Pending start_reduce_scatter_slices(const Communicator& group, const T* all, std::int64_t stride, std::span<T> mine,
                                    Summation summation, CallSite site);

template <class T>
void broadcast(const Communicator& group, std::span<T> data, int root, CallSite site);

// send_sizes[r] elements go to rank r, receive_sizes[r] come from it; zero is an ordinary size.
template <class T>
void all_to_all(const Communicator& group, std::span<const T> send, std::span<const std::int64_t> send_sizes,
                std::span<T> receive, std::span<const std::int64_t> receive_sizes, CallSite site);

// How a message leaves. synchronous: it is complete only when the other side has begun to receive it, whatever its
// size, so that a program that counts on buffers of MPI's shows itself (debug.synchronous_sends).
enum class SendMode { standard, synchronous };

// Point to point. `tag` < 2^15.
template <class T>
Pending start_send(const Communicator& group, std::span<const T> data, int to, int tag, CallSite site,
                   SendMode mode = SendMode::standard);
template <class T>
Pending start_receive(const Communicator& group, std::span<T> data, int from, int tag, CallSite site);

void barrier(const Communicator& group, CallSite site);

}  // namespace fourfold
