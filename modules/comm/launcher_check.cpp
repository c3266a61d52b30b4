#include "comm/launcher_check.hpp"

#include <array>
#include <cstdlib>

namespace fourfold {

namespace {

struct Source {
  const char* launcher;
  const char* ranks;  // variable that holds the number of ranks, or a lower bound of it
  const char* rank;
};

// MPI's own launchers: what they say about one rank is believed.
constexpr std::array<Source, 3> kMpiLaunchers = {{
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"a PMI launcher (MPICH's mpiexec, srun or mpiexec of PALS)", "PMI_SIZE", "PMI_RANK"},
    {"PALS (aprun, mpiexec)", "PALS_LOCAL_SIZE", "PALS_RANKID"},
}};

std::optional<long long> number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr || *text == '\0') return {};
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (*end != '\0') return {};
  return value;
}

std::string text_or(const Environment& environment, const char* name, const char* otherwise) {
  const char* text = environment(name);
  return text != nullptr ? text : otherwise;
}

// A step of srun; the batch, interactive and extern steps have numbers from 0xfffffff0 on and are no launch.
bool in_slurm_step(const Environment& environment) {
  auto step = number(environment, "SLURM_STEP_ID");
  if (!step) step = number(environment, "SLURM_STEPID");
  return step && *step >= 0 && *step < 0xfffffff0LL;
}

}  // namespace

std::optional<LauncherClaim> launcher_claim(const Environment& environment) {
  bool one_is_meant = false;
  for (const Source& source : kMpiLaunchers) {
    const auto ranks = number(environment, source.ranks);
    if (ranks && *ranks > 1)
      return LauncherClaim{source.launcher, std::string(source.ranks) + "=" + std::to_string(*ranks),
                           static_cast<int>(*ranks), text_or(environment, source.rank, "?")};
    one_is_meant = one_is_meant || ranks == 1;
  }
  // One rank a node leaves PALS_LOCAL_SIZE at 1, but ranks above 0 exist.
  if (const auto rank = number(environment, "PALS_RANKID"); rank && *rank > 0)
    return LauncherClaim{"PALS (aprun, mpiexec)", "PALS_RANKID=" + std::to_string(*rank), static_cast<int>(*rank) + 1,
                         std::to_string(*rank)};
  if (one_is_meant || !in_slurm_step(environment)) return {};
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    const auto ranks = number(environment, name);
    if (!ranks) continue;
    if (*ranks <= 1) return {};
    return LauncherClaim{"srun", std::string(name) + "=" + std::to_string(*ranks), static_cast<int>(*ranks),
                         text_or(environment, "SLURM_PROCID", "?")};
  }
  return {};
}

bool one_rank_is_meant(const Environment& environment) {
  return text_or(environment, "FOURFOLD_SINGLE", "") == "1";
}

std::optional<std::string> launcher_mismatch(const Environment& environment, int mpi_ranks,
                                             const std::string& mpi_library, const std::string& program) {
  if (mpi_ranks > 1 || one_rank_is_meant(environment)) return {};
  const auto claim = launcher_claim(environment);
  if (!claim) return {};
  const std::string count = std::to_string(claim->ranks);
  return "the launcher and MPI disagree: " + claim->launcher + " (" + claim->variable + ") started this as process " +
         claim->rank + " of " + count + ", but the program's MPI library (" + mpi_library +
         ") was not told and made a job of one rank of each.\nTry one of\n  srun --mpi=pmix -n " + count + " " +
         program + " ...   (srun --mpi=list shows what this Slurm has: pmix, pmi2)\n  mpirun -n " + count + " " +
         program + " ...   (the mpirun that came with " + mpi_library + ")\nIf one rank is meant: FOURFOLD_SINGLE=1 " +
         program + " ...";
}

bool srun_without_pmi(const Environment& environment) {
  const auto claim = launcher_claim(environment);
  if (!claim || claim->launcher != "srun") return false;
  for (const char* name : {"PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_SIZE", "PMI_FD"})
    if (environment(name) != nullptr) return false;
  return true;
}

bool has_launcher(const Environment& environment) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "PMI_FD", "PALS_RANKID",
                           "SLURM_STEP_ID", "SLURM_STEPID"})
    if (environment(name) != nullptr) return true;
  return false;
}

}  // namespace fourfold
