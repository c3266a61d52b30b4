#include "data/text_tokens.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "data/bytes.hpp"

namespace fourfold {

TextTokens::TextTokens(const std::vector<std::string>& files, const std::string& key) {
  std::string faults;
  for (const std::string& path : files) {
    try {
      files_.emplace_back(path);
      first_token_.push_back(first_token_.back() + static_cast<std::int64_t>(files_.back().bytes().size()) + 1);
    } catch (const Error& error) {
      faults += (faults.empty() ? "" : "\n") + key + ": " + error.what();
    }
  }
  if (!faults.empty()) fail_all(ExitCode::input, faults);
}

std::int32_t TextTokens::largest_id() const {
  return kEndOfDocument;
}

std::string TextTokens::describe() const {
  std::string text;
  for (const MappedFile& file : files_) {
    text += "text " + std::filesystem::path(file.path()).filename().string() + " bytes " +
            std::to_string(file.bytes().size()) + "\n";
  }
  return text;
}

std::size_t TextTokens::file_of(std::int64_t position) const {
  const auto after = std::upper_bound(first_token_.begin(), first_token_.end(), position);
  return static_cast<std::size_t>(after - first_token_.begin()) - 1;
}

std::int64_t TextTokens::bytes(std::int64_t begin, std::int64_t end) const {
  // Each file that ends in between has one token that is no byte.
  return end - begin - static_cast<std::int64_t>(file_of(end) - file_of(begin));
}

TokenPlace TextTokens::place(std::int64_t position) const {
  const std::size_t file = file_of(position);
  return {files_[file].path(), 0, position - first_token_[file]};
}

void TextTokens::read(std::int64_t first, std::span<std::int32_t> ids) const {
  FOURFOLD_ASSERT(first >= 0 && first + static_cast<std::int64_t>(ids.size()) <= size(), "tokens lie in the stream");
  std::size_t file = file_of(first);
  std::size_t offset = static_cast<std::size_t>(first - first_token_[file]);
  for (std::size_t done = 0; done < ids.size(); ++file, offset = 0) {
    const std::span<const unsigned char> text = files_[file].bytes();
    const std::size_t count = std::min(ids.size() - done, text.size() - offset);
    std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(offset), count,
                ids.begin() + static_cast<std::ptrdiff_t>(done));
    done += count;
    if (done < ids.size()) ids[done++] = kEndOfDocument;
  }
}

}  // namespace fourfold
