// Token files of other programs: golden bytes, every field that can be wrong, places in messages.
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.hpp"
#include "d0.hpp"
#include "data/llmc.hpp"
#include "data/loader.hpp"
#include "data/megatron.hpp"
#include "data/token_files.hpp"
#include "files.hpp"

namespace fourfold {
namespace {

using test::Folder;
using test::from_hex;
using test::message_of;

const std::string kGoldenBin = from_hex("0a 00 0b 00 0c 00 14 00 15 00 1e 00 1f 00 20 00 21 00");
const std::string kGoldenIndex = from_hex(
    "4d 4d 49 44 49 44 58 00 00 01 00 00 00 00 00 00 00 08 03 00 00 00 00 00 00 00 "
    "04 00 00 00 00 00 00 00 03 00 00 00 02 00 00 00 04 00 00 00 "
    "00 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00 "
    "00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 "
    "03 00 00 00 00 00 00 00");
const std::vector<std::int32_t> kGoldenTokens{10, 11, 12, 20, 21, 30, 31, 32, 33};

template <class Number>
std::string stored(std::initializer_list<Number> numbers) {
  std::string bytes;
  for (const Number number : numbers) bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  return bytes;
}

// A copy with a number written over what is at `at`.
template <class Number>
std::string with(std::string bytes, std::size_t at, Number number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
  return bytes;
}

std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& body) {
  std::string head(1024, '\0');
  head = with(with(with(head, 0, magic), 4, version), 8, count);
  return head + body;
}
const std::string kGoldenLlmc = llmc(20240520, 1, 4, from_hex("50 c4 88 3c e3 03 50 c4"));

std::vector<std::int32_t> all_of(const TokenSource& source) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(source.size()));
  source.read(0, ids);
  return ids;
}

class Files : public testing::Test {
 protected:
  const Folder folder_{"formats"};
  std::shared_ptr<const TokenSource> open(const std::vector<std::string>& names, RawKind raw = RawKind::text) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(folder_.path(name));
    return open_token_files(paths, raw, "data.train");
  }
  std::string fault(const std::string& name, RawKind raw = RawKind::text) const {
    return message_of([&] { open({name}, raw); });
  }
};

TEST_F(Files, MegatronByAnyOfItsNames) {
  folder_.write("a.bin", kGoldenBin);
  folder_.write("a.idx", kGoldenIndex);
  for (const char* name : {"a.bin", "a.idx", "a"}) EXPECT_EQ(all_of(*open({name})), kGoldenTokens) << name;
  EXPECT_EQ(open({"a.bin", "a.idx"})->size(), 9);  // what a glob finds twice counts once
  const auto source = open({"a"});
  EXPECT_EQ(source->describe(), "megatron a.bin u16 tokens 9 documents 3\n");
  const TokenPlace place = source->place(4);
  EXPECT_EQ(place.document, 1);
  EXPECT_EQ(place.position, 1);
  EXPECT_EQ(place.offset, 8);
  EXPECT_EQ(place.id, 21);
  EXPECT_EQ(source->place(0).document, 0);
  EXPECT_EQ(source->place(8).document, 2);
  EXPECT_EQ(source->place(8).position, 3);
}

TEST_F(Files, MegatronOfEveryIntegerType) {
  const auto check = [&](int code, const std::string& body, const std::vector<std::int32_t>& ids) {
    std::string index = with(kGoldenIndex, 17, static_cast<std::uint8_t>(code));
    const std::int64_t width = static_cast<std::int64_t>(body.size()) / 9;
    index = with(with(index, 54, 3 * width), 62, 5 * width);
    folder_.write("t.bin", body);
    folder_.write("t.idx", index);
    EXPECT_EQ(all_of(*open({"t"})), ids) << code;
  };
  using std::int64_t;
  check(1, stored<std::uint8_t>({1, 2, 3, 4, 5, 6, 7, 8, 255}), {1, 2, 3, 4, 5, 6, 7, 8, 255});
  check(2, stored<std::int8_t>({1, 2, 3, 4, 5, 6, 7, -8, 127}), {1, 2, 3, 4, 5, 6, 7, -1, 127});
  check(3, stored<std::int16_t>({1, 2, 3, 4, 5, 6, 7, 8, 32767}), {1, 2, 3, 4, 5, 6, 7, 8, 32767});
  check(4, stored<std::int32_t>({1, 2, 3, 4, 5, 6, 7, 8, 128000}), {1, 2, 3, 4, 5, 6, 7, 8, 128000});
  check(5, stored<int64_t>({1, 2, 3, 4, 5, 6, 7, int64_t{1} << 40, 128000}), {1, 2, 3, 4, 5, 6, 7, -1, 128000});
  EXPECT_EQ(open({"t"})->place(7).id, std::int64_t{1} << 40);  // messages tell the number that is there
  check(8, stored<std::uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 65535}), {1, 2, 3, 4, 5, 6, 7, 8, 65535});
}

TEST_F(Files, P59MegatronFieldsThatAreWrong) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {with(kGoldenIndex, 0, 'X'), "byte 0: does not begin with MMIDIDX"},
      {kGoldenIndex.substr(0, 33), "byte 33: ends inside its head of 34 bytes"},
      {with(kGoldenIndex, 9, std::uint64_t{2}), "byte 9: version 2; known: 1"},
      {with(kGoldenIndex, 17, std::uint8_t{6}), "byte 17: type code 6 holds floats, not token ids; legal: 1 u8"},
      {with(kGoldenIndex, 17, std::uint8_t{7}), "type code 7 holds floats"},
      {with(kGoldenIndex, 17, std::uint8_t{0}), "type code 0 is unknown"},
      {with(kGoldenIndex, 17, std::uint8_t{9}), "type code 9 is unknown"},
      {with(kGoldenIndex, 18, ~std::uint64_t{0}), "byte 18: 18446744073709551615 sequences in a file of 102 bytes"},
      {with(kGoldenIndex, 26, ~std::uint64_t{0}), "byte 26: 18446744073709551615 entries of the document index"},
      {with(kGoldenIndex, 26, std::uint64_t{0}), "byte 26: 0 entries"},
      {kGoldenIndex.substr(0, 101),
       "the size must be 102 (or 105 with modes) for 3 sequences and 3 documents, not 101"},
      {with(kGoldenIndex, 38, std::int32_t{-2}), "byte 38: sequence 1 has -2 tokens"},
      {with(kGoldenIndex, 54, std::int64_t{8}),
       "byte 54: sequence 1 begins at byte 8 of the .bin; those before end at 6"},
      {with(kGoldenIndex, 42, std::int32_t{5}), "the sequences take 20 bytes, the .bin has 18"},
      {with(kGoldenIndex, 42, std::int32_t{3}), "the sequences take 16 bytes, the .bin has 18"},
      {with(kGoldenIndex, 70, std::int64_t{1}), "byte 70: entry 0 of the document index is 1; it must rise from 0"},
      {with(kGoldenIndex, 86, std::int64_t{0}), "byte 86: entry 2 of the document index is 0"},
      {with(kGoldenIndex, 94, std::int64_t{2}), "byte 94: entry 3 of the document index is 2"},
      {with(kGoldenIndex, 94, std::int64_t{4}), "byte 94: entry 3 of the document index is 4"},
      {kGoldenIndex + std::string("\0\1\0", 3), "byte 103: sequence 1 has mode 1 (images)"},
      {std::string("TNTIDX\0\0", 8) + std::string(50, '\0'), "the old kind (TNTIDX)"},
  };
  for (const auto& [index, wanted] : cases) {
    const std::string message = message_of([&] {
      MegatronIndex({reinterpret_cast<const unsigned char*>(index.data()), index.size()}, "a.idx",
                    static_cast<std::int64_t>(kGoldenBin.size()));
    });
    EXPECT_EQ(message.find("a.idx: Megatron index, byte "), 0u) << message;
    EXPECT_NE(message.find(wanted), std::string::npos) << "wanted: " << wanted << "\ngot: " << message;
  }
  folder_.write("a.idx", kGoldenIndex);
  EXPECT_NE(fault("a.idx").find("a.bin: No such file or directory"), std::string::npos);
  folder_.write("a.bin", kGoldenBin.substr(0, 16));
  EXPECT_NE(fault("a.bin").find("the sequences take 18 bytes, the .bin has 16"), std::string::npos);
  folder_.write("index", kGoldenIndex);
  EXPECT_NE(fault("index").find("its name does not end in .idx"), std::string::npos);
  folder_.write("old.bin", kGoldenBin);
  folder_.write("old.idx", std::string("TNTIDX\0\0", 8));
  EXPECT_NE(fault("old.bin").find("--dataset-impl mmap"), std::string::npos);
  folder_.write("m.bin", kGoldenBin);
  folder_.write("m.idx", kGoldenIndex + std::string(3, '\0'));  // modes that are all text
  EXPECT_EQ(open({"m"})->size(), 9);
}

TEST_F(Files, LlmcShards) {
  EXPECT_EQ(kGoldenLlmc.size(), 1032u);
  EXPECT_EQ(test::sha256(folder_.write("a.bin", kGoldenLlmc)),
            "7a05cc473a112294269493cd45b3ab4c80bd9775cb2a74a371718f4399fb2d70");
  folder_.write("b.bin", llmc(20240801, 7, 2, stored<std::uint32_t>({128000, 0xffffffffu})));
  EXPECT_EQ(all_of(*open({"a.bin"})), (std::vector<std::int32_t>{50256, 15496, 995, 50256}));
  const auto both = open({"a.bin", "b.bin"});
  EXPECT_EQ(both->size(), 6);
  EXPECT_EQ(both->describe(), "llm.c a.bin u16 tokens 4\nllm.c b.bin u32 tokens 2\n");
  std::vector<std::int32_t> across(3);
  both->read(3, across);
  EXPECT_EQ(across, (std::vector<std::int32_t>{50256, 128000, -1}));
  EXPECT_EQ(both->place(5).id, 4294967295);
  EXPECT_EQ(both->place(5).offset, 1028);

  const std::vector<std::pair<std::string, std::string>> cases{
      {llmc(20240520, 2, 0, ""), "byte 4: version 2 of tokens of GPT-2; known: 1"},
      {llmc(20240801, 1, 0, ""), "byte 4: version 1 of tokens of Llama 3; known: 7"},
      {llmc(20240520, 1, 5, "12345678"), "byte 8: 5 tokens make a file of 1034 bytes, this one has 1032"},
      {llmc(20240520, 1, 3, "12345678"), "byte 8: 3 tokens make a file of 1030 bytes, this one has 1032"},
      {llmc(20240520, 1, -1, ""), "byte 8: -1 tokens"},
      {llmc(20240520, 1, 0, ""), "holds no token"},
      {llmc(20240520, 1, 0, "").substr(0, 1023), "byte 1023: ends inside its head"},
      {llmc(20240326, 3, 0, ""), "byte 0: holds a model's weights (20240326), not tokens"},
      {llmc(20240328, 3, 0, ""), "holds a tokenizer"},
  };
  for (const auto& [file, wanted] : cases) {
    folder_.write("bad.bin", file);
    EXPECT_NE(fault("bad.bin").find(wanted), std::string::npos) << wanted << "\n" << fault("bad.bin");
  }
}

TEST_F(Files, P57BareIds) {
  folder_.write("n.bin", from_hex("50 c4 88 3c e3 03 50 c4"));
  EXPECT_EQ(all_of(*open({"n.bin"}, RawKind::u16)), (std::vector<std::int32_t>{50256, 15496, 995, 50256}));
  EXPECT_EQ(open({"n.bin"}, RawKind::u32)->size(), 2);
  EXPECT_EQ(open({"n.bin"})->size(), 9);  // nothing tells it from text
  folder_.write("odd.bin", "123");
  EXPECT_NE(fault("odd.bin", RawKind::u16).find("3 bytes, no multiple of the 2 of an id (data.raw: u16)"),
            std::string::npos);
  std::string wide, narrow;
  for (std::uint32_t i = 0; i < 100; ++i) wide += stored<std::uint32_t>({i * 31 % 97 + 1});
  for (std::uint16_t i = 0; i < 100; ++i) narrow += stored<std::uint16_t>({static_cast<std::uint16_t>(i + 300)});
  folder_.write("wide.bin", wide);
  folder_.write("narrow.bin", narrow);
  EXPECT_NE(fault("wide.bin", RawKind::u16).find("looks like ids of 32 bits; data.raw: u32 reads them"),
            std::string::npos);
  EXPECT_NE(fault("wide.bin").find("that is no text; data.raw: u16 or u32"), std::string::npos);
  EXPECT_EQ(fault("narrow.bin", RawKind::u16), "no error");
  folder_.write("z.txt", std::string("\x1f\x8b\x08", 3) + "xyz");
  EXPECT_NE(fault("z.txt").find("is compressed (gzip); unpack it first"), std::string::npos);
}

TEST_F(Files, P58IdsBeyondTheVocabularyHaveFileByteAndValue) {
  folder_.write("a.bin", kGoldenBin);
  folder_.write("a.idx", kGoldenIndex);
  Deck deck = test::token_deck(4, 2, 1);
  deck.data.train = {folder_.path("a")};
  deck.model.vocab = 34;
  EXPECT_EQ(Loader(deck).samples(), 2);
  deck.model.vocab = 32;
  const std::string wanted =
      folder_.path("a.bin") + ": document 2, position 2, byte 14: id 32 is not below model.vocab 32";
  EXPECT_EQ(message_of([&] { Loader loader(deck); }), wanted);
  // Of validation files too, before a step is made.
  deck.data.valid = deck.data.train;
  folder_.write("low.bin", stored<std::uint16_t>({0, 1, 2, 3, 4, 5, 6, 7, 31}));
  folder_.write("low.idx", kGoldenIndex);
  deck.data.train = {folder_.path("low")};
  EXPECT_EQ(message_of([&] { Loader loader(deck); }), wanted);
}

// A large stream is scanned in parts, and each id is in one of them.
class Counting : public TokenSource {
 public:
  explicit Counting(std::int64_t bad) : bad_(bad) {}
  std::int64_t size() const override { return kSharedScan + 10; }
  std::int32_t largest_id() const override { return 99; }
  std::string describe() const override { return ""; }
  bool is_text() const override { return false; }
  std::int64_t bytes(std::int64_t, std::int64_t) const override { return 0; }
  TokenPlace place(std::int64_t position) const override { return {"counting", 0, position, 0, 99}; }
  void read(std::int64_t first, std::span<std::int32_t> ids) const override {
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<std::int64_t>(i) == bad_ ? 99 : 1;
  }

 private:
  std::int64_t bad_;
};

TEST(Scan, EachIdOfALargeStreamIsOnePartsToRead) {
  for (const std::int64_t bad : {std::int64_t{0}, kSharedScan / 3, kSharedScan + 9}) {
    int found = 0;
    for (int part = 0; part < 3; ++part) {
      found += message_of([&] { require_ids_below(Counting(bad), 99, part, 3); }) != "no error";
    }
    EXPECT_EQ(found, 1) << bad;
  }
}

}  // namespace
}  // namespace fourfold
