// Launcher against MPI, on tables of variables; the ledger and the scratch pool by themselves. No MPI.
#include "comm/launcher_check.hpp"
#include "comm/cpu_check.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "comm/device_choice.hpp"
#include "comm/ledger.hpp"
#include "comm/scratch.hpp"

namespace fourfold::test {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::string mismatch(const Variables& variables, int mpi_ranks = 1) {
  return launcher_mismatch(environment_of(variables), mpi_ranks, "Open MPI v4.1.4", "build/app/fourfold").value_or("");
}

TEST(LauncherCheck, NothingIsFine) {
  EXPECT_EQ(mismatch({}), "");
  EXPECT_FALSE(has_launcher(environment_of({})));
}

TEST(LauncherCheck, P50NamesLauncherLibraryAndTheFix) {
  const std::string text = mismatch({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}, {"SLURM_STEP_ID", "0"}});
  for (const char* part :
       {"srun", "SLURM_NTASKS=4", "process 2 of 4", "Open MPI v4.1.4", "srun --mpi=pmix -n 4 build/app/fourfold",
        "mpirun -n 4 build/app/fourfold", "FOURFOLD_SINGLE=1"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
}

TEST(LauncherCheck, P50EveryLauncher) {
  EXPECT_NE(mismatch({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "7"}}).find("process 7 of 8"),
            std::string::npos);
  EXPECT_NE(mismatch({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}}).find("PMI_SIZE=3"), std::string::npos);
  EXPECT_NE(mismatch({{"PALS_LOCAL_SIZE", "6"}, {"PALS_RANKID", "1"}}).find("PALS_LOCAL_SIZE=6"), std::string::npos);
  EXPECT_NE(mismatch({{"PALS_LOCAL_SIZE", "1"}, {"PALS_RANKID", "1"}}).find("PALS_RANKID=1"), std::string::npos);
  EXPECT_NE(mismatch({{"SLURM_STEPID", "3"}, {"SLURM_STEP_NUM_TASKS", "2"}}).find("SLURM_STEP_NUM_TASKS=2"),
            std::string::npos);
}

TEST(LauncherCheck, AgreementIsFine) {
  EXPECT_EQ(mismatch({{"OMPI_COMM_WORLD_SIZE", "4"}}, 4), "");
  EXPECT_EQ(mismatch({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}}, 4), "");
  EXPECT_EQ(mismatch({{"PMI_SIZE", "1"}}), "");
  EXPECT_EQ(mismatch({{"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}}), "");
}

// A batch script, an interactive shell and the extern step hold the job's variables, but started nothing.
TEST(LauncherCheck, SlurmOutsideOfAStep) {
  EXPECT_EQ(mismatch({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}), "");
  for (const char* step : {"4294967290", "4294967291", "4294967292", ""})
    EXPECT_EQ(mismatch({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", step}}), "") << step;
  EXPECT_EQ(mismatch({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}), "");
}

// mpirun -n 1 inside a step of four tasks.
TEST(LauncherCheck, TheMpiLauncherIsBelievedAboutOne) {
  EXPECT_EQ(mismatch({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), "");
}

TEST(LauncherCheck, SrunWithoutPmi) {
  Variables variables = {{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_TRUE(srun_without_pmi(environment_of(variables)));
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"}) {
    Variables with = variables;
    with[name] = "2";
    EXPECT_FALSE(srun_without_pmi(environment_of(with))) << name;
  }
  variables.erase("SLURM_STEP_ID");
  EXPECT_FALSE(srun_without_pmi(environment_of(variables)));
}

TEST(LauncherCheck, OneRankOnPurpose) {
  EXPECT_EQ(mismatch({{"OMPI_COMM_WORLD_SIZE", "4"}, {"FOURFOLD_SINGLE", "1"}}), "");
  EXPECT_NE(mismatch({{"OMPI_COMM_WORLD_SIZE", "4"}, {"FOURFOLD_SINGLE", "0"}}), "");
}

TEST(LauncherCheck, NonsenseClaimsNothing) {
  EXPECT_EQ(mismatch({{"SLURM_NTASKS", "4(x2)"}, {"SLURM_STEP_ID", "0"}}), "");
  EXPECT_EQ(mismatch({{"PMI_SIZE", ""}}), "");
}

TEST(CommLedger, SumsAndReport) {
  CommLedger ledger;
  const CommKey forward{Operation::all_gather, "depth", Phase::forward};
  ledger.record(forward, 100, 4, 75, 3, false);
  ledger.record(forward, 100, 8, 75, 3, true);
  ledger.record({Operation::all_reduce, "data", Phase::gradient}, 10, 8, 10, 1, false);
  ledger.add_seconds(forward, 0.25);
  const CommSums sums = ledger.sum(Operation::all_gather, "depth", Phase::forward);
  EXPECT_EQ(sums.calls, 2);
  EXPECT_EQ(sums.elements, 200);
  EXPECT_EQ(sums.bytes, 1200);
  EXPECT_EQ(sums.ring_elements, 150);
  EXPECT_EQ(sums.ring_bytes, 900);
  EXPECT_EQ(sums.bytes_between_nodes, 600);
  EXPECT_EQ(sums.seconds, 0.25);
  EXPECT_EQ(ledger.sum(Operation::all_gather, "depth", Phase::backward).calls, 0);
  EXPECT_EQ(ledger.sum(Operation::all_gather, "data", Phase::forward).calls, 0);
  EXPECT_EQ(ledger.group_sum("depth").calls, 2);
  EXPECT_EQ(ledger.total().ring_bytes, 980);
  const std::string report = ledger.report();
  EXPECT_EQ(std::count(report.begin(), report.end(), '\n'), 3);
  EXPECT_NE(report.find("all_gather"), std::string::npos);
  ledger.clear();
  EXPECT_EQ(ledger.total().calls, 0);
}

TEST(CommLedger, EveryNameIsThere) {
  std::set<std::string_view> names;
  for (int i = 0; i < kOperations; ++i) names.insert(operation_name(static_cast<Operation>(i)));
  for (int i = 0; i < kPhases; ++i) names.insert(phase_name(static_cast<Phase>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kOperations + kPhases));
  EXPECT_FALSE(names.contains(""));
}

TEST(DeviceChoice, P51OneEachOrARefusalThatSaysWhatToType) {
  EXPECT_EQ(choose_device(0, 4, 4, false).device, 0);
  EXPECT_EQ(choose_device(3, 4, 4, false).device, 3);
  EXPECT_EQ(choose_device(3, 4, 8, false).device, 3);
  EXPECT_EQ(choose_device(3, 4, 1, false).device, 0);  // bound by the launcher, or shared: the ids tell
  for (const int visible : {0, -1}) {
    const DeviceChoice none = choose_device(0, 1, visible, true);
    EXPECT_EQ(none.device, -1);
    EXPECT_NE(none.refusal.find("no CUDA device"), std::string::npos);
  }
  EXPECT_EQ(choose_device(1, 4, 2, false).device, 1);
  const DeviceChoice refused = choose_device(2, 4, 2, false);
  EXPECT_EQ(refused.device, -1);
  EXPECT_NE(refused.refusal.find("4 ranks on this node see 2 GPUs"), std::string::npos);
  EXPECT_NE(refused.refusal.find("srun --ntasks-per-node=N"), std::string::npos);
  EXPECT_NE(refused.refusal.find("FOURFOLD_SHARE_GPUS=1"), std::string::npos);
  EXPECT_EQ(choose_device(2, 4, 2, true).device, 0);
  EXPECT_EQ(choose_device(3, 4, 2, true).device, 1);
}

TEST(DeviceChoice, P51TwoRanksOnOneAreSeen) {
  EXPECT_EQ(shared_device({"node 0, 0000:01:00.0", "node 0, 0000:02:00.0", "node 1, 0000:01:00.0"}), "");
  EXPECT_EQ(shared_device({}), "");
  const std::string shared = shared_device({"node 0, 0000:01:00.0", "node 1, 0000:01:00.0", "node 1, 0000:01:00.0"});
  EXPECT_EQ(shared.rfind("ranks 1 and 2 would share one GPU (node 1, 0000:01:00.0)", 0), 0u) << shared;
}

TEST(ScratchPool, KeepsAndGrows) {
  ScratchPool pool;
  std::int64_t asked = 0;
  pool.set_allocator([&](std::int64_t bytes) {
    asked += bytes;
    return std::shared_ptr<void>(::operator new(static_cast<std::size_t>(bytes)),
                                 [](void* p) { ::operator delete(p); });
  });
  void* first = nullptr;
  {
    const auto small = pool.take(100);
    const auto other = pool.take(50);
    first = small.as<void>();
    EXPECT_NE(first, other.as<void>());
    EXPECT_EQ(pool.take(0).as<char>(), nullptr);
  }
  EXPECT_EQ(pool.allocations(), 2);
  { EXPECT_EQ(pool.take(60).as<void>(), first); }  // the smallest that is large enough
  EXPECT_EQ(pool.allocations(), 2);
  { const auto large = pool.take(1000); }  // in place of the buffer of 100
  EXPECT_EQ(pool.allocations(), 3);
  EXPECT_EQ(asked, 1150);
  const auto one = pool.take(50);
  const auto two = pool.take(100);
  EXPECT_EQ(pool.allocations(), 3);
  pool.set_allocator({});
  const auto three = pool.take(1);
  EXPECT_EQ(asked, 1150);
  EXPECT_EQ(pool.allocations(), 4);
}

// P75: two ranks pinned to core 0 of a host with eight are named, with the host and what to type.
TEST(CpuCheck, P75RanksPiledOnOneCore) {
  const CpuPlace first{"node7", {0}, 8, 1};
  const std::string fault = shared_cores({{"node6", {0}, 8, 1}, first, first, {"node7", {1}, 8, 1}});
  EXPECT_NE(fault.find("rank(s) 1, 2 on node7"), std::string::npos) << fault;
  EXPECT_NE(fault.find("core(s) 0 alone, of 8"), std::string::npos) << fault;
  EXPECT_NE(fault.find("mpirun --bind-to none"), std::string::npos) << fault;
  EXPECT_NE(fault.find("FOURFOLD_SHARE_CORES=1"), std::string::npos) << fault;
}

TEST(CpuCheck, P75MoreThreadsThanCores) {
  EXPECT_EQ(shared_cores({{"a", {0, 1}, 8, 2}, {"a", {2, 3}, 8, 2}}), "");
  EXPECT_NE(shared_cores({{"a", {0, 1}, 8, 2}, {"a", {2, 3}, 8, 3}}).find("rank(s) 1 on a compute with 3 thread(s)"),
            std::string::npos);
}

// Not bound: more ranks than cores are meant. One core is all there is: the same.
TEST(CpuCheck, P75UnboundRanksMayBeMoreThanCores) {
  const CpuPlace two{"a", {0, 1}, 2, 1};
  EXPECT_EQ(shared_cores(std::vector<CpuPlace>(8, two)), "");
  const CpuPlace one{"a", {0}, 1, 1};
  EXPECT_EQ(shared_cores({one, one}), "");
}

}  // namespace
}  // namespace fourfold::test
