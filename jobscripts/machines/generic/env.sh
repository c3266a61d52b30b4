# shellcheck shell=bash
# A cluster with Slurm, CPUs, and an MPI that srun can start. TRIED: Debian 12, Slurm 22.05 with PMIx 4, Open MPI 4.1.4,
# 1, 2 and 4 virtual nodes on one host (tests/slurm). To port: copy the folder, change what differs.
#
#   . jobscripts/machines/generic/env.sh      before cmake, and in every shell that calls sbatch; jobs inherit it

FOURFOLD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export FOURFOLD_ROOT

# Modules that the program was built with:   module load gcc openmpi hdf5
# sbatch's options, as variables:            export SBATCH_ACCOUNT=... SBATCH_PARTITION=... SBATCH_CONSTRAINT=...
export FOURFOLD_LAUNCHER=srun
# One rank a core; with threads: OMP_NUM_THREADS=8, and a rank has 8 cores.
