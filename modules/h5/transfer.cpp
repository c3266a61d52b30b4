#include "h5/transfer.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.hpp"
#include "h5/check.hpp"
#include "h5/selection.hpp"
#include "h5/types.hpp"

namespace fourfold::h5 {

namespace {

struct Cause {
  std::uint32_t bit;
  const char* text;
};

constexpr std::array<Cause, 7> kCauses{{
    {H5D_MPIO_SET_INDEPENDENT, "independent transfer was asked for"},
    {H5D_MPIO_DATATYPE_CONVERSION, "data type conversion"},
    {H5D_MPIO_DATA_TRANSFORMS, "data transform"},
    {H5D_MPIO_MPI_OPT_TYPES_ENV_VAR_DISABLED, "HDF5_MPI_OPT_TYPES forbids MPI's derived types"},
    {H5D_MPIO_NOT_SIMPLE_OR_SCALAR_DATASPACES, "data space neither simple nor scalar"},
    {H5D_MPIO_NOT_CONTIGUOUS_OR_CHUNKED_DATASET, "layout neither contiguous nor chunked"},
    {H5D_MPIO_PARALLEL_FILTERED_WRITES_DISABLED, "filtered writes are disabled"},
}};

Dataspace file_selection(const Dataset& dataset, const Shard& shard, Range local) {
  Dataspace space(check(H5Dget_space(dataset.id()), "H5Dget_space", dataset.where()), dataset.where());
  if (local.empty()) {
    check(H5Sselect_none(space.id()), "H5Sselect_none", dataset.where());
    return space;
  }
  if (shard.shape.empty()) return space;  // a scalar: all of it
  H5S_seloper_t operation = H5S_SELECT_SET;
  for (const Box& box : boxes_of(shard, local)) {
    std::vector<hsize_t> start;
    std::vector<hsize_t> count;
    for (const Range& range : box) {
      start.push_back(static_cast<hsize_t>(range.begin));
      count.push_back(static_cast<hsize_t>(range.size()));
    }
    check(H5Sselect_hyperslab(space.id(), operation, start.data(), nullptr, count.data(), nullptr),
          "H5Sselect_hyperslab", dataset.where());
    operation = H5S_SELECT_OR;
  }
  return space;
}

Dataspace memory_selection(std::int64_t elements, const std::string& where) {
  const auto count = static_cast<hsize_t>(std::max<std::int64_t>(elements, 1));
  Dataspace space(check(H5Screate_simple(1, &count, nullptr), "H5Screate_simple", where), where);
  if (elements == 0) check(H5Sselect_none(space.id()), "H5Sselect_none", where);
  return space;
}

// Calls one(type, memory space, file space, properties, byte offset in the data) for each round.
template <class One>
std::string transfer(const Dataset& dataset, const Shard& shard, Range local, Rounds rounds, One&& one) {
  FOURFOLD_ASSERT(shard.shape == dataset.shape(), dataset.where() + ": the shard is of another tensor");
  FOURFOLD_ASSERT(rounds_needed(local.size(), dataset.type(), rounds.limit_bytes) <= rounds.count,
                  dataset.where() + ": too few rounds");
  if (dataset.bytes() == 0) return "";  // HDF5 1.10 cannot write nothing at no address
  const std::string& where = dataset.where();
  const PropertyList properties(check(H5Pcreate(H5P_DATASET_XFER), "H5Pcreate", where), where);
  if (dataset.parallel()) check(H5Pset_dxpl_mpio(properties.id(), H5FD_MPIO_COLLECTIVE), "H5Pset_dxpl_mpio", where);
  const std::int64_t most = rounds.limit_bytes / element_bytes(dataset.type());
  std::string cause;
  for (std::int64_t round = 0; round < rounds.count; ++round) {
    const std::int64_t begin = std::min(local.begin + round * most, local.end);
    const Range now{begin, std::min(begin + most, local.end)};
    const Dataspace in_file = file_selection(dataset, shard, now);
    const Dataspace in_memory = memory_selection(now.size(), where);
    one(stored_type(dataset.type()), in_memory.id(), in_file.id(), properties.id(),
        (begin - local.begin) * element_bytes(dataset.type()));
    if (dataset.parallel() && cause.empty()) cause = not_collective_cause(properties.id(), where);
  }
  return cause;
}

}  // namespace

std::int64_t rounds_needed(std::int64_t elements, ElementType type, std::int64_t limit_bytes) {
  FOURFOLD_ASSERT(limit_bytes >= 8 && limit_bytes < std::int64_t{1} << 31, "MPI's counts are 32-bit");
  const std::int64_t most = limit_bytes / element_bytes(type);
  return std::max<std::int64_t>(1, (elements + most - 1) / most);
}

std::string write_shard(const Dataset& dataset, const Shard& shard, Range local, const void* data, Rounds rounds) {
  const char none = 0;  // HDF5 refuses a null pointer even with nothing selected
  const auto* bytes = data != nullptr ? static_cast<const char*>(data) : &none;
  return transfer(dataset, shard, local, rounds, [&](Id type, Id memory, Id file, Id properties, std::int64_t first) {
    check(H5Dwrite(dataset.id(), type, memory, file, properties, data != nullptr ? bytes + first : bytes), "H5Dwrite",
          dataset.where());
  });
}

std::string read_shard(const Dataset& dataset, const Shard& shard, Range local, void* data, Rounds rounds) {
  char none = 0;
  auto* bytes = data != nullptr ? static_cast<char*>(data) : &none;
  return transfer(dataset, shard, local, rounds, [&](Id type, Id memory, Id file, Id properties, std::int64_t first) {
    check(H5Dread(dataset.id(), type, memory, file, properties, data != nullptr ? bytes + first : bytes), "H5Dread",
          dataset.where());
  });
}

std::string not_collective_cause(Id transfer_properties, const std::string& where) {
  std::uint32_t local = 0;
  std::uint32_t global = 0;
  check(H5Pget_mpio_no_collective_cause(transfer_properties, &local, &global), "H5Pget_mpio_no_collective_cause",
        where);
  std::string text;
  for (const Cause& cause : kCauses)
    if ((global & cause.bit) != 0) text += (text.empty() ? "" : ", ") + std::string(cause.text);
  if (!text.empty() || global != 0) return text.empty() ? "cause " + std::to_string(global) : text;
  H5D_mpio_actual_io_mode_t mode = H5D_MPIO_NO_COLLECTIVE;
  check(H5Pget_mpio_actual_io_mode(transfer_properties, &mode), "H5Pget_mpio_actual_io_mode", where);
  return mode == H5D_MPIO_NO_COLLECTIVE ? "HDF5 gives no cause" : "";
}

}  // namespace fourfold::h5
