#include "data/megatron.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.hpp"

namespace fourfold {

namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::string_view kOldMagic("TNTIDX\0\0", 8);
constexpr std::array kCodes{TokenType::u8,  TokenType::i8,  TokenType::i16,
                            TokenType::i32, TokenType::i64, TokenType::u16};

bool begins(std::span<const unsigned char> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin(),
                                                    [](char a, auto b) { return static_cast<unsigned char>(a) == b; });
}

}  // namespace

bool is_megatron_index(std::span<const unsigned char> bytes) {
  return begins(bytes, kMagic);
}

bool is_old_megatron_index(std::span<const unsigned char> bytes) {
  return begins(bytes, kOldMagic);
}

MegatronIndex::MegatronIndex(std::span<const unsigned char> bytes, const std::string& path, std::int64_t bin_bytes)
    : bytes_(bytes.data()) {
  const auto refuse = [&](std::int64_t at, const std::string& what) {
    fail_all(ExitCode::input, path + ": Megatron index, byte " + std::to_string(at) + ": " + what);
  };
  const std::int64_t size = static_cast<std::int64_t>(bytes.size());
  if (is_old_megatron_index(bytes)) {
    refuse(0,
           "the old kind (TNTIDX), which is not memory-mapped; write the data again with --dataset-impl mmap, or from "
           "the text with fourfold convert data");
  }
  if (!is_megatron_index(bytes)) refuse(0, "does not begin with MMIDIDX");
  if (size < kMegatronHead) refuse(size, "ends inside its head of " + std::to_string(kMegatronHead) + " bytes");
  const std::uint64_t version = load_number<std::uint64_t>(bytes_ + 9);
  if (version != 1) refuse(9, "version " + std::to_string(version) + "; known: 1");
  const int code = bytes_[17];
  const auto known = std::find(kCodes.begin(), kCodes.end(), static_cast<TokenType>(code));
  if (known == kCodes.end()) {
    refuse(17, "type code " + std::to_string(code) +
                   (code == 6 || code == 7 ? " holds floats, not token ids" : " is unknown") +
                   "; legal: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16");
  }
  type_ = *known;

  // Counts that the file cannot hold are refused before anything is multiplied with them.
  const std::uint64_t sequences = load_number<std::uint64_t>(bytes_ + 18);
  const std::uint64_t document_entries = load_number<std::uint64_t>(bytes_ + 26);
  const std::uint64_t most = static_cast<std::uint64_t>(size) / 8;
  if (sequences > most)
    refuse(18, std::to_string(sequences) + " sequences in a file of " + std::to_string(size) + " bytes");
  if (document_entries < 1 || document_entries > most) {
    refuse(26, std::to_string(document_entries) + " entries of the document index in a file of " +
                   std::to_string(size) + " bytes");
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(document_entries) - 1;
  const std::int64_t expected = kMegatronHead + 12 * sequences_ + 8 * (documents_ + 1);
  if (size != expected && size != expected + sequences_) {
    refuse(size, "the size must be " + std::to_string(expected) + " (or " + std::to_string(expected + sequences_) +
                     " with modes) for " + std::to_string(sequences_) + " sequences and " + std::to_string(documents_) +
                     " documents, not " + std::to_string(size));
  }

  const std::int64_t width = token_bytes(type_);
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    if (length(i) < 0) {
      refuse(kMegatronHead + 4 * i, "sequence " + std::to_string(i) + " has " + std::to_string(length(i)) + " tokens");
    }
    if (pointer(i) != at) {
      refuse(kMegatronHead + 4 * sequences_ + 8 * i, "sequence " + std::to_string(i) + " begins at byte " +
                                                         std::to_string(pointer(i)) +
                                                         " of the .bin; those before end at " + std::to_string(at));
    }
    at += length(i) * width;  // at most 2^31 x 8 for each of the sequences, which are fewer than the file has bytes
  }
  if (at != bin_bytes) {
    refuse(kMegatronHead, "the sequences take " + std::to_string(at) + " bytes, the .bin has " +
                              std::to_string(bin_bytes) + "; one of the two files is of another set or was cut off");
  }
  tokens_ = at / width;
  const std::int64_t index = kMegatronHead + 12 * sequences_;
  for (std::int64_t d = 0; d <= documents_; ++d) {
    const std::int64_t least = d == 0 ? 0 : document(d - 1);
    const std::int64_t largest = d == 0 ? 0 : sequences_;
    if (document(d) < least || document(d) > largest || (d == documents_ && document(d) != sequences_)) {
      refuse(index + 8 * d, "entry " + std::to_string(d) + " of the document index is " + std::to_string(document(d)) +
                                "; it must rise from 0 to the number of sequences, " + std::to_string(sequences_));
    }
  }
  for (std::int64_t i = 0; i < size - expected; ++i) {
    if (bytes_[expected + i] != 0) {
      refuse(expected + i, "sequence " + std::to_string(i) + " has mode " + std::to_string(bytes_[expected + i]) +
                               " (images); only text is read");
    }
  }
}

std::int64_t MegatronIndex::length(std::int64_t sequence) const {
  return load_number<std::int32_t>(bytes_ + kMegatronHead + 4 * sequence);
}

std::int64_t MegatronIndex::pointer(std::int64_t sequence) const {
  return load_number<std::int64_t>(bytes_ + kMegatronHead + 4 * sequences_ + 8 * sequence);
}

std::int64_t MegatronIndex::document(std::int64_t document) const {
  return load_number<std::int64_t>(bytes_ + kMegatronHead + 12 * sequences_ + 8 * document);
}

std::int64_t MegatronIndex::document_begin(std::int64_t at) const {
  const std::int64_t sequence = document(at);
  return sequence == sequences_ ? tokens_ : pointer(sequence) / token_bytes(type_);
}

std::int64_t MegatronIndex::document_of(std::int64_t position) const {
  std::int64_t low = 0, high = documents_;  // begins at or before `position`; begins after it, or is the end
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= position ? low : high) = middle;
  }
  return low;
}

}  // namespace fourfold
