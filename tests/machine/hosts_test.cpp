// Slurm's lists, expanded by our own arithmetic.
#include "machine/hosts.hpp"

#include <gtest/gtest.h>

#include <map>

namespace fourfold {
namespace {

using Names = std::vector<std::string>;

TEST(HostList, Expands) {
  EXPECT_EQ(expand_host_list("node7"), (Names{"node7"}));
  EXPECT_EQ(expand_host_list("nid[001-003,007],login1"), (Names{"nid001", "nid002", "nid003", "nid007", "login1"}));
  EXPECT_EQ(expand_host_list("n[8-11]"), (Names{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(expand_host_list("n[098-101]"), (Names{"n098", "n099", "n100", "n101"}));
  EXPECT_EQ(expand_host_list("x[1-2]c[0,3]b"), (Names{"x1c0b", "x1c3b", "x2c0b", "x2c3b"}));
}

TEST(HostList, RefusesWhatIsNone) {
  for (const char* text : {"", "a,,b", "n[", "n]", "n[]", "n[3-1]", "n[a-b]", "n[1-]", "n[-1]", "n[1-9999999999]", ","})
    EXPECT_FALSE(expand_host_list(text)) << text;
  EXPECT_FALSE(expand_host_list("n[0-1023]m[0-1024]"));
  EXPECT_EQ(expand_host_list("n[0-1023]m[0-1023]")->size(), 1u << 20);
}

TEST(TaskCounts, Expand) {
  EXPECT_EQ(expand_task_counts("4(x3),2"), (std::vector<std::int64_t>{4, 4, 4, 2}));
  EXPECT_EQ(expand_task_counts("1"), (std::vector<std::int64_t>{1}));
  for (const char* text : {"", "4(x", "4(x)", "(x3)", "4x3", "4(x3", "-4", "4(x9999999999)"})
    EXPECT_FALSE(expand_task_counts(text)) << text;
}

Names hosts_in(const std::map<std::string, std::string>& environment, std::int64_t ranks) {
  return slurm_hosts(
      [&](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      ranks);
}

TEST(SlurmHosts, OfEveryRank) {
  std::map<std::string, std::string> slurm{{"SLURM_JOB_NODELIST", "a[1-3]"}, {"SLURM_TASKS_PER_NODE", "2(x2),1"}};
  EXPECT_EQ(hosts_in(slurm, 5), (Names{"a1", "a1", "a2", "a2", "a3"}));
  EXPECT_EQ(hosts_in(slurm, 4), Names{});  // another job's size
  slurm["SLURM_DISTRIBUTION"] = "cyclic";
  EXPECT_EQ(hosts_in(slurm, 5), (Names{"a1", "a2", "a3", "a1", "a2"}));
  slurm["SLURM_DISTRIBUTION"] = "plane=2";
  EXPECT_EQ(hosts_in(slurm, 5), Names{});
  EXPECT_EQ(hosts_in({{"SLURM_JOB_NODELIST", "a1"}}, 1), Names{});
  EXPECT_EQ(hosts_in({{"SLURM_JOB_NODELIST", "a["}, {"SLURM_TASKS_PER_NODE", "1"}}, 1), Names{});
  EXPECT_EQ(hosts_in({{"SLURM_JOB_NODELIST", "a[1-2]"}, {"SLURM_TASKS_PER_NODE", "1"}}, 1), Names{});
}

}  // namespace
}  // namespace fourfold
