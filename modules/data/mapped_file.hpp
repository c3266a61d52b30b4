// A file's bytes, memory-mapped and read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace fourfold {

class MappedFile {
 public:
  // Errors (Error, input): what is missing, not a plain file, unreadable or empty, with its path and the system's
  // reason.
  explicit MappedFile(std::string path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const unsigned char> bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const unsigned char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace fourfold
