// inputs/all_keys.yaml, and the other decks of inputs/.
#include <filesystem>
#include <set>

#include "deck/keys.hpp"
#include "deck/writer.hpp"
#include "deck_support.hpp"

namespace fourfold::test {

const std::string kInputs = FOURFOLD_SOURCE_DIR "/inputs";

TEST(AllKeys, FileIsWhatTheProgramWrites) {
  EXPECT_EQ(file_text(kInputs + "/all_keys.yaml"), write_all_keys())
      << "after a change of the table: fourfold check --all-keys > inputs/all_keys.yaml";
}

TEST(AllKeys, IsALegalDeckWithTheDefaults) {
  const ReadResult result = read_deck(write_all_keys(), "all_keys.yaml", {}, 1);
  EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  const Deck defaults;
  std::size_t with_default = 0;
  for (const DeckKey& key : deck_keys()) {
    ASSERT_TRUE(key.get(result.deck).has_value() || key.example == "[]") << key.path;
    if (!key.fixed_default()) continue;
    ++with_default;
    EXPECT_EQ(key.get(result.deck), key.get(defaults)) << key.path;
  }
  EXPECT_GT(with_default, 30u);
}

TEST(AllKeys, HasOneCommentAKey) {
  std::istringstream lines(write_all_keys());
  std::string line;
  std::size_t keys = 0;
  while (std::getline(lines, line)) {
    if (line.empty() || line[0] == '#' || line.back() == ':') continue;
    ++keys;
    const std::size_t comment = line.find("  # ");
    ASSERT_NE(comment, std::string::npos) << line;
    EXPECT_GT(line.size(), comment + 8) << line;
  }
  EXPECT_EQ(keys, deck_keys().size());
}

TEST(AllKeys, TableIsInOrder) {
  std::set<std::string> paths;
  std::set<std::string> closed;
  std::string open;
  for (const DeckKey& key : deck_keys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path << " twice";
    EXPECT_TRUE(key.set && key.get) << key.path;
    EXPECT_FALSE(key.comment.empty()) << key.path;
    // A block must not be opened twice: the writer would write its name twice.
    const std::string block = key.path.substr(0, key.path.rfind('.'));
    if (block == open) continue;
    if (block.compare(0, open.size(), open) != 0) {
      EXPECT_TRUE(closed.insert(open).second) << key.path;
    }
    EXPECT_EQ(closed.count(block), 0u) << key.path;
    open = block;
  }
}

TEST(Inputs, EveryDeckIsLegal) {
  int decks = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kInputs)) {
    if (entry.path().extension() != ".yaml") continue;
    ++decks;
    for (const std::int64_t ranks : {1, 2, 4}) {
      if (entry.path().filename() == "all_keys.yaml" && ranks > 1) continue;
      const ReadResult result = read_deck(file_text(entry.path()), entry.path().filename(), {}, ranks);
      EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
    }
  }
  EXPECT_GE(decks, 4);
}

}  // namespace fourfold::test
