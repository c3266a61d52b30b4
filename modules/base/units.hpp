// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace fourfold {

std::string format_duration(double seconds);        // "0.4s", "12s", "3m05s", "2h03m"
std::string format_count(double count);             // before a unit: "12 ", "3.4 k", "2.1 G"
std::string format_thousands(std::int64_t number);  // "12,345"

}  // namespace fourfold
