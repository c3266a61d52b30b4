// What a rank last did with the others, in a memory-mapped file of its own that other processes read: how far it is in
// each of its groups, its last operations, and which one it waits for. Written by the thread that calls MPI, without
// locks; read when a run hangs (hang_report.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/ledger.hpp"
#include "comm/phase.hpp"

namespace fourfold {

struct RingFile;  // call_ring.cpp

// An operation of a rank. Those of a group have numbers from 1; the same number on two members is the same operation,
// or one of them is wrong. Messages have the number 0 and a peer.
struct RingCall {
  std::int64_t group = -1;  // of RingSnapshot::groups
  std::int64_t number = 0;
  Operation operation{};
  std::int64_t elements = 0, element_size = 0;
  Phase phase{};
  std::string where;       // "optim/reducer.cpp:88"
  std::int64_t peer = -1;  // a rank of the world
  bool ended = false;
};

// What the file says.
struct RingSnapshot {
  struct Group {
    std::uint64_t id = 0;  // the same on all members, of no other group
    std::string name;
    std::int64_t size = 0;
    std::int64_t begun = 0;  // the number of the last collective
  };
  std::int64_t rank = -1;
  std::string host;
  std::int64_t step = -1;
  std::string phase;          // "backward"
  std::int64_t progress = 0;  // how many phases it has entered
  std::vector<Group> groups;
  std::vector<RingCall> calls;  // the last ones, oldest first
  std::int64_t waiting = -1;    // of `calls`; -1: it waits for nobody
};

// Nothing where it cannot be read or is no such file.
std::optional<RingSnapshot> read_ring(const std::string& path);

class CallRing {
 public:
  static constexpr std::int64_t kCalls = 128;  // a power of two
  static constexpr std::int64_t kGroups = 128;

  // Errors: Error (one rank, storage): the file cannot be made.
  CallRing(std::string path, int rank, const std::string& host);
  ~CallRing();
  CallRing(const CallRing&) = delete;
  CallRing& operator=(const CallRing&) = delete;

  struct Given {
    std::uint64_t group;  // its id
    std::string_view name;
    std::int64_t size;
    Operation operation;
    std::int64_t elements, element_size;
    CallSite site;
    std::int64_t peer;  // of a message, a rank of the world; else -1
  };
  // This rank is a member of the group. All of a group's members say so before its first operation, so that who never
  // comes to that one is known.
  void join(std::uint64_t group, std::string_view name, std::int64_t size);
  // Returns the ticket of the operation, above 0; 0 where there is no place left for its group.
  std::int64_t begin(const Given& given);
  void end(std::int64_t ticket);
  // From now on this rank waits for it; 0: for nothing.
  void wait_for(std::int64_t ticket);
  void enter(std::int64_t step, const char* phase);

  // Changes with everything above. For the watchdog's thread.
  std::int64_t changes() const;
  std::string phase() const;
  // Brings the file to where other nodes see it.
  void flush() const;
  // The file goes when this object does.
  void remove_at_end() { remove_ = true; }

 private:
  // Its place among the groups; kGroups where there is none left.
  std::size_t place_of(std::uint64_t group, std::string_view name, std::int64_t size);

  std::string path_;
  RingFile* file_ = nullptr;
  bool remove_ = false;
};

}  // namespace fourfold
