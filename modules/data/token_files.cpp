#include "data/token_files.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "data/flat_tokens.hpp"
#include "data/llmc.hpp"
#include "data/mapped_file.hpp"
#include "data/megatron.hpp"
#include "data/text_tokens.hpp"

namespace fourfold {

namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

struct Foreign {
  std::string_view magic;
  const char* what;
};
using namespace std::string_view_literals;
constexpr std::array kForeign{Foreign{"\x1f\x8b"sv, "is compressed (gzip); unpack it first"},
                              Foreign{"\x28\xb5\x2f\xfd"sv, "is compressed (zstd); unpack it first"},
                              Foreign{"\xfd"
                                      "7zXZ\0"sv,
                                      "is compressed (xz); unpack it first"},
                              Foreign{"BZh"sv, "is compressed (bzip2); unpack it first"},
                              Foreign{"PK\3\4"sv, "is a zip archive; unpack it first"},
                              Foreign{"PAR1"sv, "is a Parquet file; write its text column as text first"},
                              Foreign{"\x89HDF\r\n\x1a\n"sv, "is an HDF5 file"},
                              Foreign{"\x93NUMPY"sv, "is a NumPy file; write its ids with tofile() first"}};

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  fail_all(ExitCode::input, path + ": " + what);
}

constexpr std::size_t kLookAt = std::size_t{1} << 16;  // bytes from which a kind is guessed

// Text with zero bytes all over is ids. (Those of 16 bits have few where ids are large: the vocabulary finds them.)
void require_text(const MappedFile& file) {
  const auto bytes = file.bytes().first(std::min(file.bytes().size(), kLookAt));
  const std::size_t zeros = static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), 0));
  if (bytes.size() >= 64 && zeros * 4 > bytes.size()) {
    refuse(file.path(), std::to_string(zeros) + " of its first " + std::to_string(bytes.size()) +
                            " bytes are 0: that is no text; data.raw: u16 or u32 reads files of bare token ids");
  }
}

// Ids of 32 bits read as 16: every other one is 0.
void require_16_bits(const MappedFile& file) {
  const std::size_t pairs = std::min(file.bytes().size(), kLookAt) / 4;
  std::size_t low = 0, high = 0;
  for (std::size_t i = 0; i < pairs; ++i) {
    low += load_number<std::uint16_t>(file.bytes().data() + 4 * i) == 0;
    high += load_number<std::uint16_t>(file.bytes().data() + 4 * i + 2) == 0;
  }
  if (pairs >= 16 && high * 10 > pairs * 9 && low * 2 < pairs) {
    refuse(file.path(), std::to_string(high) + " of its first " + std::to_string(pairs) +
                            " ids at odd places are 0: that looks like ids of 32 bits; data.raw: u32 reads them");
  }
}

std::unique_ptr<TokenSource> open_raw(MappedFile file, TokenType type) {
  const std::int64_t size = static_cast<std::int64_t>(file.bytes().size());
  const std::int64_t width = token_bytes(type);
  if (size % width != 0) {
    refuse(file.path(), "has " + std::to_string(size) + " bytes, no multiple of the " + std::to_string(width) +
                            " of an id (data.raw: " + token_type_name(type) + ")");
  }
  if (type == TokenType::u16) require_16_bits(file);
  return std::make_unique<FlatTokens>(std::move(file), 0, type, size / width, "raw");
}

std::unique_ptr<TokenSource> open_megatron(const std::string& stem) {
  MappedFile index_file(stem + ".idx");
  std::error_code error;
  const std::uintmax_t bin_bytes = fs::file_size(stem + ".bin", error);
  if (error) refuse(stem + ".bin", error.message() + " (" + stem + ".idx is its index)");
  const MegatronIndex index(index_file.bytes(), index_file.path(), static_cast<std::int64_t>(bin_bytes));
  if (index.tokens() == 0) refuse(stem + ".bin", "holds no token");
  return std::make_unique<FlatTokens>(MappedFile(stem + ".bin"), std::move(index_file), index);
}

// "corpus" of corpus.bin and corpus.idx, where one of them, or both as "corpus", is named.
std::optional<std::string> megatron_stem(const std::string& path) {
  const auto is_index = [](const std::string& at) {
    if (!exists(at)) return false;
    const MappedFile file(at);
    return is_megatron_index(file.bytes()) || is_old_megatron_index(file.bytes());
  };
  if (path.ends_with(".idx") && is_index(path)) return path.substr(0, path.size() - 4);
  if (path.ends_with(".bin") && is_index(path.substr(0, path.size() - 4) + ".idx")) {
    return path.substr(0, path.size() - 4);
  }
  if (!exists(path) && is_index(path + ".idx")) return path;
  return std::nullopt;
}

std::unique_ptr<TokenSource> open_one(const std::string& path, RawKind raw) {
  MappedFile file(path);
  const std::span<const unsigned char> bytes = file.bytes();
  if (is_megatron_index(bytes) || is_old_megatron_index(bytes)) {
    refuse(path, "is a Megatron index, but its name does not end in .idx: the .bin beside it is not known");
  }
  if (is_llmc(bytes)) {
    const std::int64_t size = static_cast<std::int64_t>(bytes.size());
    const LlmcTokens header = parse_llmc_tokens(bytes, size, path);
    if (header.tokens == 0) refuse(path, "holds no token");
    return std::make_unique<FlatTokens>(std::move(file), kLlmcHead, header.type, header.tokens, "llm.c");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Foreign& foreign : kForeign) {
    if (text.starts_with(foreign.magic)) refuse(path, foreign.what);
  }
  if (raw != RawKind::text) return open_raw(std::move(file), raw == RawKind::u16 ? TokenType::u16 : TokenType::u32);
  require_text(file);
  return std::make_unique<TextTokens>(std::move(file));
}

}  // namespace

std::vector<std::unique_ptr<TokenSource>> open_token_parts(const std::vector<std::string>& files, RawKind raw,
                                                           const std::string& key) {
  std::vector<std::unique_ptr<TokenSource>> parts;
  std::set<std::string> stems;
  std::string faults;
  for (const std::string& path : files) {
    try {
      if (const std::optional<std::string> stem = megatron_stem(path)) {
        if (stems.insert(*stem).second) parts.push_back(open_megatron(*stem));
      } else {
        parts.push_back(open_one(path, raw));
      }
    } catch (const Error& error) {
      faults += (faults.empty() ? "" : "\n") + key + ": " + error.what();
    }
  }
  if (!faults.empty()) fail_all(ExitCode::input, faults);
  return parts;
}

std::shared_ptr<const TokenSource> open_token_files(const std::vector<std::string>& files, RawKind raw,
                                                    const std::string& key) {
  return std::make_shared<JoinedTokens>(open_token_parts(files, raw, key));
}

JoinedTokens::JoinedTokens(std::vector<std::unique_ptr<TokenSource>> parts) : parts_(std::move(parts)) {
  for (const std::unique_ptr<TokenSource>& part : parts_) first_.push_back(first_.back() + part->size());
}

std::int32_t JoinedTokens::largest_id() const {
  std::int32_t largest = 0;
  for (const std::unique_ptr<TokenSource>& part : parts_) largest = std::max(largest, part->largest_id());
  return largest;
}

std::string JoinedTokens::describe() const {
  std::string text;
  for (const std::unique_ptr<TokenSource>& part : parts_) text += part->describe();
  return text;
}

std::size_t JoinedTokens::part_of(std::int64_t position) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), position);
  return static_cast<std::size_t>(after - first_.begin()) - 1;
}

bool JoinedTokens::is_text() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_text(); });
}

// Bytes of some parts beside the losses of all would be a wrong number of bits per byte.
std::int64_t JoinedTokens::bytes(std::int64_t begin, std::int64_t end) const {
  std::int64_t sum = 0;
  if (!is_text()) return sum;
  for (std::size_t part = part_of(begin); begin < end; ++part) {
    const std::int64_t until = std::min(end, first_[part + 1]);
    sum += parts_[part]->bytes(begin - first_[part], until - first_[part]);
    begin = until;
  }
  return sum;
}

TokenPlace JoinedTokens::place(std::int64_t position) const {
  const std::size_t part = part_of(position);
  return parts_[part]->place(position - first_[part]);
}

void JoinedTokens::read(std::int64_t first, std::span<std::int32_t> ids) const {
  FOURFOLD_ASSERT(first >= 0 && first + static_cast<std::int64_t>(ids.size()) <= size(), "tokens lie in the stream");
  for (std::size_t part = part_of(first); !ids.empty(); ++part) {
    const std::size_t count = static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(ids.size()), first_[part + 1] - first));
    parts_[part]->read(first - first_[part], ids.first(count));
    ids = ids.subspan(count);
    first = first_[part + 1];
  }
}

}  // namespace fourfold
