#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/byte_bpe.hpp"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <queue>

#include "base/error.hpp"

namespace fourfold {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  fail_all(ExitCode::input, path + ": " + what);
}

// The character that stands for each byte: printable ones of Latin-1 for themselves, the others from U+0100 on.
std::array<char32_t, 256> byte_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = itself ? byte : next++;
  }
  return characters;
}

// Length of the UTF-8 character at the front of `text`; 0: there is none (Unicode 15, table 3-7).
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned first = byte(0), second = byte(1);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool legal = follows(1) && !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second > 0x9f);
    return legal && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool legal = follows(1) && !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second > 0x8f);
    return legal && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// The bytes that a token's spelling stands for; no value where a character stands for none.
std::optional<std::string> spelt_bytes(std::string_view spelling) {
  static const std::map<std::string, char> bytes = [] {
    std::map<std::string, char> of;
    const std::array<char32_t, 256> characters = byte_characters();
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const char32_t c = characters[byte];
      const std::string text =
          c < 0x80 ? std::string(1, static_cast<char>(c))
                   : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
      of.emplace(text, static_cast<char>(byte));
    }
    return of;
  }();
  std::string result;
  while (!spelling.empty()) {
    const std::size_t length = character_length(spelling);
    const auto found = length == 0 ? bytes.end() : bytes.find(std::string(spelling.substr(0, length)));
    if (found == bytes.end()) return std::nullopt;
    result.push_back(found->second);
    spelling.remove_prefix(length);
  }
  return result;
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

constexpr std::size_t kLongestCached = 64;                 // bytes of a word
constexpr std::size_t kMostCached = std::size_t{1} << 17;  // words
constexpr std::int64_t kMostIds = std::int64_t{1} << 24;

}  // namespace

struct ByteBpe::Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;

  Pattern(const std::string& expression, const std::string& path) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF | PCRE2_UCP,
                         &error, &at, nullptr);
    if (code == nullptr) {
      PCRE2_UCHAR text[256];
      pcre2_get_error_message(error, text, sizeof text);
      refuse(path, "the pattern of words is refused at character " + std::to_string(at) + ": " +
                       reinterpret_cast<const char*>(text));
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT the interpreter does
    match = pcre2_match_data_create_from_pattern(code, nullptr);
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

ByteBpe::ByteBpe(const BpeTables& tables, const std::string& path)
    : path_(path),
      prefix_space_(tables.prefix_space),
      whole_words_(tables.whole_words),
      pattern_(std::make_unique<Pattern>(tables.pattern, path)) {
  const auto add = [&](const std::string& spelling, std::int32_t id, const std::string& bytes) {
    if (id < 0 || id >= kMostIds) refuse(path, "token " + spelling + " has the id " + std::to_string(id));
    const std::size_t at = static_cast<std::size_t>(id);
    if (at >= spelt_.size()) {
      spelt_.resize(at + 1);
      known_.resize(at + 1);
    }
    if (known_[at] && spelt_[at] != bytes) refuse(path, "two tokens have the id " + std::to_string(id));
    known_[at] = true;
    spelt_[at] = bytes;
  };
  std::fill(std::begin(of_byte_), std::end(of_byte_), -1);
  for (const auto& [text, id] : tables.special) {
    if (text.empty()) refuse(path, "a special token is empty");
    add(text, id, text);
    special_.emplace_back(text, id);
  }
  std::stable_sort(special_.begin(), special_.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  for (const auto& [spelling, id] : tables.vocab) {
    if (tables.special.count(spelling) != 0) continue;
    const std::optional<std::string> bytes = spelt_bytes(spelling);
    if (!bytes || bytes->empty())
      refuse(path, "token " + spelling + " is not the spelling of bytes: no byte-level BPE");
    add(spelling, id, *bytes);
    words_.emplace(*bytes, id);
    if (bytes->size() == 1) of_byte_[static_cast<unsigned char>((*bytes)[0])] = id;
  }
  for (std::size_t rank = 0; rank < tables.merges.size(); ++rank) {
    const std::string& left = tables.merges[rank].first;
    const std::string& right = tables.merges[rank].second;
    const auto id_of = [&](const std::string& spelling) {
      const auto found = tables.vocab.find(spelling);
      if (found == tables.vocab.end()) {
        refuse(path, "merge " + std::to_string(rank) + " (" + left + " " + right + "): " + spelling +
                         " is not in the vocabulary");
      }
      return found->second;
    };
    // A pair that comes twice keeps its first rank.
    merges_.emplace(pair_key(id_of(left), id_of(right)), Merge{static_cast<std::int32_t>(rank), id_of(left + right)});
  }
}

ByteBpe::~ByteBpe() = default;

std::optional<std::int32_t> ByteBpe::end_of_document() const {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>"}) {
    for (const auto& [text, id] : special_) {
      if (text == name) return id;
    }
  }
  return std::nullopt;
}

std::vector<std::int32_t> ByteBpe::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  std::size_t done = 0;
  // The next place of each special token, looked up again only when it was passed.
  std::vector<std::size_t> next(special_.size(), 0);
  for (bool first = true; done < text.size(); first = false) {
    std::size_t best = std::string_view::npos;
    const std::pair<std::string, std::int32_t>* chosen = nullptr;
    for (std::size_t i = 0; i < special_.size(); ++i) {
      if (first || (next[i] < done && next[i] != std::string_view::npos)) next[i] = text.find(special_[i].first, done);
      if (next[i] < best) {
        best = next[i];
        chosen = &special_[i];
      }
    }
    const std::string_view plain = text.substr(done, best == std::string_view::npos ? best : best - done);
    if (prefix_space_ && !plain.empty() && plain[0] != ' ') {
      encode_plain(" " + std::string(plain), ids);
    } else {
      encode_plain(plain, ids);
    }
    if (chosen == nullptr) break;
    ids.push_back(chosen->second);
    done = best + chosen->first.size();
  }
  return ids;
}

// Runs of valid UTF-8 are cut by the pattern; what is between them is words of its own.
void ByteBpe::encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const {
  while (!text.empty()) {
    std::size_t bad = 0;
    while (bad < text.size() && character_length(text.substr(bad, 4)) == 0) ++bad;
    if (bad > 0) encode_word(text.substr(0, bad), ids);
    text.remove_prefix(bad);
    std::size_t good = 0;
    while (good < text.size()) {
      const std::size_t length = character_length(text.substr(good, 4));
      if (length == 0) break;
      good += length;
    }
    const std::string_view run = text.substr(0, good);
    std::size_t at = 0;
    while (at < run.size()) {
      const int found = pcre2_match(pattern_->code, reinterpret_cast<PCRE2_SPTR>(run.data()), run.size(), at,
                                    PCRE2_NO_UTF_CHECK, pattern_->match, nullptr);
      if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
        refuse(path_, "the pattern of words failed on a text (PCRE2 error " + std::to_string(found) + ")");
      }
      std::size_t begin = run.size(), end = run.size();
      if (found >= 0) {
        const PCRE2_SIZE* places = pcre2_get_ovector_pointer(pattern_->match);
        begin = places[0];
        end = places[1];
      }
      if (begin > at) encode_word(run.substr(at, begin - at), ids);  // what the pattern leaves out
      if (found >= 0 && end == begin) {                              // an empty match: one character goes by itself
        end = begin + character_length(run.substr(begin, 4));
      }
      if (end > begin) encode_word(run.substr(begin, end - begin), ids);
      at = std::max(end, at + 1);
    }
    text.remove_prefix(good);
  }
}

void ByteBpe::encode_word(std::string_view word, std::vector<std::int32_t>& ids) const {
  const std::string key(word);
  if (whole_words_) {
    if (const auto found = words_.find(key); found != words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  if (const auto found = cache_.find(key); found != cache_.end()) {
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return;
  }
  // A list of symbols with links, and the pairs that can be merged, the lowest rank and then the leftmost first.
  struct Symbol {
    std::int32_t id;
    std::ptrdiff_t before, after;
  };
  struct Pair {
    std::int32_t rank;
    std::ptrdiff_t left;
    std::int32_t left_id, right_id;
    bool operator<(const Pair& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
  };
  std::vector<Symbol> symbols;
  const std::ptrdiff_t count = static_cast<std::ptrdiff_t>(word.size());
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const unsigned char byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    if (of_byte_[byte] < 0) refuse(path_, "the vocabulary has no token of the byte " + std::to_string(byte));
    symbols.push_back({of_byte_[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto at = [&](std::ptrdiff_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };
  std::priority_queue<Pair> pairs;
  const auto offer = [&](std::ptrdiff_t left) {
    if (left < 0 || at(left).after < 0) return;
    const std::int32_t a = at(left).id, b = at(at(left).after).id;
    if (const auto found = merges_.find(pair_key(a, b)); found != merges_.end()) {
      pairs.push({found->second.rank, left, a, b});
    }
  };
  for (std::ptrdiff_t i = 0; i < count; ++i) offer(i);
  while (!pairs.empty()) {
    const Pair pair = pairs.top();
    pairs.pop();
    Symbol& left = at(pair.left);
    if (left.id != pair.left_id || left.after < 0 || at(left.after).id != pair.right_id) continue;  // gone by now
    Symbol& right = at(left.after);
    left.id = merges_.at(pair_key(pair.left_id, pair.right_id)).into;
    right.id = -1;
    left.after = right.after;
    if (left.after >= 0) at(left.after).before = pair.left;
    offer(left.before);
    offer(pair.left);
  }
  std::vector<std::int32_t> merged;
  for (std::ptrdiff_t i = 0; i >= 0 && count > 0; i = at(i).after) merged.push_back(at(i).id);
  ids.insert(ids.end(), merged.begin(), merged.end());
  if (word.size() <= kLongestCached && cache_.size() < kMostCached) cache_.emplace(key, std::move(merged));
}

std::string ByteBpe::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (!knows(id)) refuse(path_, "has no token " + std::to_string(id));
    text += spelt_[static_cast<std::size_t>(id)];
  }
  return text;
}

}  // namespace fourfold
