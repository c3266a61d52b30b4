// The settings of HDF5 and MPI-IO reach MPI's calls.
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <map>

#include "support.hpp"

namespace {

// What HDF5 asks of MPI-IO, in this process.
struct Asked {
  std::map<std::string, std::string> hints;  // of the last file that was opened
  int independent_writes = 0, collective_writes = 0;
  std::int64_t most_bytes = 0;  // of one collective write
};
Asked asked;

}  // namespace

extern "C" {

int MPI_File_open(MPI_Comm comm, const char* name, int mode, MPI_Info info, MPI_File* file) {
  asked.hints.clear();
  int keys = 0;
  if (info != MPI_INFO_NULL) MPI_Info_get_nkeys(info, &keys);
  for (int i = 0; i < keys; ++i) {
    char key[MPI_MAX_INFO_KEY + 1];
    char value[MPI_MAX_INFO_VAL + 1];
    int there = 0;
    MPI_Info_get_nthkey(info, i, key);
    MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &there);
    asked.hints[key] = value;
  }
  return PMPI_File_open(comm, name, mode, info, file);
}

int MPI_File_write_at(MPI_File file, MPI_Offset at, const void* data, int count, MPI_Datatype type,
                      MPI_Status* status) {
  ++asked.independent_writes;
  return PMPI_File_write_at(file, at, data, count, type, status);
}

int MPI_File_write_at_all(MPI_File file, MPI_Offset at, const void* data, int count, MPI_Datatype type,
                          MPI_Status* status) {
  ++asked.collective_writes;
  int bytes = 0;
  MPI_Type_size(type, &bytes);
  asked.most_bytes = std::max(asked.most_bytes, std::int64_t{count} * bytes);
  return PMPI_File_write_at_all(file, at, data, count, type, status);
}
}

namespace fourfold::checkpoint {
namespace {

using namespace test;

// Also: no transfer is larger than its limit, and the data of asynchronous saves do not pass MPI at all.
TEST(Settings, ReachMpi) {
  const Folder folder;
  const Part part(small_model(), {1, 1, 1, world().size()}, world().rank(), 1);
  SaveOptions options = strict();
  options.transfer_bytes = 65536;
  options.file.hints = {{"cb_nodes", "1"}, {"striping_unit", "65536"}};
  asked = {};
  save_in_mode(false, folder.path(), 1, part.shards(), options);
  EXPECT_EQ(asked.hints["cb_nodes"], "1");
  EXPECT_EQ(asked.hints["striping_unit"], "65536");
  EXPECT_EQ(asked.independent_writes, 0);
  EXPECT_GT(asked.collective_writes, 8);  // one a transfer, and empty ones
  EXPECT_EQ(asked.most_bytes, 65536);
  options.file.collective_metadata = false;
  asked = {};
  save_in_mode(false, folder.path(), 2, part.shards(), options);
  int independent = asked.independent_writes;
  all_reduce_max<int>(world(), {&independent, 1}, Phase::control);
  EXPECT_GT(independent, 0);
  options.file = {};
  asked = {};
  save_in_mode(true, folder.path(), 3, part.shards(), options);
  EXPECT_TRUE(asked.hints.empty());
  EXPECT_EQ(asked.independent_writes, 0);
  EXPECT_LT(asked.most_bytes, 16384);
}

}  // namespace
}  // namespace fourfold::checkpoint
