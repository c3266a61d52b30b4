// Byte-level BPE, as GPT-2 began it: text is cut into words by a pattern, the bytes of a word are merged pair by pair,
// the pair of the lowest rank first. Any bytes can be encoded, and come back as they were.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/tokenizer.hpp"

namespace fourfold {

// What defines one. Tokens are spelt as in the files: each byte is a character of its own ("Ġ" for a space).
struct BpeTables {
  std::map<std::string, std::int32_t> vocab;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::map<std::string, std::int32_t> special;              // text that is one token wherever it stands
  std::string pattern;                                      // of words, a PCRE2 expression
  bool prefix_space = false;                                // what stands between special tokens begins with a space
  bool whole_words = false;                                 // a word of the vocabulary is not built from merges
};

extern const char* const kGpt2Pattern;

class ByteBpe : public Tokenizer {
 public:
  // `path` names the tables in messages. Errors (Error, input): ids given twice, spellings that no bytes have, merges
  // of or into tokens that the vocabulary does not have, a pattern that PCRE2 refuses.
  ByteBpe(const BpeTables& tables, const std::string& path);
  ~ByteBpe() override;

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab() const override { return static_cast<std::int64_t>(spelt_.size()); }
  bool knows(std::int32_t id) const override { return id >= 0 && id < vocab() && known_[static_cast<std::size_t>(id)]; }
  std::optional<std::int32_t> end_of_document() const override;

 private:
  struct Pattern;  // PCRE2's objects
  struct Merge {
    std::int32_t rank;
    std::int32_t into;
  };

  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& ids) const;

  std::string path_;
  std::vector<std::string> spelt_;  // the bytes of each id; of ids that nothing has: empty
  std::vector<bool> known_;
  std::unordered_map<std::string, std::int32_t> words_;        // bytes -> id
  std::int32_t of_byte_[256];                                  // -1: the vocabulary lacks it
  std::unordered_map<std::uint64_t, Merge> merges_;            // by left << 32 | right
  std::vector<std::pair<std::string, std::int32_t>> special_;  // longest first
  bool prefix_space_;
  bool whole_words_;
  std::unique_ptr<Pattern> pattern_;
  mutable std::unordered_map<std::string, std::vector<std::int32_t>> cache_;
};

// Errors (Error, input): what is no such table, or asks for what is not built, by name. Warns of NFC, which is left
// out.
BpeTables read_tokenizer_json(const std::string& path);
BpeTables parse_tokenizer_json(const std::string& text, const std::string& path);  // `path` is for messages
BpeTables read_vocab_and_merges(const std::string& vocab, const std::string& merges);

}  // namespace fourfold
