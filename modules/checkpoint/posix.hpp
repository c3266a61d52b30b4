// Files and folders by their POSIX calls, every return checked. Errors: Error (storage, one rank): call, path, reason;
// for a full disk, quota or size limit also what was needed and what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fourfold::checkpoint {

void make_folder(const std::string& folder);                     // and its parents
std::vector<std::string> file_names(const std::string& folder);  // sorted; none when there is no such folder
std::optional<std::int64_t> file_size(const std::string& path);  // none when there is no such file
std::string read_file(const std::string& path);
// Reads exactly bytes.size() bytes at `position`.
void read_at(const std::string& path, std::int64_t position, std::span<unsigned char> bytes);

// An empty file of this name, made or emptied.
void create_file(const std::string& path);
// That this process may open it for reading (and writing).
void check_access(const std::string& path, bool writing);
// Takes space for `bytes` bytes from the file system, where it can promise that; elsewhere does nothing.
void reserve(const std::string& path, std::int64_t bytes);
// That this process may write files of so many bytes (ulimit -f).
void check_size_limit(std::int64_t bytes);

// An existing file, open for writing at places.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  // All of them: a short write is continued.
  void write_at(std::int64_t position, std::span<const std::byte> bytes);
  void close();

 private:
  std::string path_;
  int descriptor_;
};

void sync_file(const std::string& path);
void sync_folder(const std::string& folder);
void rename_file(const std::string& from, const std::string& to);
bool remove_file(const std::string& path);  // false when there was none
// Writes `text` under PATH.tmp, fsync, rename.
void write_durably(const std::string& path, const std::string& text);

}  // namespace fourfold::checkpoint
