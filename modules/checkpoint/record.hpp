// The commit record: what makes a step exist. Text (JSON) in FOLDER/step_N.commit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "h5/element.hpp"

namespace fourfold::checkpoint {

inline constexpr std::int64_t kFormat = 1;

struct DatasetRecord {
  std::string name;
  h5::ElementType type = h5::ElementType::fp32;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // of its bytes in the file
  std::int64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  // one per 2^20 elements (checksum.hpp)
};

struct CommitRecord {
  std::int64_t format = kFormat;
  std::string run;
  std::int64_t step = 0;
  std::string file;                     // name without folder
  std::int64_t bytes = 0;               // its size
  std::uint64_t outside = 0;            // checksum of the bytes outside the datasets
  std::vector<DatasetRecord> datasets;  // sorted by name

  std::string to_text() const;
  // Errors: Error (storage, one rank): not JSON, a missing or mistyped entry, a broken seal (the record holds a hash of
  // itself), a format newer than kFormat, datasets that overlap or leave the file.
  static CommitRecord from_text(const std::string& text);
};

// Reads the file and sums over its bytes outside the record's datasets. Errors: as posix.hpp.
std::uint64_t checksum_outside(const std::string& path, const CommitRecord& record);

}  // namespace fourfold::checkpoint
