#include "base/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>

namespace fourfold {

namespace {

// A sink has a lowest level but no highest, so each of the two streams has its own logger.
struct Log {
  Log()
      : out("out", std::make_shared<spdlog::sinks::stdout_color_sink_st>()),
        err("err", std::make_shared<spdlog::sinks::stderr_color_sink_st>()) {
    out.set_pattern("%H:%M:%S %v");
    err.set_pattern("%H:%M:%S %^%l:%$ %v");
    // A batch job's log is read while the job runs.
    out.flush_on(spdlog::level::info);
    err.flush_on(spdlog::level::warn);
  }
  spdlog::logger out, err;
  bool prints = false;
};

Log& the_log() {
  static Log log;
  return log;
}

}  // namespace

void set_log_rank(int rank) {
  the_log().prints = rank == 0;
}

// "{}": a message with braces is text, not a format.
void log_info(const std::string& message) {
  if (the_log().prints) the_log().out.info("{}", message);
}

void log_warn(const std::string& message) {
  if (the_log().prints) the_log().err.warn("{}", message);
}

void log_error(const std::string& message) {
  if (the_log().prints) the_log().err.error("{}", message);
}

}  // namespace fourfold
