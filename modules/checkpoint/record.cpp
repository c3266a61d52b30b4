#include "checkpoint/record.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/posix.hpp"
#include "comm/agree.hpp"

namespace fourfold::checkpoint {

namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void broken(const std::string& why) {
  fail_one(ExitCode::storage, "the commit record is damaged: " + why);
}

std::string hex(std::uint64_t value) {
  std::array<char, 17> text{};
  char* end = std::to_chars(text.data(), text.data() + 16, value, 16).ptr;
  std::string digits(text.data(), end);
  return std::string(16 - digits.size(), '0') + digits;
}

std::uint64_t from_hex(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) broken("'" + text + "' is no hexadecimal number");
  return value;
}

std::string seal_of(Json record) {
  record.erase("seal");
  return hex(hash_bytes(record.dump()));
}

std::vector<const DatasetRecord*> by_offset(const CommitRecord& record) {
  std::vector<const DatasetRecord*> order;
  for (const DatasetRecord& dataset : record.datasets)
    if (dataset.bytes > 0) order.push_back(&dataset);
  std::sort(order.begin(), order.end(),
            [](const DatasetRecord* a, const DatasetRecord* b) { return a->offset < b->offset; });
  return order;
}

void check_places(const CommitRecord& record) {
  std::int64_t end = 0;
  for (const DatasetRecord* dataset : by_offset(record)) {
    if (dataset->offset < end || dataset->bytes > record.bytes - dataset->offset)
      broken(dataset->name + " overlaps another dataset or leaves the file");
    end = dataset->offset + dataset->bytes;
  }
}

DatasetRecord dataset_from(const Json& entry) {
  DatasetRecord dataset;
  dataset.name = entry.at("name").get<std::string>();
  const auto type = h5::element_named(entry.at("type").get<std::string>());
  if (!type) broken(dataset.name + " has an unknown type");
  dataset.type = *type;
  dataset.shape = entry.at("shape").get<std::vector<std::int64_t>>();
  dataset.offset = entry.at("offset").get<std::int64_t>();
  dataset.bytes = entry.at("bytes").get<std::int64_t>();
  std::int64_t elements = 1;
  for (const std::int64_t length : dataset.shape) elements *= length;
  for (const Json& sum : entry.at("checksums")) dataset.checksums.push_back(from_hex(sum.get<std::string>()));
  if (static_cast<std::int64_t>(dataset.checksums.size()) != chunks_of(elements) ||
      dataset.bytes != elements * h5::element_bytes(dataset.type))
    broken(dataset.name + " has a size that does not fit its shape");
  return dataset;
}

}  // namespace

std::string CommitRecord::to_text() const {
  Json record;
  record["format"] = format;
  record["run"] = run;
  record["step"] = step;
  record["file"] = file;
  record["bytes"] = bytes;
  record["outside"] = hex(outside);
  record["datasets"] = Json::array();
  for (const DatasetRecord& dataset : datasets) {
    Json entry;
    entry["name"] = dataset.name;
    entry["type"] = h5::element_name(dataset.type);
    entry["shape"] = dataset.shape;
    entry["offset"] = dataset.offset;
    entry["bytes"] = dataset.bytes;
    entry["checksums"] = Json::array();
    for (const std::uint64_t sum : dataset.checksums) entry["checksums"].push_back(hex(sum));
    record["datasets"].push_back(std::move(entry));
  }
  record["seal"] = seal_of(record);
  return record.dump(1) + "\n";
}

CommitRecord CommitRecord::from_text(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    const std::int64_t format = json.at("format").get<std::int64_t>();
    if (format > kFormat)
      fail_one(ExitCode::storage, "written by a newer Fourfold (format " + std::to_string(format) +
                                      ", this one reads " + std::to_string(kFormat) + ")");
    if (json.at("seal").get<std::string>() != seal_of(json)) broken("its seal does not fit its content");
    CommitRecord record;
    record.format = format;
    record.run = json.at("run").get<std::string>();
    record.step = json.at("step").get<std::int64_t>();
    record.file = json.at("file").get<std::string>();
    record.bytes = json.at("bytes").get<std::int64_t>();
    record.outside = from_hex(json.at("outside").get<std::string>());
    for (const Json& entry : json.at("datasets")) record.datasets.push_back(dataset_from(entry));
    check_places(record);
    return record;
  } catch (const Json::exception& error) {
    broken(error.what());
  }
}

std::uint64_t checksum_outside(const std::string& path, const CommitRecord& record) {
  constexpr std::int64_t kPiece = 1 << 16;
  std::array<unsigned char, kPiece> buffer;
  std::uint64_t sum = 0;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::span<unsigned char> piece(buffer.data(), static_cast<std::size_t>(std::min(kPiece, end - begin)));
      read_at(path, begin, piece);
      sum += checksum_bytes(piece, begin);
      begin += static_cast<std::int64_t>(piece.size());
    }
  };
  std::int64_t position = 0;
  for (const DatasetRecord* dataset : by_offset(record)) {
    add(position, dataset->offset);
    position = dataset->offset + dataset->bytes;
  }
  add(position, record.bytes);
  return sum;
}

}  // namespace fourfold::checkpoint
