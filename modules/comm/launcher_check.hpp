// Does MPI agree with the launcher about the number of processes? When the program's MPI library and the launcher do
// not belong together, N processes start as N jobs of one rank, which all train, and write, the same thing.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace fourfold {

using Environment = std::function<const char*(const char* name)>;  // std::getenv, or a table in tests

// What the launcher says about this process.
struct LauncherClaim {
  std::string launcher;  // "srun"
  std::string variable;  // "SLURM_NTASKS=4"
  int ranks = 1;         // at least
  std::string rank;      // "2", "?" where the launcher does not say
};

// The largest claim above one rank. Nothing when no launcher claims more than one: Slurm's variables outside of a job
// step (a batch script, an interactive shell) claim nothing, nor do they where an MPI launcher says that it started one
// rank.
std::optional<LauncherClaim> launcher_claim(const Environment& environment);

// FOURFOLD_SINGLE=1
bool one_rank_is_meant(const Environment& environment);

// Nothing when all is well (also where one rank is meant). Otherwise the error:
// what was found and the two things to try.
std::optional<std::string> launcher_mismatch(const Environment& environment, int mpi_ranks,
                                             const std::string& mpi_library, const std::string& program);

// srun claims several ranks and gives them no way to meet (srun --mpi=none): no PMI or PMIx variable is there. Some MPI
// libraries meet through Slurm's own library all the same, Open MPI as Debian builds it does not.
bool srun_without_pmi(const Environment& environment);

// Whether some launcher's variables are there at all; without one MPI need not look for a daemon.
bool has_launcher(const Environment& environment);

}  // namespace fourfold
