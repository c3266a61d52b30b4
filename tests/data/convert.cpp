// Token files that are written: golden bytes and digests, text to both formats, merging, splitting, and back.
#include "data/convert.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "d0.hpp"
#include "data/megatron.hpp"
#include "data/token_files.hpp"
#include "data/token_writer.hpp"
#include "files.hpp"

namespace fourfold {
namespace {

using Ids = std::vector<std::int32_t>;
using test::message_of;
using test::read_all;

class Convert : public testing::Test {
 protected:
  const test::Folder folder_{"convert"};
  int number_ = 0;

  // Names in the folder that begin so.
  std::vector<std::string> files_of(const std::string& begin) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path(""))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(begin)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::string write_megatron(const std::string& name, const std::vector<Ids>& documents,
                             TokenType type = TokenType::u16) {
    MegatronWriter writer(folder_.path(name), type);
    for (const Ids& ids : documents) {
      writer.add_sequence(ids);
      writer.end_document();
    }
    writer.finish();
    return folder_.path(name);
  }
  Ids read(const std::vector<std::string>& files, RawKind raw = RawKind::text) const {
    const auto source = open_token_files(files, raw, "x");
    Ids ids(static_cast<std::size_t>(source->size()));
    source->read(0, ids);
    return ids;
  }
  ConvertOptions options(const std::vector<std::string>& inputs, const std::string& stem,
                         TokenFormat to = TokenFormat::megatron) const {
    ConvertOptions of;
    of.inputs = inputs;
    of.stem = folder_.path(stem);
    of.to = to;
    return of;
  }
};

TEST_F(Convert, GoldenFiles) {
  write_megatron("a", {{10, 11, 12}, {20, 21}, {30, 31, 32, 33}});
  EXPECT_EQ(read_all(folder_.path("a.bin")), test::from_hex("0a 00 0b 00 0c 00 14 00 15 00 1e 00 1f 00 20 00 21 00"));
  EXPECT_EQ(read_all(folder_.path("a.idx")),
            test::from_hex("4d 4d 49 44 49 44 58 00 00 01 00 00 00 00 00 00 00 08 03 00 00 00 00 00 00 00 "
                           "04 00 00 00 00 00 00 00 03 00 00 00 02 00 00 00 04 00 00 00 "
                           "00 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 0a 00 00 00 00 00 00 00 "
                           "00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 "
                           "03 00 00 00 00 00 00 00"));
  LlmcWriter llmc(folder_.path("b"), TokenType::u16, 50256, 1000);
  llmc.add_sequence(Ids{15496, 995});
  llmc.end_document();
  llmc.end_document();  // an empty document
  llmc.finish();
  EXPECT_EQ(test::sha256(folder_.path("b_000000.bin")),
            "7a05cc473a112294269493cd45b3ab4c80bd9775cb2a74a371718f4399fb2d70");
}

TEST_F(Convert, D0HasItsDigests) {
  std::vector<Ids> documents(1);
  for (const std::int32_t id : test::d0_tokens()) {
    documents.back().push_back(id);
    if (id == 256) documents.emplace_back();
  }
  documents.pop_back();
  write_megatron("d0", documents);
  EXPECT_EQ(read_all(folder_.path("d0.bin")).size(), 26108u);
  EXPECT_EQ(read_all(folder_.path("d0.idx")).size(), 10282u);
  EXPECT_EQ(test::sha256(folder_.path("d0.bin")), "e485d33d85755c6cbcce5218c4d2215fba5cf0a7c744aa2cee4d7ec45e5f2bca");
  EXPECT_EQ(test::sha256(folder_.path("d0.idx")), "3cdcb910eeece56acc5ee3b3935779111e1e66ccabf2ca64e1be18885348f49f");
  EXPECT_EQ(read({folder_.path("d0")}), test::d0_tokens());
  // To llm.c and back, and in parts and back: the same bytes.
  ConvertOptions to_llmc = options({folder_.path("d0")}, "l", TokenFormat::llmc);
  EXPECT_NE(message_of([&] { convert_data(to_llmc); }).find("needs --end-of-document ID"), std::string::npos);
  to_llmc.end_of_document = 256;
  to_llmc.shard_tokens = 1000;
  EXPECT_EQ(convert_data(to_llmc).documents, 512);
  ConvertOptions back = options({folder_.path("l_*.bin")}, "back");
  back.end_of_document = 256;
  EXPECT_EQ(convert_data(back).tokens, 13054);
  ConvertOptions split = options({folder_.path("d0")}, "part");
  split.parts = 4;
  EXPECT_EQ(convert_data(split).files.size(), 8u);
  convert_data(options({folder_.path("part-*")}, "merged"));
  for (const char* name : {"back", "merged"}) {
    for (const char* end : {".bin", ".idx"}) {
      EXPECT_EQ(read_all(folder_.path(name + std::string(end))), read_all(folder_.path(std::string("d0") + end)))
          << name;
    }
  }
  EXPECT_EQ(read({folder_.path("l_000013.bin")}).size(), 54u);
  for (int part = 1; part <= 4; ++part) {
    EXPECT_NEAR(static_cast<double>(read({folder_.path("part-0000" + std::to_string(part) + "-of-00004")}).size()),
                13054 / 4.0, 50);
  }
}

TEST_F(Convert, P57IdsThatDoNotFitAreRefused) {
  EXPECT_EQ(message_of([&] {
              write_megatron("a", {{1}, {2, 128000}});
            }),
            folder_.path("a.bin") + ": document 1, position 1: id 128000 does not fit u16, which holds 0 to 65535");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("a.bin")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("a.bin.tmp")));
  write_megatron("b", {{1}, {2, 128000}}, TokenType::i32);
  EXPECT_EQ(read({folder_.path("b")}), (Ids{1, 2, 128000}));
  ConvertOptions small = options({folder_.path("b")}, "small");
  small.vocab = 60000;
  EXPECT_NE(message_of([&] { convert_data(small); }).find("document 1: id 128000 is not below --vocab 60000"),
            std::string::npos);
  EXPECT_EQ(megatron_type(65499), TokenType::u16);
  EXPECT_EQ(megatron_type(65500), TokenType::i32);
  // The width follows from the vocabulary: Llama 3's kind above 65,536.
  ConvertOptions wide = options({folder_.path("b")}, "wide", TokenFormat::llmc);
  wide.end_of_document = 128001;
  convert_data(wide);
  EXPECT_EQ(read({folder_.path("wide_000000.bin")}), (Ids{128001, 1, 128001, 2, 128000}));
}

TEST_F(Convert, Text) {
  const std::string a = folder_.write("a.txt", "ab"), b = folder_.write("b.txt", "c\n\nde\r\n");
  EXPECT_EQ(convert_data(options({a, b}, "m")).text_bytes, 9);
  EXPECT_EQ(read({folder_.path("m")}), read({a, b}));  // what training on the text itself sees
  EXPECT_NE(message_of([&] { convert_data(options({a}, "m")); }).find("m.bin is there already"), std::string::npos);
  ConvertOptions lines = options({a, b}, "lines");
  lines.documents = DocumentsOf::lines;
  lines.append_end = false;
  EXPECT_EQ(convert_data(lines).documents, 3);
  EXPECT_EQ(read({folder_.path("lines")}), (Ids{'a', 'b', 'c', 'd', 'e'}));
  convert_data(options({a, b}, "l", TokenFormat::llmc));
  EXPECT_EQ(read({folder_.path("l_000000.bin")}), (Ids{256, 'a', 'b', 256, 'c', '\n', '\n', 'd', 'e', '\r', '\n'}));
  ConvertOptions json =
      options({folder_.write("c.jsonl", "{\"text\": \"x\\u00e9\", \"n\": 1}\n\n{\"text\": \"\"}\n")}, "j");
  json.documents = DocumentsOf::jsonl;
  EXPECT_EQ(convert_data(json).documents, 2);
  EXPECT_EQ(read({folder_.path("j")}), (Ids{'x', 0xc3, 0xa9, 256, 256}));
  json.json_key = "body";
  json.stem = folder_.path("k");
  EXPECT_NE(message_of([&] { convert_data(json); }).find("c.jsonl: byte 0: the line has no text \"body\""),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("k.bin")));
}

TEST_F(Convert, TokensBackToText) {
  const std::string a = folder_.write("a.txt", "ab\n\xff"), lines = folder_.write("lines.txt", "c\nde\n");
  const std::string json = folder_.write("json.jsonl", "{\"text\":\"x\\ny\"}\n{\"text\":\"\"}\n");
  const auto there_and_back = [&](const std::string& file, DocumentsOf documents, TokenFormat format) {
    const std::string stem = "t" + std::to_string(++number_);
    ConvertOptions there = options({file}, stem, format);
    there.documents = documents;
    convert_data(there);
    ConvertOptions back =
        options({folder_.path(stem + (format == TokenFormat::llmc ? "_*.bin" : ""))}, stem + "back", TokenFormat::text);
    back.documents = documents;
    return read_all(convert_data(back).files.at(0));
  };
  for (const TokenFormat format : {TokenFormat::megatron, TokenFormat::llmc}) {
    EXPECT_EQ(there_and_back(a, DocumentsOf::files, format), read_all(a));
    EXPECT_EQ(there_and_back(lines, DocumentsOf::lines, format), read_all(lines));
    EXPECT_EQ(there_and_back(json, DocumentsOf::jsonl, format), read_all(json));
  }
  const auto refused = [&](const std::string& input, DocumentsOf documents) {
    ConvertOptions of = options({input}, "none", TokenFormat::text);
    of.documents = documents;
    const std::string message = message_of([&] { convert_data(of); });
    EXPECT_TRUE(files_of("none").empty());
    return message;
  };
  EXPECT_NE(refused(a, DocumentsOf::files).find("wants token files"), std::string::npos);
  const std::string tokens = write_megatron("n", {{'a', 256}, {'b', '\n', 'c', 256}, {0xff, 256}, {300, 256}});
  EXPECT_NE(refused(tokens, DocumentsOf::lines).find("document 1: holds a line break"), std::string::npos);
  EXPECT_NE(refused(tokens, DocumentsOf::jsonl).find("document 2: is not UTF-8"), std::string::npos);
  EXPECT_NE(refused(tokens, DocumentsOf::files).find("document 3: the tokenizer bytes has no id 300"),
            std::string::npos);
}

TEST_F(Convert, BareIdsAndSequences) {
  const std::string ids = folder_.write("n.bin", test::from_hex("01 00 02 00 09 00 09 00 03 00"));
  ConvertOptions bare = options({ids}, "m");
  bare.raw = RawKind::u16;
  bare.end_of_document = 9;
  EXPECT_EQ(convert_data(bare).documents, 3);
  EXPECT_EQ(read({folder_.path("m")}), (Ids{1, 2, 9, 9, 3, 9}));
  // Documents of several sequences stay so.
  MegatronWriter writer(folder_.path("s"), TokenType::u16);
  writer.add_sequence(Ids{1, 2});
  writer.add_sequence(Ids{3});
  writer.end_document();
  writer.end_document();
  writer.finish();
  const std::string written = read_all(folder_.path("s.idx"));
  const MegatronIndex index({reinterpret_cast<const unsigned char*>(written.data()), written.size()}, "s.idx", 6);
  EXPECT_EQ(index.documents(), 2);
  EXPECT_EQ(index.document(1), 2);
  EXPECT_EQ(index.document_begin(1), 3);
  convert_data(options({folder_.path("s")}, "t"));
  EXPECT_EQ(read_all(folder_.path("t.idx")), read_all(folder_.path("s.idx")));
  ConvertOptions parts = options({folder_.path("s")}, "u");
  parts.parts = 9;
  EXPECT_NE(message_of([&] { convert_data(parts); }).find("ask for fewer --parts"), std::string::npos);
  EXPECT_EQ(files_of("u"), std::vector<std::string>{});
}

// A conversion that fails leaves none of its files, finished ones neither; one that does not names all.
TEST_F(Convert, AllFilesOrNone) {
  write_megatron("many", {{1, 2, 3}, {4, 5, 6}, {7, 70000}}, TokenType::i32);
  ConvertOptions shards = options({folder_.path("many")}, "v", TokenFormat::llmc);
  shards.end_of_document = 9;
  shards.shard_tokens = 2;
  shards.vocab = 1000;
  EXPECT_NE(message_of([&] { convert_data(shards); }).find("id 70000"), std::string::npos);
  EXPECT_EQ(files_of("v"), std::vector<std::string>{});
  shards.vocab = 70001;
  const std::vector<std::string> six = {"v_000000.bin", "v_000001.bin", "v_000002.bin",
                                        "v_000003.bin", "v_000004.bin", "v_000005.bin"};
  std::vector<std::string> told;
  for (const std::string& file : convert_data(shards).files) {
    told.push_back(std::filesystem::path(file).filename().string());
  }
  EXPECT_EQ(told, six);
  EXPECT_EQ(files_of("v"), six);
  // One later shard of an earlier run is enough: a glob would read it too.
  for (int shard = 0; shard < 5; ++shard) std::filesystem::remove(folder_.path(six[static_cast<std::size_t>(shard)]));
  EXPECT_NE(message_of([&] { convert_data(shards); }).find("v_000005.bin is there already"), std::string::npos);
  EXPECT_EQ(files_of("v"), std::vector<std::string>{"v_000005.bin"});
}

// A name that cannot be given leaves no temporary file.
TEST_F(Convert, NamesThatCannotBeGiven) {
  std::filesystem::create_directories(folder_.path("w.idx/taken"));
  {
    MegatronWriter writer(folder_.path("w"), TokenType::u16);
    writer.complete();
    EXPECT_THROW(writer.publish(), Error);
    EXPECT_EQ(files_of("w"), (std::vector<std::string>{"w.bin", "w.idx", "w.idx.tmp"}));
  }
  EXPECT_EQ(files_of("w"), (std::vector<std::string>{"w.bin", "w.idx"}));
}

}  // namespace
}  // namespace fourfold
