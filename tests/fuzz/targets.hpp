// What is fuzzed: each parser on any bytes either returns what lies within them or throws Error (input) that names the
// file. Used by the seeded loop of mutate.cpp and by libFuzzer (libfuzzer.cpp).
#pragma once

#include <span>
#include <string>
#include <vector>

namespace fourfold::fuzz {

struct Target {
  const char* name;
  // True: the bytes were taken. Aborts with a message on any other outcome than those two.
  bool (*run)(std::span<const unsigned char> bytes);
  std::vector<std::string> (*seeds)();  // legal inputs
};

const std::vector<Target>& targets();

}  // namespace fourfold::fuzz
