// The abort path: one failing rank ends the whole job, non-zero, within seconds, its message first. Nothing here waits
// for another rank.
#pragma once

#include <string>
#include <string_view>

#include "base/error.hpp"

namespace fourfold {

class CallRing;  // comm/call_ring.hpp

// Installs the handlers of std::terminate, of operator new, of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT, and of
// exit(): from now until end_abort_path() an exit in mid-run ends the job non-zero.
void begin_abort_path(int rank, const std::string& host);
// set_progress tells it too from now on; null: no more.
void tell_progress(CallRing* ring);
// MPI has ended, or is ended by the caller.
void end_abort_path();

// Writes "rank R on HOST, step S, PHASE: message" to stderr in one piece, then ends the job with the code: MPI_Abort,
// and where that hangs, this process by SIGALRM after five seconds.
[[noreturn]] void abort_job(ExitCode code, std::string_view message) noexcept;

// Ends the job without a message: another rank has written it.
[[noreturn]] void abort_job_quietly(ExitCode code) noexcept;

}  // namespace fourfold
