# shellcheck shell=bash
# Frontier (OLCF): CPU RANKS ONLY. Fourfold has no HIP backend yet, so the MI250X GPUs stay idle: use it to try things, not
# to burn an allocation. UNTRIED: written from the site's documentation, never run there.
#
#   . jobscripts/machines/frontier/env.sh      before cmake (preset release), and in every shell that calls sbatch
#   export SBATCH_ACCOUNT=...                  yours

FOURFOLD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export FOURFOLD_ROOT

module load PrgEnv-gnu cray-hdf5-parallel cmake || return 1

export FOURFOLD_LAUNCHER=srun
# One rank a core: of 64, the site keeps 8 for itself (low-noise mode).
export FOURFOLD_RANKS_PER_NODE=56
export FOURFOLD_LAUNCH_OPTIONS="--threads-per-core=1"
