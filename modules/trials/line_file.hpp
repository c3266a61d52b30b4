// A file to which one process adds whole lines, each on the disk before the next thing happens.
#pragma once

#include <string>
#include <string_view>

namespace fourfold::trials {

class LineFile {
 public:
  // Opens `path`, made where it is missing; a last line that a killed process left unfinished is cut off. Errors
  // (Error, storage, one rank): the system's; another process has it open.
  explicit LineFile(std::string path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // `line` without its end.
  void add(std::string_view line);

 private:
  std::string path_;
  int descriptor_ = -1;
};

// The whole lines of a file; what a killed process left unfinished is left out.
std::string whole_lines(const std::string& path);

}  // namespace fourfold::trials
