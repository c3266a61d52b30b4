// A line of the code: what std::source_location is, which clang 14 lacks.
#pragma once

namespace fourfold {

struct CodePlace {
  const char* file = "";
  int line = 0;

  // As a default argument: the place of the call.
  static constexpr CodePlace current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace fourfold
