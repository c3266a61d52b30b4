#include "data/token_files.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "d0.hpp"
#include "data/bytes.hpp"
#include "data/file_list.hpp"
#include "data/loader.hpp"
#include "files.hpp"
#include "test_support.hpp"

namespace fourfold {
namespace {

std::vector<std::int32_t> all_tokens(const TokenSource& source) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(source.size()));
  source.read(0, ids);
  return ids;
}

TEST(Text, FilesAreDocuments) {
  const test::Folder folder("text");
  const auto joined = open_token_files({folder.write("a", "ab"), folder.write("b", "\xff"), folder.write("c", "xyz\n")},
                                       RawKind::text, "data.train");
  const TokenSource& source = *joined;
  const std::vector<std::int32_t> expected{'a', 'b', 256, 255, 256, 'x', 'y', 'z', '\n', 256};
  EXPECT_EQ(all_tokens(source), expected);
  EXPECT_EQ(source.describe(), "text a bytes 2\ntext b bytes 1\ntext c bytes 4\n");
  EXPECT_EQ(source.place(6).file, folder.path("c"));
  EXPECT_EQ(source.place(6).position, 1);
  EXPECT_EQ(source.place(4).file, folder.path("b"));
  for (std::size_t first = 0; first <= expected.size(); ++first) {
    for (std::size_t last = first; last <= expected.size(); ++last) {
      std::vector<std::int32_t> ids(last - first, -7);
      const std::int64_t begin = static_cast<std::int64_t>(first), end = static_cast<std::int64_t>(last);
      if (first < expected.size()) source.read(begin, ids);
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin() + begin));
      EXPECT_EQ(source.bytes(begin, end), std::count_if(ids.begin(), ids.end(), [](int id) { return id < 256; }));
    }
  }
}

TEST(Text, D0AsFiles) {
  // D0's documents of length 1 are empty files, which are refused: they are left out on both sides.
  const test::Folder folder("d0");
  std::vector<std::int32_t> expected;
  std::string text;
  int documents = 0;
  for (const std::int32_t id : test::d0_tokens()) {
    if (id != 256) {
      text.push_back(static_cast<char>(id));
      expected.push_back(id);
    } else if (!text.empty()) {
      expected.push_back(256);
      folder.write("doc" + std::to_string(10000 + documents++) + ".txt", text);
      text.clear();
    }
  }
  const auto source =
      open_token_files(expand_files({folder.path("doc*.txt")}, "data.train"), RawKind::text, "data.train");
  EXPECT_EQ(all_tokens(*source), expected);
}

TEST(Text, GlobsExpandInByteOrder) {
  const test::Folder folder("glob");
  for (const char* name : {"b.txt", "a.txt", "B.txt", "a10.txt", "a2.txt", "c.md"}) folder.write(name, "x");
  const std::vector<std::string> files = expand_files({folder.path("c.md"), folder.path("*.txt")}, "data.train");
  std::vector<std::string> expected;
  for (const char* name : {"c.md", "B.txt", "a.txt", "a10.txt", "a2.txt", "b.txt"})
    expected.push_back(folder.path(name));
  EXPECT_EQ(files, expected);
  // A name that is also a pattern is the file itself.
  EXPECT_EQ(expand_files({folder.write("d[1].txt", "x")}, "data.train").size(), 1u);
}

TEST(Text, SplitOfOneFile) {
  const test::Folder folder("split");
  std::string text;
  for (int i = 0; i < 1000; ++i) text.push_back(static_cast<char>('a' + i * 7 % 26));
  Deck deck = test::token_deck(10, 4, 1);
  deck.data.train = {folder.write("corpus.txt", text)};
  deck.data.valid_fraction = 0.25;
  const Loader loader(deck);
  // 1001 tokens: 100 sequences of 10, 25 held out, whose last target is the end-of-document.
  EXPECT_EQ(loader.samples(), 75);
  EXPECT_EQ(loader.eval_samples(), 25);
  EXPECT_EQ(loader.eval_targets(), 250);
  EXPECT_EQ(loader.eval_bytes(), 249);
  EXPECT_EQ(loader.eval_text(), text.substr(751));
  Batch batch = loader.eval_batch(loader.eval_batches() - 1, 1, 0);
  EXPECT_EQ(batch.targets.back(), kEndOfDocument);
  deck.eval.samples = 3;
  EXPECT_EQ(Loader(deck).eval_text(), text.substr(751, 30));
}

TEST(Text, SeparateValidationFiles) {
  const test::Folder folder("valid");
  Deck deck = test::token_deck(4, 4, 1);
  deck.data.train = {folder.write("t1.txt", "0123456789"), folder.write("t2.txt", "abcdefgh")};
  deck.data.valid = {folder.write("v.txt", "ABCDEFGHI")};
  const Loader loader(deck);
  EXPECT_EQ(loader.samples(), 4);  // 20 tokens
  EXPECT_EQ(loader.eval_samples(), 2);
  EXPECT_EQ(loader.eval_text(), "BCDEFGHI");
}

}  // namespace
}  // namespace fourfold
