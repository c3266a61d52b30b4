// safetensors: the golden file, each rule of the reference reader, folders with an index.
#include "checkpoint/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <tuple>

#include "base/error.hpp"
#include "checkpoint/safetensors_folder.hpp"
#include "data/files.hpp"
#include "test_support.hpp"

namespace fourfold::safetensors {
namespace {

using test::Folder;
using test::message_of;

const std::string kGoldenHeader =
    R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
    R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]}})";
const std::string kGoldenData = test::from_hex("00 00 80 3f 00 00 00 40 00 00 40 40 00 00 80 40 80 3f 00 c0");

std::string file_of(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  const std::uint64_t n = header.size();
  std::memcpy(length.data(), &n, 8);
  return length + header + data;
}

std::span<const unsigned char> bytes_of(const std::string& text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), text.size()};
}

Header parse(const std::string& file) {
  return parse_header(bytes_of(file), static_cast<std::int64_t>(file.size()), "m.safetensors");
}

TEST(Safetensors, Golden) {
  const Folder folder("golden");
  const std::string path = folder.path("model.safetensors");
  Writer writer(path, {{"b", find_type("BF16"), {2}}, {"w", find_type("F32"), {2, 2}}}, {{"format", "pt"}});
  EXPECT_EQ(writer.entries().front().name, "w");  // the wider type first
  writer.append(bytes_of(kGoldenData.substr(0, 5)));
  writer.append(bytes_of(kGoldenData.substr(5)));
  EXPECT_FALSE(std::filesystem::exists(path));  // only whole files have their name
  writer.finish();
  EXPECT_EQ(test::read_all(path), file_of(kGoldenHeader, kGoldenData));
  EXPECT_EQ(test::sha256(path), "3e42ff52ce7089f557174eb5bfdcb077bebc7805f18c99b89613ce34ed1d4bc7");

  const Reader reader(path);
  EXPECT_EQ(reader.header().metadata, (Metadata{{"format", "pt"}}));
  const Tensor* w = reader.header().find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->shape, (std::vector<std::int64_t>{2, 2}));
  float values[2];
  reader.read(*w, 8, {reinterpret_cast<unsigned char*>(values), sizeof values});
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[1], 4);
  EXPECT_EQ(reader.header().find("v"), nullptr);
}

TEST(Safetensors, AWriterThatIsNotFinishedLeavesNothing) {
  const Folder folder("unfinished");
  { Writer writer(folder.path("m"), {{"a", find_type("U8"), {3}}}, {}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("")));
  Writer writer(folder.path("m"), {{"a", find_type("U8"), {3}}}, {});
  EXPECT_THROW(writer.finish(), Error);
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, WhatIsLegalIsRead) {
  const auto tensors = [](const std::string& header, const std::string& data) {
    return parse(file_of(header, data)).tensors;
  };
  EXPECT_EQ(tensors("{}", "").size(), 0u);
  EXPECT_EQ(tensors(R"({"__metadata__":{}}     )", "").size(), 0u);
  // Any order in the header, a length that is no multiple of 8, scalars, empty tensors where others begin and end.
  const auto list = tensors("{" + entry("b", "U8", "[1]", "[2,3]") + "," + entry("a", "I16", "[]", "[0,2]") + "," +
                                entry("e", "F32", "[3,0]", "[2,2]") + "," + entry("z", "F32", "[0]", "[3,3]") + "} ",
                            "xyz");
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].name, "a");
  EXPECT_EQ(list[1].name, "e");
  EXPECT_EQ(list[3].name, "z");
  EXPECT_EQ(list[1].elements(), 0);
  EXPECT_EQ(list[0].elements(), 1);
  // Names: escaped, not ASCII, empty.
  EXPECT_EQ(tensors("{" + entry(R"(q\u00e9\ud83d\ude00\"\n)", "U8", "[0]", "[0,0]") + "}", "")[0].name,
            "q\xc3\xa9\xf0\x9f\x98\x80\"\n");
  EXPECT_EQ(tensors("{" + entry("\xc3\xa9", "U8", "[0]", "[0,0]") + "}", "")[0].name, "\xc3\xa9");
  EXPECT_EQ(tensors("{" + entry("", "F4", "[2]", "[0,1]") + "}", "x")[0].name, "");
}

// One file per rule that is broken, and what its message must say.
TEST(Safetensors, P71EveryRuleIsNamed) {
  const std::string good = file_of(kGoldenHeader, kGoldenData);
  const auto with = [](const std::string& body, const std::string& data) { return file_of("{" + body + "}", data); };
  const std::string too_long = file_of(kGoldenHeader, "");
  std::string claims = good;
  claims.replace(0, 8, test::from_hex("01 e1 f5 05 00 00 00 00"));  // 100,000,001
  std::string negative = good;
  negative.replace(0, 8, std::string(8, '\xff'));
  std::string beyond = good;
  beyond.replace(0, 8, test::from_hex("a5 00 00 00 00 00 00 00"));  // one more than there is
  std::string deep(1 << 20, '[');
  const std::vector<std::tuple<std::string, std::string>> cases{
      {"", "byte 0: a file begins with 8 bytes of header length; this one has 0"},
      {good.substr(0, 7), "this one has 7"},
      {claims, "byte 0: the header's length must be at most 100000000, not 100000001"},
      {negative, "not 18446744073709551615"},
      {beyond, "byte 0: the header (165 bytes) must end within the file (172 bytes)"},
      {file_of("", ""), "byte 8: the header must begin with {"},
      {file_of(" {}", ""), "byte 8: the header must begin with {"},
      {file_of("[]", ""), "byte 8: the header must begin with {"},
      {file_of("{}\n", ""), "byte 10: the header must end with } and spaces only"},
      {file_of(std::string("{}\0", 3), ""), "the header must end with } and spaces only"},
      {file_of("{} {}", ""), "is not JSON"},
      {with("\"a\":", ""), "before byte 14: is not JSON"},
      {with(entry("\xff", "U8", "[0]", "[0,0]"), ""), "invalid string: ill-formed UTF-8 byte"},
      {with(entry("\\ud800", "U8", "[0]", "[0,0]"), ""), "surrogate"},
      {with(entry("a", "U8", "[0]", "[0,0]") + "," + entry("a", "U8", "[0]", "[0,0]"), ""),
       "the member \"a\" is there twice"},
      {with(entry("a", "U8", "[0]", "[0,0]") + "," + entry("\\u0061", "U8", "[0]", "[0,0]"), ""),
       "the member \"a\" is there twice"},
      {with(R"("a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]})", ""),
       "the member \"dtype\" is there twice"},
      {with("\"a\":" + deep, ""), "is nested more than 4 deep"},
      {with("\"a\":3", ""), "tensor \"a\": must be an object"},
      {with(R"("a":{"shape":[0],"data_offsets":[0,0]})", ""), "tensor \"a\": dtype is missing"},
      {with(R"("a":{"dtype":"U8","data_offsets":[0,0]})", ""), "tensor \"a\": shape is missing"},
      {with(R"("a":{"dtype":"U8","shape":[0]})", ""), "tensor \"a\": data_offsets is missing"},
      {with(R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1})", ""), "unknown member \"x\""},
      {with(entry("a", "F31", "[0]", "[0,0]"), ""), "dtype \"F31\" is none of the format's"},
      {with(entry("a", "f32", "[0]", "[0,0]"), ""), "dtype \"f32\" is none of the format's"},
      {with(entry("a", "U8", "3", "[0,0]"), ""), "shape must be a list"},
      {with(entry("a", "U8", "[-1]", "[0,0]"), ""), "shape must hold whole numbers from 0 to 2^63 - 1, not -1"},
      {with(entry("a", "U8", "[1.0]", "[0,1]"), "x"), "not 1.0"},
      {with(entry("a", "U8", "[9223372036854775808]", "[0,1]"), "x"), "not 9223372036854775808"},
      {with(entry("a", "U8", "[1]", "[0]"), "x"), "data_offsets must be [begin, end]"},
      {with(entry("a", "U8", "[1]", "[0,1,2]"), "x"), "data_offsets must be [begin, end]"},
      {with(entry("a", "U8", "[1]", "[1,0]"), "x"), "tensor \"a\" [1, 0): data_offsets must not end before they begin"},
      {with(entry("a", "U8", "[1]", "[1,2]"), "xy"), "must leave no hole: the bytes before end at 0"},
      {with(entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[1,3]"), "xyz"),
       "tensor \"b\" [1, 3): must not overlap the bytes before 2"},
      {with(entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[1]", "[3,4]"), "wxyz"),
       "tensor \"b\" [3, 4): must leave no hole: the bytes before end at 2"},
      {with(entry("a", "F32", "[1]", "[0,2]"), "xy"), "shape and dtype take 4 bytes, data_offsets hold 2"},
      {with(entry("a", "U8", "[4294967296,4294967296]", "[0,1]"), "x"), "must not overflow"},
      {with(entry("a", "F64", "[1152921504606846976]", "[0,1]"), "x"), "must not overflow"},
      {with(entry("a", "F4", "[3]", "[0,1]"), "x"), "must fill whole bytes"},
      {good.substr(0, 171), "the tensors must end where the file ends: they take 20 bytes, the file has 19"},
      {good + "x", "they take 20 bytes, the file has 21 after its header"},
      {with(R"("__metadata__":[])", ""), "__metadata__ must be an object"},
      {with(R"("__metadata__":{"format":1})", ""), "__metadata__ \"format\" must be a string"},
  };
  for (const auto& [file, wanted] : cases) {
    const std::string message = message_of([&] { parse(file); });
    EXPECT_EQ(message.find("m.safetensors: safetensors"), 0u) << message;
    EXPECT_NE(message.find(wanted), std::string::npos) << "wanted: " << wanted << "\ngot: " << message.substr(0, 300);
  }
}

TEST(Safetensors, P71TheWriterObeysToo) {
  const auto fault = [](std::vector<Entry> entries, const Metadata& metadata = {}) {
    return message_of([&] { make_header(entries, metadata, "m"); });
  };
  const Type* u8 = find_type("U8");
  EXPECT_NE(fault({{"a", u8, {1}}, {"a", u8, {1}}}).find("tensor \"a\": the name is taken"), std::string::npos);
  EXPECT_NE(fault({{"__metadata__", u8, {1}}}).find("the name is taken"), std::string::npos);
  EXPECT_NE(fault({{"a", find_type("F4"), {3}}}).find("must fill whole bytes"), std::string::npos);
  EXPECT_NE(fault({{"\xff", u8, {1}}}).find("names and metadata must be UTF-8"), std::string::npos);
  EXPECT_NE(fault({{"a", u8, {1}}}, {{"k", "\xc3"}}).find("must be UTF-8"), std::string::npos);
  std::vector<Entry> huge{{"a", u8, {std::int64_t{1} << 62}}, {"b", u8, {std::int64_t{1} << 62}}};
  EXPECT_NE(message_of([&] { make_header(huge, {}, "m"); }).find("must not overflow"), std::string::npos);
  EXPECT_NE(fault({{std::string(100'000'000, 'x'), u8, {1}}}).find("at most 100000000 are read elsewhere"),
            std::string::npos);
  // Padding: whatever the names, the data begins at a multiple of 8.
  for (std::size_t length = 1; length <= 9; ++length) {
    std::vector<Entry> entries{{std::string(length, 'n'), u8, {1}}};
    const std::string head = make_header(entries, {}, "m");
    EXPECT_EQ(head.size() % 8, 0u);
    EXPECT_EQ(parse(head + "x").tensors.size(), 1u);
  }
}

class InFolder : public testing::Test {
 protected:
  const Folder folder_{"shards"};
  // Tensor i of n: i + 1 bytes, each i.
  void write(std::size_t n, std::int64_t shard_bytes) {
    std::vector<Entry> entries;
    for (std::size_t i = 0; i < n; ++i) {
      entries.push_back({std::string(1, static_cast<char>('a' + i)), find_type("U8"), {static_cast<int>(i) + 1}});
    }
    write_folder(folder_.path("model"), entries, shard_bytes, {{"format", "pt"}}, [](const Entry& entry, Writer& to) {
      const std::string bytes(static_cast<std::size_t>(entry.shape[0]), entry.name[0]);
      to.append(bytes_of(bytes));
    });
  }
  std::string path(const std::string& name) const { return folder_.path("model/" + name); }
  std::string fault() const {
    return message_of([&] { FolderReader reader(folder_.path("model")); });
  }
};

// An export that breaks off leaves the earlier one as it was; one that cannot take the earlier one's names away is
// none.
TEST_F(InFolder, EarlierExportsAreNeverMixedIn) {
  write(5, 6);
  const auto all = [&] {
    std::map<std::string, std::string> bytes;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path("model"))) {
      bytes[entry.path().filename().string()] = test::read_all(entry.path().string());
    }
    return bytes;
  };
  const auto before = all();
  const std::vector<Entry> entries = {
      {"a", find_type("U8"), {6}}, {"b", find_type("U8"), {6}}, {"c", find_type("U8"), {6}}};
  EXPECT_THROW(write_folder(folder_.path("model"), entries, 6, {},
                            [](const Entry& entry, Writer& to) {
                              if (entry.name == "c") fail_all(ExitCode::storage, "the disk is full");
                              to.append(bytes_of(std::string(6, 'x')));
                            }),
               Error);
  EXPECT_EQ(all(), before);
  write(2, 100);  // one file
  EXPECT_FALSE(std::filesystem::exists(path("model.safetensors.index.json")));
  EXPECT_EQ(FolderReader(folder_.path("model")).tensors().size(), 2u);
  // What cannot be removed: a folder of that name.
  std::filesystem::create_directories(path("model.safetensors.index.json/taken"));
  const std::string single = test::read_all(path("model.safetensors"));
  EXPECT_THROW(write(3, 100), Error);
  EXPECT_EQ(test::read_all(path("model.safetensors")), single);
}

TEST_F(InFolder, ShardsAndTheirIndex) {
  write(5, 6);  // a b c (6 bytes) | d (4) | e (5)
  EXPECT_EQ(test::read_all(path("model.safetensors.index.json")), R"({
  "metadata": {
    "total_size": 15
  },
  "weight_map": {
    "a": "model-00001-of-00003.safetensors",
    "b": "model-00001-of-00003.safetensors",
    "c": "model-00001-of-00003.safetensors",
    "d": "model-00002-of-00003.safetensors",
    "e": "model-00003-of-00003.safetensors"
  }
}
)");
  const FolderReader reader(folder_.path("model"));
  ASSERT_EQ(reader.tensors().size(), 5u);
  for (const FolderReader::Place& place : reader.tensors()) {
    std::string bytes(static_cast<std::size_t>(place.tensor->bytes()), '\0');
    place.file->read(*place.tensor, 0, {reinterpret_cast<unsigned char*>(bytes.data()), bytes.size()});
    EXPECT_EQ(bytes, std::string(bytes.size(), place.tensor->name[0]));
  }
  EXPECT_EQ(reader.find("d")->tensor->shape[0], 4);
  EXPECT_EQ(reader.find("f"), nullptr);
}

TEST_F(InFolder, OneFileNeedsNoIndexAndTakesTheOldOneAway) {
  write(5, 6);
  write(5, 15);
  EXPECT_FALSE(std::filesystem::exists(path("model.safetensors.index.json")));
  EXPECT_EQ(FolderReader(folder_.path("model")).tensors().size(), 5u);
  EXPECT_EQ(FolderReader(path("model.safetensors")).tensors().size(), 5u);
}

TEST_F(InFolder, MapAndFilesMustAgree) {
  write(4, 3);  // a b | c | d
  const std::string index = test::read_all(path("model.safetensors.index.json"));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = index;
    text.replace(text.find(from), from.size(), to);
    folder_.write("model/model.safetensors.index.json", text);
    return fault();
  };
  EXPECT_NE(replaced("\"b\": ", "\"B\": ").find("B is not in model-00001-of-00003.safetensors"), std::string::npos);
  EXPECT_NE(fault().find("  b of "), std::string::npos);
  EXPECT_NE(replaced("00002-of", "00001-of").find("c is not in model-00001-of-00003"), std::string::npos);
  EXPECT_NE(replaced("model-00002-of-00003", "../model").find("\"c\" must be the name of a file beside it"),
            std::string::npos);
  EXPECT_NE(replaced("\"b\": ", "\"a\": ").find("the member \"a\" is there twice"), std::string::npos);
  EXPECT_NE(replaced("weight_map", "weights").find("weight_map must be an object"), std::string::npos);
  EXPECT_NE(replaced("00003-of", "00004-of").find("No such file"), std::string::npos);
  std::filesystem::copy_file(path("model-00001-of-00003.safetensors"), path("model-00002-of-00003.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  folder_.write("model/model.safetensors.index.json", index);
  EXPECT_NE(fault().find("tensor a is in "), std::string::npos);
  std::filesystem::remove_all(folder_.path("model"));
  std::filesystem::create_directory(folder_.path("model"));
  EXPECT_NE(fault().find("holds neither model.safetensors nor"), std::string::npos);
}

}  // namespace
}  // namespace fourfold::safetensors
