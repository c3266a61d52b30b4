#include "data/text_tokens.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "data/bytes.hpp"

namespace fourfold {

std::int32_t TextTokens::largest_id() const {
  return kEndOfDocument;
}

std::string TextTokens::describe() const {
  return "text " + std::filesystem::path(file_.path()).filename().string() + " bytes " +
         std::to_string(file_.bytes().size()) + "\n";
}

std::int64_t TextTokens::bytes(std::int64_t begin, std::int64_t end) const {
  return end - begin - (end == size() && begin < end ? 1 : 0);  // the last token is no byte
}

TokenPlace TextTokens::place(std::int64_t position) const {
  const std::size_t at = static_cast<std::size_t>(position);
  TokenPlace place{file_.path(), 0, position};
  place.offset = position;
  place.id = at < file_.bytes().size() ? file_.bytes()[at] : kEndOfDocument;
  return place;
}

void TextTokens::read(std::int64_t first, std::span<std::int32_t> ids) const {
  FOURFOLD_ASSERT(first >= 0 && first + static_cast<std::int64_t>(ids.size()) <= size(), "tokens lie in the stream");
  const std::span<const unsigned char> text = file_.bytes().subspan(static_cast<std::size_t>(first));
  std::copy_n(text.begin(), std::min(ids.size(), text.size()), ids.begin());
  if (ids.size() > text.size()) ids.back() = kEndOfDocument;
}

}  // namespace fourfold
