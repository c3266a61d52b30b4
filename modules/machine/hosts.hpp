// Which host a rank runs on, from names as Slurm writes them. Arithmetic on text: nobody is asked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fourfold {

// "nid[001-003,007],login1" -> nid001 nid002 nid003 nid007 login1; several brackets in a name multiply, the last one
// running fastest. Nothing where the text is not such a list or names more than 2^20 hosts.
std::optional<std::vector<std::string>> expand_host_list(const std::string& text);

// "4(x3),2" -> 4 4 4 2. Nothing where the text is not such a list.
std::optional<std::vector<std::int64_t>> expand_task_counts(const std::string& text);

// Host of every rank of an allocation, from the variables of Slurm (SLURM_JOB_NODELIST, SLURM_TASKS_PER_NODE,
// SLURM_DISTRIBUTION: nodes filled one after the other, or dealt out with "cyclic"). Empty outside of an allocation,
// for another distribution, and where the allocation has not `ranks` tasks.
using Variables = std::function<const char*(const char* name)>;  // std::getenv, or a table in tests
std::vector<std::string> slurm_hosts(const Variables& variables, std::int64_t ranks);

}  // namespace fourfold
