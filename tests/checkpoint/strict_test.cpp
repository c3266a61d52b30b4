// Transfers that HDF5 does not make collectively are said, and an error when strict. HDF5 reads this variable at
// its first file, so this is a program of its own.
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/file_component.hpp"
#include "support.hpp"

namespace fourfold::checkpoint {
namespace {

using namespace test;

// Open MPI keeps to the component of its first file.
TEST(Strict, TheFileComponentIsChosenOnce) {
  ASSERT_EQ(file_component_in_use(), "");
  const std::string problem = choose_file_component("ompio");
  if (has(problem, "no components")) GTEST_SKIP() << "NOT TESTED: this MPI library has no components";
  ASSERT_EQ(problem, "");
  setenv("HDF5_MPI_OPT_TYPES", "0", 1);  // for the test below
  const Folder folder;
  const Part part(small_model(), all_data(), world().rank(), 1);
  save(world(), folder.path(), 1, part.shards(), {}, {});
  EXPECT_EQ(file_component_in_use(), "ompio");
  EXPECT_EQ(choose_file_component("ompio"), "");
  EXPECT_TRUE(has(choose_file_component("romio321"), "has opened files through ompio already"));
  Part read(small_model(), all_data(), world().rank(), 2);
  EXPECT_TRUE(load_newest(world(), folder.path(), read.shards()).loaded);
  EXPECT_TRUE(read == part);
}

TEST(Strict, P18IndependentTransfersAreSaidOrRefused) {
  setenv("HDF5_MPI_OPT_TYPES", "0", 1);
  const Folder folder;
  const std::vector<Tensor> model{{"/params/w", ElementType::fp32, {8, 6}}};
  const DenseShape columns{1, 1, 1, world().size()};
  const Part part(model, columns, world().rank(), 1);
  SaveOptions options = strict();
  const auto message =
      agreed_error([&] { save(world(), folder.path(), 1, part.shards(), {}, options); }, ExitCode::storage);
  EXPECT_TRUE(has(message, "/params/w was not written collectively: HDF5_MPI_OPT_TYPES")) << message;
  EXPECT_FALSE(find_newest(world(), folder.path()).newest);

  options.strict_collective = false;
  const SaveReport report = save(world(), folder.path(), 1, part.shards(), {}, options);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_TRUE(has(report.notes[0], "/params/w was not written collectively"));

  Part read(model, columns, world().rank(), 2);
  const Found found = find_newest(world(), folder.path());
  ASSERT_TRUE(found.newest);
  const LoadReport loaded = load(world(), *found.newest, read.shards());
  EXPECT_TRUE(read == part);
  ASSERT_EQ(loaded.notes.size(), 1u);
  LoadOptions refuse;
  refuse.strict_collective = true;
  EXPECT_TRUE(has(agreed_error([&] { load(world(), *found.newest, read.shards(), refuse); }, ExitCode::storage),
                  "was not read collectively"));
}

}  // namespace
}  // namespace fourfold::checkpoint
