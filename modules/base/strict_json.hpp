// JSON as the readers of other programs' files want it: what one parser takes and another does not is refused.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace fourfold {

// Parses `text`, the bytes from `offset` on of the file `path`. Members stay in their order. Errors (Error, input),
// with file and offset: no JSON, not UTF-8, a member twice, deeper than `depth`, anything after the value but white
// space.
nlohmann::ordered_json parse_strict_json(std::string_view text, const std::string& path, std::size_t offset = 0,
                                         int depth = 32);

}  // namespace fourfold
