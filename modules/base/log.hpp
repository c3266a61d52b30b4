// The log for people: one line a call, "12:34:56 message" (warnings and errors name themselves), colours on terminals
// only. Information goes to stdout, warnings and errors to stderr. Callers format the text themselves.
#pragma once

#include <string>

namespace fourfold {

// Which rank this process is. Only rank 0 prints, and nothing prints before this call: so no line comes twice.
void set_log_rank(int rank);

void log_info(const std::string& message);
void log_warn(const std::string& message);
void log_error(const std::string& message);

}  // namespace fourfold
