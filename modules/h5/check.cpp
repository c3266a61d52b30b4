#include "h5/check.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace fourfold::h5 {

namespace {

herr_t add_line(unsigned, const H5E_error2_t* error, void* text) {
  auto& lines = *static_cast<std::string*>(text);
  std::string line = error->func_name != nullptr ? error->func_name : "?";
  line += ": ";
  line += error->desc != nullptr ? error->desc : "?";
  std::replace(line.begin(), line.end(), '\n', ' ');  // MPICH's reasons have several lines
  if (!lines.empty()) lines += "; ";
  lines += line;
  return 0;
}

}  // namespace

void prepare_library() {
  static const bool prepared = [] {
    H5dont_atexit();
    return H5open() >= 0 && H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  }();
  if (!prepared) fail_one(ExitCode::error, "the HDF5 library could not start");
}

std::string error_stack() {
  std::string lines;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, add_line, &lines);
  return lines.empty() ? "HDF5 gives no reason" : lines;
}

void failed(const char* call, const std::string& where) {
  fail_one(ExitCode::storage, std::string(call) + " failed on " + where + ": " + error_stack());
}

}  // namespace fourfold::h5
