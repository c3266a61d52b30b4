#include "checkpoint/posix.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"

namespace fourfold::checkpoint {

namespace {

[[noreturn]] void failed(const std::string& call, const std::string& path, int error) {
  fail_one(ExitCode::storage, call + " " + path + ": " + std::strerror(error));
}

bool is_full(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags)
      : path_(path), descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) failed("cannot open", path, errno);
  }
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }
  // Some file systems report a full disk or quota only here.
  void close() {
    const int descriptor = std::exchange(descriptor_, -1);
    if (::close(descriptor) != 0) failed("cannot close", path_, errno);
  }

 private:
  std::string path_;
  int descriptor_;
};

void sync(const std::string& path, int flags) {
  Descriptor file(path, flags);
  if (fsync(file.get()) != 0) failed("cannot fsync", path, errno);
  file.close();
}

}  // namespace

std::int64_t free_bytes(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder);
  std::error_code ignored;
  while (!std::filesystem::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  struct statvfs figures {};
  if (statvfs(path.c_str(), &figures) != 0) failed("cannot ask for the free space of", path.string(), errno);
  return static_cast<std::int64_t>(figures.f_bavail) * static_cast<std::int64_t>(figures.f_frsize);
}

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) failed("cannot make the folder", folder, error.value());
}

std::vector<std::string> file_names(const std::string& folder) {
  std::vector<std::string> names;
  DIR* stream = opendir(folder.c_str());
  if (stream == nullptr && errno == ENOENT) return names;
  if (stream == nullptr) failed("cannot read the folder", folder, errno);
  while (const dirent* entry = readdir(stream)) names.emplace_back(entry->d_name);
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::int64_t> file_size(const std::string& path) {
  struct stat figures {};
  if (stat(path.c_str(), &figures) == 0) return figures.st_size;
  if (errno == ENOENT) return std::nullopt;
  failed("cannot look at", path, errno);
}

std::string read_file(const std::string& path) {
  const std::int64_t size = file_size(path).value_or(0);
  std::string text(static_cast<std::size_t>(size), '\0');
  read_at(path, 0, {reinterpret_cast<unsigned char*>(text.data()), text.size()});
  return text;
}

void read_at(const std::string& path, std::int64_t position, std::span<unsigned char> bytes) {
  const Descriptor file(path, O_RDONLY);
  while (!bytes.empty()) {
    const ssize_t got = pread(file.get(), bytes.data(), bytes.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) failed("cannot read", path, errno);
    if (got == 0) fail_one(ExitCode::storage, "cannot read " + path + ": it ends at byte " + std::to_string(position));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    position += got;
  }
}

void create_file(const std::string& path) {
  Descriptor(path, O_RDWR | O_CREAT | O_TRUNC).close();
}

void check_access(const std::string& path, bool writing) {
  const Descriptor file(path, writing ? O_RDWR : O_RDONLY);
}

void reserve(const std::string& path, std::int64_t bytes) {
  const Descriptor file(path, O_RDWR);
  int error = 0;
  do {
    error = fallocate(file.get(), 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (is_full(error))
    fail_one(ExitCode::storage, "no space for " + path + ": " + std::strerror(error) + "; needed " +
                                    std::to_string(bytes) + " bytes, available " + std::to_string(free_bytes(path)));
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS) failed("cannot reserve space for", path, error);
}

void check_size_limit(std::int64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) failed("cannot ask for", "the file size limit", errno);
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < static_cast<rlim_t>(bytes))
    fail_one(ExitCode::storage, "this process may not write files that large (ulimit -f): needed " +
                                    std::to_string(bytes) + " bytes, allowed " + std::to_string(limit.rlim_cur));
}

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), descriptor_(open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) failed("cannot open", path_, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write_at(std::int64_t position, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), position);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) failed("cannot write", path_, written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    position += written;
  }
}

void OutputFile::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) failed("cannot close", path_, errno);
}

void sync_file(const std::string& path) {
  sync(path, O_RDWR);
}

void sync_folder(const std::string& folder) {
  sync(folder, O_RDONLY | O_DIRECTORY);
}

void rename_file(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) failed("cannot rename " + from + " to", to, errno);
}

bool remove_file(const std::string& path) {
  if (unlink(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  failed("cannot remove", path, errno);
}

void write_durably(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(file.get(), text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      unlink(temporary.c_str());
      failed("cannot write", temporary, error);
    }
    done += static_cast<std::size_t>(written);
  }
  if (fsync(file.get()) != 0) failed("cannot fsync", temporary, errno);
  file.close();
  rename_file(temporary, path);
}

}  // namespace fourfold::checkpoint
