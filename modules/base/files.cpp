#include "base/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

constexpr std::size_t kGather = std::size_t{1} << 20;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fail_all(ExitCode::input, path + ": " + why);
}

[[noreturn]] void not_written(const std::string& call, const std::string& path) {
  fail_all(ExitCode::storage, call + " " + path + ": " + std::strerror(errno));
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) refuse(path_, std::strerror(errno));
  // Looked at before it is opened: opening a named pipe would wait for a writer.
  if (!S_ISREG(status.st_mode)) refuse(path_, S_ISDIR(status.st_mode) ? "is a folder" : "is not a plain file");
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) refuse(path_, std::strerror(errno));
  if (::fstat(descriptor_, &status) != 0) {
    const int reason = errno;
    ::close(descriptor_);
    refuse(path_, std::strerror(reason));
  }
  size_ = status.st_size;
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

void InputFile::read_at(std::int64_t position, std::span<unsigned char> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor_, bytes.data(), bytes.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path_, std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0) refuse(path_, "ends at byte " + std::to_string(position) + " while it is read");
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    position += got;
  }
}

std::string read_text_file(const std::string& path, std::int64_t limit) {
  const InputFile file(path);
  if (file.size() > limit) {
    refuse(path, "has " + std::to_string(file.size()) + " bytes; more than " + std::to_string(limit) +
                     " are not read as a file of this kind");
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, {reinterpret_cast<unsigned char*>(text.data()), text.size()});
  return text;
}

NewFile::NewFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) not_written("cannot make", temporary_);
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!published_) ::unlink(temporary_.c_str());
}

void NewFile::append(std::span<const unsigned char> bytes) {
  append(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void NewFile::append(std::string_view text) {
  size_ += static_cast<std::int64_t>(text.size());
  gathered_ += text;
  if (gathered_.size() >= kGather) flush();
}

void NewFile::flush() {
  write_out(size_ - static_cast<std::int64_t>(gathered_.size()),
            {reinterpret_cast<const unsigned char*>(gathered_.data()), gathered_.size()});
  gathered_.clear();
}

void NewFile::write_at(std::int64_t position, std::span<const unsigned char> bytes) {
  FOURFOLD_ASSERT(position >= 0 && position + static_cast<std::int64_t>(bytes.size()) <= size_, "bytes that are there");
  flush();
  write_out(position, bytes);
}

void NewFile::write_out(std::int64_t position, std::span<const unsigned char> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), position);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) not_written("cannot write", temporary_);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
    position += put;
  }
}

void NewFile::complete() {
  flush();
  if (::fsync(descriptor_) != 0) not_written("cannot fsync", temporary_);
  if (::close(std::exchange(descriptor_, -1)) != 0) not_written("cannot close", temporary_);
}

void NewFile::publish() {
  FOURFOLD_ASSERT(descriptor_ < 0, "a file is complete before it has its name");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) not_written("cannot rename " + temporary_ + " to", path_);
  published_ = true;
  sync_folder_of(path_);
}

void sync_folder_of(const std::string& file) {
  std::string folder = std::filesystem::path(file).parent_path().string();
  if (folder.empty()) folder = ".";
  const int at = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) {
    if (errno == EACCES) return;  // one that may be written to but not read
    not_written("cannot open", folder);
  }
  const int error = ::fsync(at) == 0 ? 0 : errno;
  ::close(at);
  errno = error;
  if (error != 0) not_written("cannot fsync", folder);
}

}  // namespace fourfold
