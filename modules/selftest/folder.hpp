// The file system that a run writes to. All collective; findings are rank 0's.
#pragma once

#include <memory>
#include <string>

#include "comm/launch.hpp"
#include "selftest/report.hpp"

namespace fourfold::selftest {

// A folder of its own inside the one that is tried; it goes with this object, and the folder itself if it was made for
// it.
class TrialFolder {
 public:
  // "folder": every rank writes a file in it, and reads what a rank of another node wrote. Null where that fails.
  static std::unique_ptr<TrialFolder> make(const Launch& launch, const std::string& folder, Report& report);
  ~TrialFolder();
  TrialFolder(const TrialFolder&) = delete;
  TrialFolder& operator=(const TrialFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path_of(int rank) const;
  // "files": rates of writing and reading, fsync, rename.
  void look_at_files(Report& report) const;
  // "file locks": one rank's keep the others out.
  void look_at_locks(Report& report) const;
  // "parallel HDF5": all ranks write and read one file.
  void look_at_hdf5(Report& report) const;

 private:
  TrialFolder(const Launch& launch, std::string folder, std::string path);

  const Launch& launch_;
  std::string folder_, path_;
};

// The lines of all this where there is no such folder.
void skip_files(Report& report);

}  // namespace fourfold::selftest
