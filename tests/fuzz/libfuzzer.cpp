// libFuzzer's entry: the first byte chooses the target, the others are its input.
#include <cstddef>
#include <cstdint>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto& all = fourfold::fuzz::targets();
  if (size > 0) all[data[0] % all.size()].run({data + 1, size - 1});
  return 0;
}
