// The fixture D0: 512 documents; document i has length 1 + (37 i mod 50), its tokens but the last are (31 i + 7 j) mod
// 256, the last is 256. 13,054 tokens, 407 sequences of 32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "data/token_source.hpp"
#include "deck/deck.hpp"

namespace fourfold::test {

inline std::vector<std::int32_t> d0_tokens() {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 512; ++i) {
    const std::int32_t length = 1 + 37 * i % 50;
    for (std::int32_t j = 0; j + 1 < length; ++j) tokens.push_back((31 * i + 7 * j) % 256);
    tokens.push_back(256);
  }
  return tokens;
}

// Any list of tokens as a source. `claimed` is what largest_id() answers (the truth when left out).
class ListTokens : public TokenSource {
 public:
  explicit ListTokens(std::vector<std::int32_t> tokens, std::int32_t claimed = -1)
      : tokens_(std::move(tokens)),
        largest_(claimed >= 0 ? claimed : *std::max_element(tokens_.begin(), tokens_.end())) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int32_t largest_id() const override { return largest_; }
  std::string describe() const override { return "list " + std::to_string(tokens_.size()) + "\n"; }
  bool is_text() const override { return true; }
  std::int64_t bytes(std::int64_t begin, std::int64_t end) const override {
    return std::count_if(tokens_.begin() + begin, tokens_.begin() + end, [](std::int32_t id) { return id < 256; });
  }
  TokenPlace place(std::int64_t position) const override {
    const auto here = tokens_.begin() + position;
    TokenPlace place{"list", std::count(tokens_.begin(), here, 256), 0};
    place.offset = 4 * position;
    place.id = *here;
    for (auto at = here; at != tokens_.begin() && *(at - 1) != 256; --at) ++place.position;
    return place;
  }
  void read(std::int64_t first, std::span<std::int32_t> ids) const override {
    std::copy_n(tokens_.begin() + first, ids.size(), ids.begin());
  }

 private:
  std::vector<std::int32_t> tokens_;
  std::int32_t largest_;
};

inline Deck token_deck(std::int64_t sequence, std::int64_t global, std::int64_t micro_batches) {
  Deck deck;
  deck.run.steps = 60;
  deck.model.kind = ModelKind::transformer;
  deck.model.vocab = 257;
  deck.model.sequence = sequence;
  deck.batch.global = global;
  deck.batch.micro_batches = micro_batches;
  return deck;
}

}  // namespace fourfold::test
