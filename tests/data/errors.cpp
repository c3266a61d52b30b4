// What a user sees when the data is wrong: the key, the file, the reason; exit code 2.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/error.hpp"
#include "d0.hpp"
#include "data/file_list.hpp"
#include "data/loader.hpp"
#include "files.hpp"

namespace fourfold {
namespace {

using test::ListTokens;
using test::token_deck;

// The message of the Error that `body` throws, checked to be an input error of `caller`.
template <class Body>
std::string message_of(Body body, Caller caller = Caller::all_ranks) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    EXPECT_EQ(error.caller(), caller);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::string open_text(std::vector<std::string> train, std::vector<std::string> valid = {}, std::int64_t vocab = 257) {
  Deck deck = token_deck(32, 4, 1);
  deck.model.vocab = vocab;
  deck.data.train = std::move(train);
  deck.data.valid = std::move(valid);
  return message_of([&] { Loader loader(deck); });
}

TEST(DataErrors, FilesThatCannotBeUsedComeInOneMessage) {
  const test::Folder folder("errors");
  const std::string good = folder.write("good.txt", std::string(100, 'x'));
  const std::string empty = folder.write("empty.txt", "");
  const std::string missing = folder.path("missing.txt"), pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(open_text({good, missing, empty, folder.path(""), pipe}),
            "data.train: " + missing + ": No such file or directory\n" + "data.train: " + empty + ": is empty\n" +
                "data.train: " + folder.path("") + ": is a folder; name its files, for example " + folder.path("") +
                "*.txt\n" + "data.train: " + pipe + ": is not a plain file");
}

TEST(DataErrors, Lists) {
  const test::Folder folder("lists");
  const std::string a = folder.write("a.txt", std::string(100, 'x')), b = folder.write("b.txt", std::string(100, 'y'));
  EXPECT_EQ(open_text({}), "data.train: names no file");
  EXPECT_EQ(open_text({a, folder.path("*.dat")}), "data.train[1]: " + folder.path("*.dat") + ": no file matches");
  EXPECT_EQ(open_text({a, folder.path("./*.txt")}),
            "data.train[1]: " + folder.path("./*.txt") + ": " + folder.path("./a.txt") + " is named twice");
  EXPECT_EQ(
      open_text({a, b}, {folder.path("../" + std::filesystem::path(folder.path("")).parent_path().filename().string() +
                                     "/b.txt")})
          .find("data.valid: "),
      0u);
  for (const std::string& spelling : {a, folder.path("./a.txt")}) {
    EXPECT_NE(open_text({spelling}, {a}).find("held-out text must not be trained on"), std::string::npos);
  }
}

TEST(DataErrors, TooShort) {
  const test::Folder folder("short");
  const std::string a = folder.write("a.txt", std::string(20, 'x')), b = folder.write("b.txt", std::string(10, 'y'));
  const std::string enough = folder.write("enough.txt", std::string(32, 'z'));  // 33 tokens with the end of document
  EXPECT_EQ(open_text({a}), "data.train: " + a + " holds 21 tokens, but 1 sequence of 32 take 33");
  EXPECT_EQ(open_text({a, b}), "data.train: " + a + " to " + b + " hold 32 tokens, but 1 sequence of 32 take 33");
  EXPECT_EQ(open_text({enough}, {a}), "data.valid: " + a + " holds 21 tokens, but 1 sequence of 32 take 33");
  Deck deck = token_deck(32, 4, 1);
  deck.data.train = {enough};
  EXPECT_EQ(Loader(deck).samples(), 1);
  deck.data.valid_fraction = 0.1;
  EXPECT_EQ(message_of([&] { Loader loader(deck); }),
            "data.train (with data.valid_fraction): " + enough + " holds 33 tokens, but 2 sequences of 32 take 65");
}

TEST(DataErrors, P58IdsBeyondTheVocabulary) {
  const test::Folder folder("vocab");
  const std::string text = folder.write("a.txt", std::string(5000, 'x') + "\xe4" + std::string(100, 'x'));
  EXPECT_EQ(open_text({text}, {}, 256),
            text +
                ": document 0, position 5101, byte 5101: id 256 is not below model.vocab 256; text as "
                "bytes needs model.vocab 257 (256 ends a document)");
  EXPECT_EQ(open_text({text}, {}, 128)
                .find(text + ": document 0, position 5000, byte 5000: id 228 is not below model.vocab 128"),
            0u);

  std::vector<std::int32_t> tokens = test::d0_tokens();
  tokens[7000] = 300;
  const TokenPlace place = ListTokens(tokens).place(7000);
  const std::string expected = "list: document " + std::to_string(place.document) + ", position " +
                               std::to_string(place.position) + ", byte 28000: id 300 is not below model.vocab 257";
  // Found at the start where the source does not rule it out, and in the batch where it claims too much.
  EXPECT_EQ(message_of([&] { Loader(token_deck(32, 4, 1), std::make_shared<ListTokens>(tokens)); }), expected);
  const Loader loader(token_deck(32, 407, 1), std::make_shared<ListTokens>(tokens, 255));
  EXPECT_EQ(message_of([&] { loader.micro_batch(0, 0, 1, 0); }, Caller::one_rank), expected);
  tokens[7000] = 1;
  tokens[0] = 300;  // the only token that is nobody's target
  const Loader first(token_deck(32, 407, 1), std::make_shared<ListTokens>(tokens, 255));
  EXPECT_EQ(message_of([&] { first.micro_batch(0, 0, 1, 0); }, Caller::one_rank)
                .find("list: document 0, position 0, byte 0: id 300"),
            0u);
  tokens[0] = 256;
  tokens[7000] = -1;
  const Loader negative(token_deck(32, 407, 1), std::make_shared<ListTokens>(tokens));
  EXPECT_NE(message_of([&] { negative.micro_batch(0, 0, 1, 0); }, Caller::one_rank).find("id -1"), std::string::npos);
}

TEST(DataErrors, DataAndModelThatDoNotFit) {
  Deck deck = token_deck(32, 4, 1);
  deck.model.kind = ModelKind::mlp;
  deck.model.widths = {4, 4};
  EXPECT_EQ(message_of([&] { Loader(deck, std::make_shared<ListTokens>(test::d0_tokens())); }).find("data.kind: files"),
            0u);
  deck = token_deck(32, 4, 1);
  deck.data.kind = DataKind::synthetic;
  EXPECT_EQ(message_of([&] { Loader loader(deck); }).find("data.samples: "), 0u);
  deck.data.samples = 10;
  deck.data.synthetic = SyntheticKind::teacher;
  EXPECT_EQ(message_of([&] { Loader loader(deck); }).find("data.synthetic: teacher"), 0u);
}

}  // namespace
}  // namespace fourfold
