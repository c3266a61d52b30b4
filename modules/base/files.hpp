// Files that are read in parts, and files that appear under their name only once they are whole.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fourfold {

// A plain file, open for reading. Errors (Error, input): missing, not a plain file, unreadable, shorter than asked for;
// with its path and the system's reason.
class InputFile {
 public:
  explicit InputFile(std::string path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  // when it was opened
  void read_at(std::int64_t position, std::span<unsigned char> bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

// The whole of a small file. Errors: InputFile's; larger than `limit` bytes.
std::string read_text_file(const std::string& path, std::int64_t limit);

// Written as PATH.tmp. complete() brings all of it to the disk, publish() gives it its name: of a set of files all are
// completed before one is published. Without publish() nothing stays. Small appends are gathered.
// Errors (Error, storage): the system's, with the path.
class NewFile {
 public:
  explicit NewFile(std::string path);
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  // bytes appended so far
  void append(std::span<const unsigned char> bytes);
  void append(std::string_view text);
  // Overwrites bytes that were appended: headers that count what follows.
  void write_at(std::int64_t position, std::span<const unsigned char> bytes);
  void complete();  // fsync, close; nothing is appended afterwards
  void publish();   // rename, fsync of the folder
  void finish() {
    complete();
    publish();
  }

 private:
  void flush();
  void write_out(std::int64_t position, std::span<const unsigned char> bytes);

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  bool published_ = false;
  std::int64_t size_ = 0;
  std::string gathered_;  // the last bytes of size_, not yet written
};

// Files that appeared in a folder or went from it outlive a crash from now on. Errors (Error, storage): the system's.
void sync_folder_of(const std::string& file);

}  // namespace fourfold
