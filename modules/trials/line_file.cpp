#include "trials/line_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "base/files.hpp"

namespace fourfold::trials {

namespace {

[[noreturn]] void storage_error(const std::string& path, const std::string& what) {
  fail_one(ExitCode::storage, path + ": " + what);
}

}  // namespace

std::string whole_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) storage_error(path, "cannot be read");
  const std::size_t end = text.rfind('\n');
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text;
}

LineFile::LineFile(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) storage_error(path_, std::strerror(errno));
  // File systems without locks say so by another error: there nobody is kept out.
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    storage_error(path_, "another job is writing it: one job makes a part of a study at a time");
  }
  const auto whole = static_cast<off_t>(whole_lines(path_).size());
  if (ftruncate(descriptor_, whole) != 0) storage_error(path_, std::strerror(errno));
  if (whole == 0) sync_folder_of(path_);
}

LineFile::~LineFile() {
  close(descriptor_);
}

void LineFile::add(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) storage_error(path_, std::strerror(errno));
    done += static_cast<std::size_t>(written);
  }
  if (fsync(descriptor_) != 0 && errno != EINVAL) storage_error(path_, std::strerror(errno));
}

}  // namespace fourfold::trials
