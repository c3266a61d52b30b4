// Memory of this rank that the other ranks of its node read and write too: chunks of anonymous shared memory (memfd),
// which they map through /proc/PID/fd. Unlike an MPI window or a file in /dev/shm, it is as large as the machine's
// memory (containers often have a /dev/shm of 64 MB), leaves nothing behind when a job is killed, and grows without the
// other ranks. Pages are committed when a block is taken, so that no later access dies of SIGBUS.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fourfold {

class SharedMemory {
 public:
  // Where an address lies, for every rank of the node.
  struct Place {
    std::int32_t process = 0, chunk = -1;  // chunk < 0: in no shared memory
    std::int64_t offset = 0;
    bool shared() const { return chunk >= 0; }
  };
  using Block = std::shared_ptr<std::byte>;

  // Errors: none; take() then returns nothing.
  SharedMemory();

  // `bytes` bytes, aligned to 64, from this rank's shared memory until the last handle goes; null where there is none.
  Block take(std::int64_t bytes) const;
  // Why take() returned nothing.
  const std::string& refusal() const;
  Place find(const void* address) const;
  // The address of any rank's place; null where its memory cannot be mapped (and errno says why).
  std::byte* address(const Place& place) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // blocks keep it alive
};

}  // namespace fourfold
