// Small decks and what the reader says about them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "deck/reader.hpp"

namespace fourfold::test {

// A legal deck: a transformer on text. The tests change it by overrides.
inline const std::string kSmallDeck =
    "run: {name: small, steps: 10}\n"
    "model: {layers: 2, hidden: 32, heads: 4, vocab: 257, sequence: 16}\n"
    "data: {train: [corpus.txt]}\n";
inline const std::string kResidualDeck =
    "model: {kind: residual, layers: 3, hidden: 4}\ndata: {kind: synthetic, samples: 6}\n";
inline const std::string kMlpDeck = "model: {kind: mlp, widths: [4, 4, 2]}\ndata: {kind: synthetic, samples: 6}\n";
inline const std::string kEmbeddingDeck =
    "model: {kind: embedding, vocab: 257, hidden: 4}\ndata: {train: [corpus.txt]}\n";

// "path: message" of every error, without positions.
inline std::vector<std::string> faults(const ReadResult& result) {
  std::vector<std::string> list;
  for (const DeckError& error : result.errors) list.push_back(error.path + ": " + error.message);
  return list;
}

inline ReadResult read_small(const std::vector<std::string>& overrides, std::optional<std::int64_t> ranks = 1,
                             const std::string& deck = kSmallDeck) {
  return read_deck(deck, "small.yaml", overrides, ranks);
}

inline void expect_legal(const std::vector<std::string>& overrides, std::optional<std::int64_t> ranks = 1,
                         const std::string& deck = kSmallDeck) {
  const ReadResult result = read_small(overrides, ranks, deck);
  EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
}

// Exactly one error, of this key, whose message holds all the parts.
inline void expect_fault(const std::vector<std::string>& overrides, const std::string& path,
                         const std::vector<std::string>& parts, std::optional<std::int64_t> ranks = 1,
                         const std::string& deck = kSmallDeck) {
  const ReadResult result = read_small(overrides, ranks, deck);
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  EXPECT_EQ(result.errors[0].path, path) << numbered_list(result.errors);
  for (const std::string& part : parts) {
    EXPECT_NE(result.errors[0].message.find(part), std::string::npos)
        << "wanted \"" << part << "\" in: " << result.errors[0].message;
  }
}

inline std::string file_text(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  EXPECT_TRUE(stream.is_open()) << file;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

}  // namespace fourfold::test
