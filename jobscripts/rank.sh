#!/usr/bin/env bash
# What the launcher starts on every rank, in place of the program.
#
#   rank.sh AGAIN PROGRAM ARGUMENTS...   runs the program; exit code 75 becomes 0, and rank 0 makes the file AGAIN
#   rank.sh --probe FOLDER               prints a line about this rank: rank, node, PMI, cores, GPUs, whether it sees FOLDER
#
# Why 75 is not passed on: a launcher that ends the others when one rank has a bad exit code, which is wanted where a
# rank crashed, would kill ranks that are about to leave with 75 themselves, and return 143 or 137.
set -u
rank=${PMIX_RANK:-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-0}}}}

if [ "$1" = --probe ]; then
  pmi=none
  if [ -n "${PMIX_RANK-}" ]; then
    pmi=pmix
  elif [ -n "${PMI_RANK-}${PMI_FD-}${PALS_RANKID-}" ]; then
    pmi=pmi
  fi
  folder=unseen
  [ -d "$2" ] && folder=seen
  echo "rank=$rank node=${SLURMD_NODENAME:-$(uname -n)} host=$(uname -n) pmi=$pmi" \
    "cores=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) gpus=${CUDA_VISIBLE_DEVICES:-all} folder=$folder"
  exit 0
fi

# The signals are the program's: this shell has to outlive it. SIGUSR1 and SIGUSR2 are ignored, and so they are by the
# program until it listens to them: one that comes while it starts would end it.
trap : TERM INT
trap '' USR1 USR2
again=$1
shift
"$@"
status=$?
[ $status -eq 75 ] || exit $status
[ "$rank" != 0 ] || : > "$again" || exit 75
exit 0
