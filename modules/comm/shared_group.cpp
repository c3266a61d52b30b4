#include "comm/shared_group.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.hpp"
#include "comm/comm_state.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_check.hpp"

namespace fourfold {

namespace {

constexpr int kSpins = 200;  // before others get the core

// What a member tells the others at the start.
struct Card {
  std::int32_t node = 0;
  SharedMemory::Place slots;
  std::int64_t next = 0;
};

}  // namespace

std::shared_ptr<SharedGroup> SharedGroup::make(const Communicator& group, CommState& state) {
  if (state.shared_memory == nullptr || group.size() == 1) return nullptr;
  auto made = std::make_shared<SharedGroup>();
  made->state_ = &state;
  made->rank_ = static_cast<std::size_t>(group.rank());
  made->name_ = group.name();
  // Slots are used again by other groups only: a late member of the old one still finds higher numbers there.
  if (state.free_slots.empty()) {
    made->own_ = state.shared_memory->take(kSlots * std::int64_t{sizeof(SharedSlot)});
    if (made->own_ != nullptr)
      std::uninitialized_default_construct_n(reinterpret_cast<SharedSlot*>(made->own_.get()), kSlots);
  } else {
    made->own_ = std::move(state.free_slots.back());
    state.free_slots.pop_back();
  }
  Card mine{state.real_node,
            made->own_ != nullptr ? state.shared_memory->find(made->own_.get()) : SharedMemory::Place{},
            state.next_shared};
  std::vector<Card> cards(static_cast<std::size_t>(group.size()));
  MPI_Request request = MPI_REQUEST_NULL;
  const auto check = [&](int code) { check_mpi(code, "MPI_Iallgather", group.name(), group.rank(), group.size()); };
  check(
      MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, cards.data(), sizeof mine, MPI_BYTE, group.handle().comm, &request));
  check(MPI_Wait(&request, MPI_STATUS_IGNORE));
  for (const Card& card : cards) {
    if (card.node != mine.node || !card.slots.shared()) return nullptr;
  }
  for (const Card& card : cards) {
    made->next_ = std::max(made->next_, card.next);
    std::byte* slots = state.shared_memory->address(card.slots);
    if (slots == nullptr) {
      fail_one(ExitCode::error,
               "the shared memory of group '" + group.name() + "' cannot be mapped: " + std::strerror(errno));
    }
    made->slots_.push_back(reinterpret_cast<SharedSlot*>(slots));
  }
  made->handle_ = group.handle_;
  made->last_.resize(kSlots);
  return made;
}

SharedGroup::~SharedGroup() {
  if (state_ == nullptr || own_ == nullptr) return;
  state_->next_shared = std::max(state_->next_shared, next_);
  state_->free_slots.push_back(std::move(own_));
}

std::shared_ptr<SharedOperation> SharedGroup::start(const void* buffer, std::int64_t bytes,
                                                    SharedOperation::Work work) {
  const std::int64_t number = next_++;
  auto& last = last_[static_cast<std::size_t>(number % kSlots)];
  if (last != nullptr) wait(*last);  // everybody does so at this place
  last.reset();
  SharedSlot& mine = slot(rank_, number);
  mine.buffer = state_->shared_memory->find(buffer);
  mine.bytes = bytes;
  if (mine.buffer.shared()) {
    last = std::make_shared<SharedOperation>();
    last->group_ = shared_from_this();
    last->number_ = number;
    last->work_ = std::move(work);
    state_->under_way.push_back(last);
  }
  mine.posted.store(number, std::memory_order_release);
  return last;
}

// All have posted.
std::vector<std::byte*> SharedOperation::buffers() const {
  const SharedSlot& mine = group_->slot(group_->rank_, number_);
  std::vector<std::byte*> buffers;
  for (std::size_t m = 0; m < group_->slots_.size(); ++m) {
    const SharedSlot& its = group_->slot(m, number_);
    const auto fail = [&](const std::string& what) {
      fail_one(ExitCode::error, "group '" + group_->name_ + "', rank " + std::to_string(group_->rank_) +
                                    ": the buffer of rank " + std::to_string(m) + " " + what);
    };
    if (its.posted.load(std::memory_order_relaxed) != number_ || !its.buffer.shared())
      fail("lies in no shared memory (comm.shared_memory: off goes without)");
    if (its.bytes != mine.bytes)
      fail("has " + std::to_string(its.bytes) + " bytes, the own one " + std::to_string(mine.bytes));
    buffers.push_back(group_->state_->shared_memory->address(its.buffer));
    if (buffers.back() == nullptr) fail(std::string("cannot be mapped: ") + std::strerror(errno));
  }
  return buffers;
}

bool SharedOperation::advance() {
  if (ended_) return true;
  const auto all = [&](auto which) {
    for (std::size_t m = 0; m < group_->slots_.size(); ++m) {
      if ((group_->slot(m, number_).*which).load(std::memory_order_acquire) < number_) return false;
    }
    return true;
  };
  if (!done_) {
    if (!all(&SharedSlot::posted)) return false;
    ended_ = true;  // should there be an error
    work_(buffers());
    ended_ = false;
    work_ = nullptr;
    done_ = true;
    group_->slot(group_->rank_, number_).done.store(number_, std::memory_order_release);
  }
  ended_ = all(&SharedSlot::done);
  if (ended_) group_.reset();  // which holds this operation
  return ended_;
}

void SharedGroup::wait(SharedOperation& operation) const {
  for (int spins = 0; !operation.advance(); ++spins) {
    if (spins < kSpins) continue;
    advance_shared(*state_);
    if (state_->clock.emulates()) state_->channels.progress();
    int found = 0;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, handle_->comm, &found, MPI_STATUS_IGNORE), "MPI_Iprobe", name_,
              static_cast<int>(rank_), static_cast<int>(slots_.size()));
    sched_yield();
  }
  advance_shared(*state_);  // which forgets this one
}

bool advance_shared(CommState& state) {
  std::erase_if(state.under_way, [](const auto& operation) { return operation->advance(); });
  return !state.under_way.empty();
}

}  // namespace fourfold
