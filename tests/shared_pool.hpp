// Blocks of a test's Pool where the ranks of a node read each other's memory (launch().shared_memory()).
#pragma once

#include "comm/launch.hpp"
#include "deck/deck.hpp"
#include "mpi_test.hpp"
#include "tensor/tensor.hpp"

namespace fourfold::test {

inline Pool::Source shared_blocks(SharedMemoryUse use = SharedMemoryUse::automatic) {
  const auto memory = launch().shared_memory();
  if (memory == nullptr || use == SharedMemoryUse::off) return {};
  return [memory](std::int64_t bytes) { return memory->take(bytes); };
}

}  // namespace fourfold::test
