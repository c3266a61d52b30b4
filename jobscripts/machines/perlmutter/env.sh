# shellcheck shell=bash
# Perlmutter (NERSC), GPU nodes: 64 cores, 4 A100, Cray MPICH. UNTRIED: written from the site's documentation, never run
# there, and no part of Fourfold has run on a GPU yet (README, "GPUs").
#
#   . jobscripts/machines/perlmutter/env.sh      before cmake, and in every shell that calls sbatch; jobs inherit it
#   export SBATCH_ACCOUNT=... SBATCH_QOS=debug   yours

FOURFOLD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export FOURFOLD_ROOT

module load PrgEnv-gnu cudatoolkit craype-accel-nvidia80 cray-hdf5-parallel cmake || return 1
export SBATCH_CONSTRAINT=gpu SBATCH_GPUS_PER_NODE=4
export MPICH_GPU_SUPPORT_ENABLED=1

export FOURFOLD_LAUNCHER=srun
export FOURFOLD_PROGRAM=$FOURFOLD_ROOT/build-cuda/app/fourfold
# One rank a GPU, on a quarter of the node's 128 hardware threads. A rank sees all GPUs and takes the one of its place.
export FOURFOLD_RANKS_PER_NODE=4
export FOURFOLD_LAUNCH_OPTIONS="--gpus-per-node=4 --gpu-bind=none --cpus-per-task=32"
