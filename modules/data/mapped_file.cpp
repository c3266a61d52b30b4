#include "data/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fail_all(ExitCode::input, path + ": " + why);
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Looked at before it is opened: opening a named pipe would wait for a writer.
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) refuse(path_, std::strerror(errno));
  if (S_ISDIR(status.st_mode))
    refuse(path_, "is a folder; name its files, for example " + path_ + (path_.ends_with('/') ? "*.txt" : "/*.txt"));
  if (!S_ISREG(status.st_mode)) refuse(path_, "is not a plain file");
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) refuse(path_, std::strerror(errno));
  if (::fstat(descriptor, &status) != 0 || status.st_size == 0) {
    ::close(descriptor);
    refuse(path_, "is empty");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  const int reason = errno;
  ::close(descriptor);  // the mapping stays
  if (address == MAP_FAILED) refuse(path_, std::string("cannot be mapped: ") + std::strerror(reason));
  data_ = static_cast<const unsigned char*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, std::size_t{0})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<unsigned char*>(data_), size_);
}

}  // namespace fourfold
