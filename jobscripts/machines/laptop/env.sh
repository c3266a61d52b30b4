# shellcheck shell=bash
# One machine without Slurm: bash jobscripts/train.sbatch DECK. TRIED: Debian 12, two cores, Open MPI 4.1.4.
# Sourced by jobscripts/steps.sh too.

FOURFOLD_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
export FOURFOLD_ROOT

export FOURFOLD_LAUNCHER=mpirun
# Open MPI as root, with more ranks than cores, without a notice about exit code 75. No other launcher looks at these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_orte_execute_quiet=1
