// libFuzzer's entry. FOURFOLD_FUZZ_TARGET=name: of that one; else the first byte chooses the target, the others are its
// input. FOURFOLD_FUZZ_SEEDS=folder: only writes the legal inputs of the target there.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

const fourfold::fuzz::Target* chosen = nullptr;

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("FOURFOLD_FUZZ_TARGET");
  const char* seeds = std::getenv("FOURFOLD_FUZZ_SEEDS");
  if (name == nullptr) return 0;
  for (const auto& target : fourfold::fuzz::targets()) {
    if (std::string(target.name) == name) chosen = &target;
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "no target %s\n", name);
    std::exit(2);
  }
  if (seeds == nullptr) return 0;
  int number = 0;
  for (const std::string& seed : chosen->seeds()) {
    std::ofstream(std::string(seeds) + "/seed" + std::to_string(number++), std::ios::binary) << seed;
  }
  std::exit(0);
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto& all = fourfold::fuzz::targets();
  if (chosen != nullptr) {
    chosen->run({data, size});
  } else if (size > 0) {
    all[data[0] % all.size()].run({data + 1, size - 1});
  }
  return 0;
}
