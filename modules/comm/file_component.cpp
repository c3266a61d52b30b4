#include "comm/file_component.hpp"

#include <mpi.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace fourfold {

std::string choose_file_component(const std::string& name) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> library{};
  int length = 0;
  MPI_Get_library_version(library.data(), &length);
  if (!std::string_view(library.data()).starts_with("Open MPI"))
    return "this MPI library has no components to choose from; say auto";
  const std::string used = file_component_in_use();
  if (!used.empty() && used != name) return "this process has opened files through " + used + " already";
  // Open MPI reads it when the first file is opened.
  setenv("OMPI_MCA_io", name.c_str(), 1);
  return "";
}

std::string file_component_in_use() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::string_view start = "/mca_io_";
    const std::size_t at = line.rfind(start);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + start.size();
    return line.substr(begin, line.find('.', begin) - begin);
  }
  return "";
}

}  // namespace fourfold
