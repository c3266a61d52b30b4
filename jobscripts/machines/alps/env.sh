# shellcheck shell=bash
# Alps (CSCS): nodes of 4 GH200, 72 cores each, Cray MPICH from a uenv. UNTRIED: written from the site's documentation,
# never run there, and no part of Fourfold has run on a GPU yet (README, "GPUs").
#
#   uenv start --view=default prgenv-gnu/24.11:v2     first: it has compilers, MPI, HDF5, CUDA, NCCL; jobs inherit it
#   . jobscripts/machines/alps/env.sh                 before cmake, and in every shell that calls sbatch
#   export SBATCH_ACCOUNT=...                         yours

FOURFOLD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export FOURFOLD_ROOT

command -v mpicc > /dev/null || {
  echo "alps/env.sh: no MPI here; type: uenv start --view=default prgenv-gnu/24.11:v2" >&2
  return 1
}
export SBATCH_GPUS_PER_NODE=4
export MPICH_GPU_SUPPORT_ENABLED=1

export FOURFOLD_LAUNCHER=srun
export FOURFOLD_PROGRAM=$FOURFOLD_ROOT/build-cuda/app/fourfold
# One rank a GPU, on the 72 cores of its chip; it sees its own GPU alone.
export FOURFOLD_RANKS_PER_NODE=4
export FOURFOLD_LAUNCH_OPTIONS="--gpus-per-task=1 --cpus-per-task=72"
