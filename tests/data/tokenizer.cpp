// Byte-level BPE by hand-made tables, and a hand-made SentencePiece model.
#include "data/tokenizer.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "data/byte_bpe.hpp"
#include "files.hpp"

namespace fourfold {
namespace {

using Ids = std::vector<std::int32_t>;
using test::message_of;

// GPT-2's spelling of a byte: printable bytes as themselves, the others as the characters from U+0100 on, in order.
std::string spelt(int byte) {
  int next = 0x100, c = byte;
  for (int b = 0; b <= byte; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    c = printable ? b : next++;
  }
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
}

// Bytes are their own ids, merges follow from 256 on.
BpeTables tables(const std::vector<std::pair<std::string, std::string>>& merges) {
  BpeTables of;
  of.pattern = kGpt2Pattern;
  for (int byte = 0; byte < 256; ++byte) of.vocab.emplace(spelt(byte), byte);
  for (const auto& [left, right] : merges) {
    of.vocab.emplace(left + right, static_cast<int>(of.vocab.size()));
    of.merges.emplace_back(left, right);
  }
  return of;
}

TEST(Bpe, AHandMadeTableGivesTheExpectedIds) {
  // 256 he, 257 ll, 258 hell, 259 hello, 260 Gw ("G": a space)
  const ByteBpe bpe(tables({{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {spelt(' '), "w"}}), "t");
  EXPECT_EQ(bpe.vocab(), 261);
  EXPECT_EQ(bpe.encode("hello hello world"), (Ids{259, 32, 259, 260, 'o', 'r', 'l', 'd'}));
  EXPECT_EQ(bpe.encode("hel"), (Ids{256, 'l'}));
  EXPECT_EQ(bpe.encode("helll"), (Ids{258, 'l'}));
  EXPECT_EQ(bpe.encode("h ello"), (Ids{'h', 32, 'e', 257, 'o'}));  // merges do not cross words
  EXPECT_EQ(bpe.encode(""), Ids{});
  EXPECT_EQ(bpe.decode(Ids{259, 260}), "hello w");
}

TEST(Bpe, TheLowestRankGoesFirstAndThenTheLeftmost) {
  EXPECT_EQ(ByteBpe(tables({{"a", "b"}, {"b", "c"}}), "t").encode("abc"), (Ids{256, 'c'}));
  EXPECT_EQ(ByteBpe(tables({{"b", "c"}, {"a", "b"}}), "t").encode("abc"), (Ids{'a', 256}));
  EXPECT_EQ(ByteBpe(tables({{"a", "a"}}), "t").encode("aaaaa"), (Ids{256, 256, 'a'}));
  // A pair that was offered before its left half grew is gone.
  EXPECT_EQ(ByteBpe(tables({{"a", "b"}, {"b", "b"}, {"ab", "b"}}), "t").encode("abbb"), (Ids{256, 257}));
}

TEST(Bpe, WordsAreThoseOfGpt2) {
  // Words are seen by merging everything that can be: one id a word where each pair of its letters has a merge.
  BpeTables of = tables({});
  of.whole_words = true;
  for (const char* word : {"I", "'m", "Ġtwelve", "Ġ", "Ġ12", "Ġ!?", "ĠÃ©tÃ©", "ĊĊ"}) {
    of.vocab.emplace(word, static_cast<int>(of.vocab.size()));
  }
  const ByteBpe bpe(of, "t");
  const auto id = [&](const char* word) { return of.vocab.at(word); };
  EXPECT_EQ(bpe.encode("I'm twelve  12 !? \xc3\xa9t\xc3\xa9\n\n"),
            (Ids{'I', id("'m"), id("Ġtwelve"), 32, id("Ġ12"), id("Ġ!?"), id("ĠÃ©tÃ©"), id("ĊĊ")}));
}

TEST(Bpe, AnyBytesRoundTrip) {
  const ByteBpe bpe(tables({{"t", "h"}, {"th", "e"}, {spelt(' '), "the"}, {spelt(0xf0), spelt(0x9f)}, {"1", "2"}}),
                    "t");
  std::string every;
  for (int i = 0; i < 512; ++i) every.push_back(static_cast<char>(i * 7));
  std::vector<std::string> texts{"the the\tthe\n\n  the   ",
                                 "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xd0\xbc\xd0\xb8\xd1\x80 \xd9\x85\xd8\xb1",
                                 "12 345 \xf0\x9f\x98\x80\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80 6",
                                 "\xff\xfe the \xc3",
                                 "\xed\xa0\x80 \xf0\x9f",
                                 every,
                                 std::string(3, '\0'),
                                 "don't I'll \xe2\x80\x99s",
                                 std::string(100000, 'x')};
  for (const std::string& text : texts) EXPECT_EQ(bpe.decode(bpe.encode(text)), text) << text.substr(0, 40);
}

TEST(Bpe, SpecialTokensAndPrefixSpace) {
  BpeTables of = tables({});
  of.special = {{"<|endoftext|>", 256}, {"<|end", 257}};
  of.vocab.emplace("<|endoftext|>", 256);
  const ByteBpe bpe(of, "t");
  EXPECT_EQ(bpe.encode("a<|endoftext|><|end>"), (Ids{'a', 256, 257, '>'}));  // the longer one at the same place
  EXPECT_EQ(bpe.end_of_document(), 256);
  EXPECT_EQ(bpe.decode(Ids{256, 'b'}), "<|endoftext|>b");
  of.prefix_space = true;
  EXPECT_EQ(ByteBpe(of, "t").encode("a"), (Ids{32, 'a'}));
  // Each piece between special tokens, not the text.
  EXPECT_EQ(ByteBpe(of, "t").encode("<|endoftext|>a<|endoftext|> b"), (Ids{256, 32, 'a', 256, 32, 'b'}));
}

TEST(Bpe, TablesThatAreWrong) {
  BpeTables of = tables({});
  of.merges.emplace_back("q", "\xc4\x80");
  EXPECT_NE(message_of([&] { ByteBpe(of, "t"); }).find("t: merge 0 (q \xc4\x80): q\xc4\x80 is not in the vocabulary"),
            std::string::npos);
  of = tables({});
  of.vocab.emplace("ab", 7);
  EXPECT_NE(message_of([&] { ByteBpe(of, "t"); }).find("two tokens have the id 7"), std::string::npos);
  of = tables({});
  of.vocab.emplace("\xe2\x96\x81the", 256);
  EXPECT_NE(message_of([&] { ByteBpe(of, "t"); }).find("is not the spelling of bytes"), std::string::npos);
  of = tables({});
  of.pattern = "(";
  EXPECT_NE(message_of([&] { ByteBpe(of, "t"); }).find("the pattern of words is refused"), std::string::npos);
  of = tables({});
  of.vocab.erase("a");
  const ByteBpe bpe(of, "t");
  EXPECT_NE(message_of([&] { bpe.encode("ba"); }).find("no token of the byte 97"), std::string::npos);
  EXPECT_NE(message_of([&] { bpe.decode(Ids{97}); }).find("has no token 97"), std::string::npos);
  EXPECT_NE(message_of([&] { bpe.decode(Ids{256}); }).find("has no token 256"), std::string::npos);
}

// The tables as files.
class BpeFiles : public testing::Test {
 protected:
  BpeFiles() {
    for (int byte = 0; byte < 256; ++byte) {
      const std::string text = spelt(byte) == "\"" || spelt(byte) == "\\" ? "\\" + spelt(byte) : spelt(byte);
      vocab_ += (byte == 0 ? "\"" : ",\"") + text + "\":" + std::to_string(byte);
    }
    vocab_ += R"(,"th":256,"the":257,"\u0120the":258)";
  }
  std::string json(const std::string& merges, const std::string& words, const std::string& more = "") const {
    return R"({"added_tokens":[{"id":259,"content":"<|end_of_text|>","special":true}],"normalizer":null,"pre_tokenizer":)" +
           words + R"(,"model":{"type":"BPE",)" + more + R"("vocab":{)" + vocab_ + R"(},"merges":)" + merges + "}}";
  }
  const test::Folder folder_{"bpe"};
  std::string vocab_;
  const std::string byte_level_ =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
};

TEST_F(BpeFiles, BothKinds) {
  const Ids expected{257, 258, 'n', 259};
  const std::string text = "the then<|end_of_text|>";
  const std::string split =
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
  for (const std::string& merges :
       {std::string(R"(["t h","th e","\u0120 the"])"), std::string(R"([["t","h"],["th","e"],["\u0120","the"]])")}) {
    for (const std::string& words : {byte_level_, split}) {
      const auto bpe = make_tokenizer(folder_.write("tokenizer.json", json(merges, words)));
      EXPECT_EQ(bpe->encode(text), expected);
      EXPECT_EQ(bpe->decode(expected), text);
      EXPECT_EQ(bpe->vocab(), 260);
      EXPECT_EQ(bpe->end_of_document(), 259);
    }
  }
  EXPECT_EQ(make_tokenizer(folder_.path(""))->vocab(), 260);  // the folder that holds it
  // Without the merge, Llama 3's flag finds the word whole.
  const std::string two = R"(["t h"])";
  EXPECT_EQ(make_tokenizer(folder_.write("tokenizer.json", json(two, split)))->encode("the"), (Ids{256, 'e'}));
  EXPECT_EQ(
      make_tokenizer(folder_.write("tokenizer.json", json(two, split, R"("ignore_merges":true,)")))->encode("the"),
      Ids{257});
  folder_.write("vocab.json", "{" + vocab_ + R"(,"<|endoftext|>":259})");
  folder_.write("merges.txt", "#version: 0.2\nt h\nth e\n\xc4\xa0 the\n");
  const auto bpe = make_tokenizer(folder_.path("vocab.json"));
  EXPECT_EQ(bpe->encode("the then<|endoftext|>"), expected);
  EXPECT_EQ(bpe->end_of_document(), 259);
}

TEST_F(BpeFiles, WhatIsNotBuiltIsRefusedByName) {
  const auto fault = [&](const std::string& text) {
    const std::string path = folder_.write("tokenizer.json", text);
    return message_of([&] { make_tokenizer(path); });
  };
  const std::string merges = "[]";
  EXPECT_NE(fault(json(merges, R"({"type":"Whitespace"})")).find("pre_tokenizer Whitespace is not built"),
            std::string::npos);
  EXPECT_NE(fault(json(R"(["a b c"])", byte_level_)).find("a merge must be two tokens"), std::string::npos);
  EXPECT_NE(fault(json(R"(["a"])", byte_level_)).find("a merge must be two tokens"), std::string::npos);
  EXPECT_NE(fault(R"({"model":{"type":"WordPiece"}})").find("model.type must be BPE, not WordPiece"),
            std::string::npos);
  EXPECT_NE(fault("[").find("is not JSON"), std::string::npos);
  EXPECT_NE(fault(json(merges, byte_level_, R"("byte_fallback":true,)")).find("byte_fallback"), std::string::npos);
  for (const char* more :
       {R"("continuing_subword_prefix":"##",)", R"("end_of_word_suffix":"</w>",)", R"("dropout":0.1,)"}) {
    EXPECT_NE(fault(json(merges, byte_level_, more)).find("is not built"), std::string::npos) << more;
  }
  EXPECT_EQ(
      fault(json(merges, byte_level_, R"("continuing_subword_prefix":"","end_of_word_suffix":null,"dropout":null,)")),
      "no error");
  const auto with_token = [&](const std::string& flag) {
    std::string text = json(merges, byte_level_);
    return fault(text.replace(text.find(R"("special":true)"), 14, R"("special":true,")" + flag + R"(":true)"));
  };
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    EXPECT_NE(with_token(flag).find(std::string("added token <|end_of_text|>: ") + flag + " is not built"),
              std::string::npos);
  }
  EXPECT_EQ(with_token("normalized"), "no error");
  const std::string split = R"({"type":"Split","pattern":{"Regex":"\\w+"},"behavior":)";
  EXPECT_NE(fault(json(merges, split + "3}")).find("only one Split, by a Regex, Isolated, is built"),
            std::string::npos);
  EXPECT_NE(fault(json(merges, R"({"type":"Sequence","pretokenizers":[)" + split +
                                   R"("Isolated"},{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})"))
                .find("add_prefix_space behind a Split"),
            std::string::npos);
  EXPECT_NE(message_of([&] { make_tokenizer("gpt2"); }).find("is no tokenizer by its name"), std::string::npos);
}

// protobuf by hand: a field of bytes, of a varint, of a float.
std::string field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + std::string(1, static_cast<char>(bytes.size())) + bytes;
}
std::string field(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string field(int number, float value) {
  std::string bytes(1, static_cast<char>(number << 3 | 5));
  return bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

TEST(SentencePiece, AHandMadeModel) {
  const test::Folder folder("sentencepiece");
  std::string model;
  const auto piece = [&](const std::string& text, float score, int type) {
    model += field(1, field(1, text) + field(2, score) + field(3, type));
  };
  const std::string space = "\xe2\x96\x81";
  piece("<unk>", 0, 2);
  piece("<s>", 0, 3);
  piece("</s>", 0, 3);
  for (const std::string& text : {space + "the", space, std::string("t"), std::string("h"), std::string("e")}) {
    piece(text, text.size() > 3 ? -1.0f : -3.0f, 1);
  }
  model += field(2, field(3, 1));                                                                  // unigram
  model += field(3, field(1, std::string("identity")) + field(3, 1) + field(4, 0) + field(5, 1));  // spaces are kept
  const std::string path = folder.write("tokenizer.model", model);
  const std::string built = message_of([&] { make_tokenizer(path); });
  if (built.find("was built without SentencePiece") != std::string::npos) {
    GTEST_SKIP() << "NOT TESTED: this build has no SentencePiece";
  }
  const auto tokenizer = make_tokenizer(path);
  EXPECT_EQ(tokenizer->vocab(), 8);
  EXPECT_EQ(tokenizer->end_of_document(), 2);
  EXPECT_EQ(tokenizer->encode("the the"), (Ids{3, 3}));
  EXPECT_EQ(tokenizer->encode("teh"), (Ids{4, 5, 7, 6}));
  EXPECT_EQ(tokenizer->decode(Ids{3, 4, 6, 7}), "the he");
  EXPECT_NE(message_of([&] { tokenizer->decode(Ids{8}); }).find("has no token 8"), std::string::npos);
  const std::string bad = folder.write("bad.model", "xyz");
  EXPECT_NE(message_of([&] { make_tokenizer(bad); }).find("no SentencePiece model"), std::string::npos);
}

}  // namespace
}  // namespace fourfold
