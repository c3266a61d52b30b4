// Errors: one family, and the name of the call says who is calling.
//
//   fail_all   every rank of the job reached the same verdict from the same data: rank 0 prints, all leave with the
//   code fail_one   only this rank knows: the job is aborted, this rank's message first
//
// Both throw Error; app/main.cpp and modules/comm turn it into the exit. Assertions (FOURFOLD_ASSERT) are for our own
// bugs, never for user input.
#pragma once

#include <stdexcept>
#include <string>

namespace fourfold {

// What the process returns; part of the user interface (README, "Exit codes").
enum class ExitCode : int {
  done = 0,
  error = 1,    // anything not below
  input = 2,    // bad deck, command or input file
  launch = 3,   // launcher or devices
  storage = 4,  // full, read-only, no usable checkpoint
  again = 75,   // stopped early on request: run me again
};

enum class Caller { all_ranks, one_rank };

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, Caller caller, const std::string& message)
      : std::runtime_error(message), code_(code), caller_(caller) {}
  ExitCode code() const { return code_; }
  Caller caller() const { return caller_; }

 private:
  ExitCode code_;
  Caller caller_;
};

[[noreturn]] void fail_all(ExitCode code, const std::string& message);
[[noreturn]] void fail_one(ExitCode code, const std::string& message);
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace fourfold

// FOURFOLD_ASSERT(rows >= 0, "rows come from the loader"): throws (one rank) with condition, file and line.
#define FOURFOLD_ASSERT(condition, message)                                                    \
  do {                                                                                         \
    if (!(condition)) ::fourfold::assertion_failed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
