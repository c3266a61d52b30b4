#!/usr/bin/env bash
# selftest_command.sh FOURFOLD FOURFOLD_FAULTS LAUNCHER: the self-test (P54) passes where all is well, on any number of ranks
# and on a deck's grid. A folder that is none, a full disk, ranks on one core, a sum that is wrong, a rank that hangs, bits that
# turn over and locks that are refused are each found, named with what to type, and leave the other lines well. P50: N jobs of
# one rank are refused.
set -u
fourfold=$1 faults=$2 launcher=$3
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_rmaps_base_oversubscribe=1
work=$(mktemp -d)
trap 'umount -l "$work/disk" 2> /dev/null; rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $*"
  cat "$work/log"
  failures=$((failures + 1))
}
options=()
if "$launcher" --version 2>&1 | grep -q "Open MPI\|OpenRTE"; then options=(-q --oversubscribe --bind-to none); fi
program=$fourfold
cores=$(env -u OMP_NUM_THREADS nproc)
# launch N ARGUMENTS...: from $work; output in $work/log, exit code in $code.
launch() {
  local n=$1
  shift
  (cd "$work" && exec timeout 120 "$launcher" "${options[@]+"${options[@]}"}" -n "$n" "$program" selftest "$@" > log 2>&1 < /dev/null)
  code=$?
}
has() { grep -qE -- "$1" "$work/log" || fail "$2: no line like '$1'"; }
# failed CODE ITEM WHAT: the exit code, and that this item alone failed, and says what to type.
failed() {
  [ "$code" = "$1" ] || fail "$3: exit code $code, wanted $1"
  [ "$(grep -c ' FAILED ' "$work/log")" = 1 ] || fail "$3: not this line alone"
  has "^$2 +FAILED " "$3"
  has '^ +type: .' "$3"
  has "^selftest: .* 1 FAILED: $2; exit code $1\$" "$3"
}

# 1. All is well: every line, under a minute, nothing left behind.
for n in 1 2 4 8; do
  mkdir "$work/folder"
  begin=$SECONDS
  launch $n --folder folder
  [ "$code" = 0 ] || fail "$n ranks: exit code $code"
  [ $((SECONDS - begin)) -lt 60 ] || fail "$n ranks: $((SECONDS - begin)) s"
  has "^ranks +ok +$n ranks? on 1 node" "$n ranks"
  for item in launcher MPI folder files 'file locks' 'parallel HDF5'; do has "^$item +ok " "$n ranks"; done
  has '^devices +(-|note) +none: this program computes on cores|^devices +ok ' "$n ranks"
  has '^selftest: [0-9]+ things looked at in [0-9.]+ s: all well$' "$n ranks"
  [ -z "$(ls "$work/folder")" ] || fail "$n ranks: left behind: $(ls "$work/folder")"
  if [ $n = 1 ]; then
    has '^by messages +- +one rank' "1 rank"
  else
    has "^all $n by messages +ok +latency [0-9.e+-]+ us; all_reduce [0-9.]+, all_gather [0-9.]+, reduce_scatter [0-9.]+, all_to_all [0-9.]+ GB/s" "$n ranks"
    has "^data 2 (by messages|shared) +ok " "$n ranks"
  fi
  rmdir "$work/folder"
done
has '^row 2 by messages +ok .*of 4 groups the slowest \(ranks ' "8 ranks"
[ "$cores" -ge 8 ] || has '^cores +note .*OVERSUBSCRIBED: 8 ranks have the ' "8 ranks on $cores cores"

# 2. The grid and the folder of a deck; its faults.
cat > "$work/small.yaml" << 'DECK'
run:        {name: small, folder: new/run, steps: 2}
model:      {kind: transformer, layers: 2, hidden: 16, heads: 2, head_dim: 8, vocab: 32, sequence: 8, moe: {every: 1, experts: 4, top_k: 1}}
data:       {kind: synthetic, synthetic: dyadic, samples: 64}
batch:      {global: 8}
parallel:   {stages: 2, dense: {col: 2}, moe: {expert: 2}}
DECK
launch 4 small.yaml
[ "$code" = 0 ] || fail "a deck: exit code $code"
for axis in stage col expert; do has "^$axis 2 by messages +ok " "a deck"; done
has '^other axes by messages +- +data, depth, row' "a deck"
[ ! -e "$work/new/run" ] || fail "a deck: the folder that was made for it is left over"
launch 4 small.yaml parallel.dense.col=3
[ "$code" = 2 ] || fail "a bad deck: exit code $code"
launch 2 nowhere.yaml
[ "$code" = 2 ] || fail "no deck: exit code $code"

# 3. P54: a folder that cannot be written to fails, and it alone.
: > "$work/file"
launch 4 --folder file/run
failed 4 folder "P54, a folder below a file"
has '^all 4 by messages +ok ' "P54"
has '^parallel HDF5 +skipped ' "P54"
mkdir "$work/disk"
if mount -t tmpfs -o size=1m fourfold "$work/disk" 2> /dev/null; then
  launch 2 --folder disk
  [ "$code" = 4 ] || fail "a full disk: exit code $code"
  has '^files +FAILED +rank [01] on .*: .*(No space left on device|available)' "a full disk"
  umount "$work/disk"
else
  echo "NOT TESTED: a full disk (this user may not mount a tmpfs)"
fi

# 4. A sum that is wrong on one rank.
program=$faults
FOURFOLD_FAULT="inf rank=1 phase=collectives" launch 4
failed 1 'all 4 by messages' "a wrong sum"
has 'all 4 by messages +FAILED +rank 0 on .*: all_reduce_sum \(fp32\) of 3 elements: element 0 is inf, not -?[0-9]+ \(group world of 4 ranks\) \(and 3 more ranks\)' "a wrong sum"

# 5. A rank that leaves an operation out: the watchdog names it.
begin=$SECONDS
FOURFOLD_FAULT="skip rank=2 phase=collectives call=1" launch 4
[ "$code" != 0 ] || fail "a hang: exit code 0" # the watchdog's 1, or what the launcher makes of ranks that it then kills
[ $((SECONDS - begin)) -lt 60 ] || fail "a hang: $((SECONDS - begin)) s"
has '^rank 2 on .*, collectives: holds up the run: ' "a hang"

# 6. A bit that turns over on its way to the disk; locks that the system refuses.
FOURFOLD_FAULT="flip rank=1 file=/rank_000001 call=1" launch 2 # the first write is the folder's trial
failed 4 files "a flipped bit"
has '^files +FAILED +rank 0 on .*: reads other bytes from .*/rank_000001.renamed than rank 1 wrote' "a flipped bit"
FOURFOLD_FAULT="flip rank=1 file=/all.h5" launch 2
failed 4 'parallel HDF5' "a flipped bit in HDF5"
has '^parallel HDF5 +FAILED +rank [01] on .*: reads -?[0-9]+ where rank [01] wrote [0-9]+' "a flipped bit in HDF5"
FOURFOLD_FAULT="no_locks rank=1" launch 2
failed 4 'file locks' "no locks"
has '^file locks +FAILED +rank 1 on .*: file locks are refused: No locks available' "no locks"
FOURFOLD_FAULT="no_locks rank=1" HDF5_USE_FILE_LOCKING=FALSE launch 2
[ "$code" = 0 ] || fail "no locks, and HDF5 told so: exit code $code"
has '^file locks +note .*refused.*; HDF5 is told so' "no locks, and HDF5 told so"
program=$fourfold

# 7. Ranks on one core.
if [ "$cores" -gt 1 ] && command -v taskset > /dev/null; then
  core=$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/')
  launcher_before=$launcher options_before=("${options[@]+"${options[@]}"}")
  launcher=taskset options=(-c "$core" "$launcher_before" "${options_before[@]+"${options_before[@]}"}")
  launch 2
  failed 3 cores "ranks on one core"
  FOURFOLD_SHARE_CORES=1 launch 2
  [ "$code" = 0 ] || fail "sharing that is meant: exit code $code"
  has '^cores +note ' "sharing that is meant"
  launcher=$launcher_before options=("${options_before[@]+"${options_before[@]}"}")
else
  echo "NOT TESTED: ranks on one core (there is one only, or no taskset)"
fi

# 8. P50: N jobs of one rank.
(cd "$work" && SLURM_NTASKS=4 SLURM_PROCID=2 SLURM_STEP_ID=0 "$fourfold" selftest > log 2>&1)
[ $? = 3 ] || fail "P50: not refused"
has 'the launcher and MPI disagree: srun \(SLURM_NTASKS=4\).* process 2 of 4' "P50"
has '^  mpirun -n 4 ' "P50"

echo "$failures failures"
[ "$failures" = 0 ]
