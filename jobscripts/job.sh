# shellcheck shell=bash disable=SC2154,SC2034
# Sourced by train.sbatch, restart_chain.sbatch, scaling.sbatch and the scripts of `fourfold study --sbatch`, inside a job
# of Slurm or, with a launcher of its own, outside of one. Wants $script, the name of the script, and $root, the top
# folder of Fourfold.
#
#   prepare DECK [key=value...]   looks at everything that can be wrong before a rank is started, and leaves the script
#                                 with the fix; sets $nodes, $ranks, $folder, $steps, $marker
#   launch ARGUMENTS...           the program on all ranks; its exit code in $status: 0 done, 75 again, else an error
#
# Settings, most of them from machines/SITE/env.sh:
#   FOURFOLD_PROGRAM          the program                        build/app/fourfold
#   FOURFOLD_LAUNCHER         srun, mpirun or mpiexec            srun in a job, else mpirun
#   FOURFOLD_MPI_TYPE         srun's --mpi                       what the program's MPI library needs
#   FOURFOLD_RANKS_PER_NODE   unless sbatch --ntasks-per-node    one a core (OMP_NUM_THREADS cores, where that is set)
#   FOURFOLD_LAUNCH_OPTIONS   more options for the launcher
#   FOURFOLD_SHARE_CORES      1: several ranks on one core are meant (tests)
#   FOURFOLD_SELFTEST         0: without `fourfold selftest`, which otherwise comes first

program=${FOURFOLD_PROGRAM:-$root/build/app/fourfold}
job=${SLURM_JOB_ID:-}
status=0
child=
interrupted=0
told=0
early=0

say() { echo "$script: $*"; }

# fail CODE WHAT [TYPE]: what is wrong, where, what to type.
fail() {
  {
    echo "$script: error: $2"
    echo "  where: ${job:+job $job, nodes ${SLURM_JOB_NODELIST:-?}, }host $(uname -n), folder $PWD"
    [ -z "${3-}" ] || echo "  type:  $3"
  } >&2
  exit "$1"
}

# Which of srun's --mpi the program's library speaks.
choose_mpi_type() {
  local libraries library wanted offered
  libraries=$(ldd "$program" 2>&1)
  case $libraries in
    *libmpi.so.40* | *libopen-pal*) library="Open MPI" wanted=pmix ;; # Debian's knows no other
    *libmpi_gnu* | *libmpi_cray* | *libmpi_nvidia* | *libmpi_amd*) library="Cray MPICH" wanted=cray_shasta ;;
    *libmpich* | *libmpi.so.12*) library="MPICH or Intel MPI" wanted=pmi2 ;;
    *) library="MPI library" wanted=pmix ;;
  esac
  mpi_type=${FOURFOLD_MPI_TYPE:-$wanted}
  offered=$(srun --mpi=list 2>&1 | sed -n 's/^[[:space:]]\{1,\}\([a-z0-9_]*\)$/\1/p' | tr '\n' ' ')
  case " $offered" in
    *" $mpi_type "*) ;;
    *) fail 3 "this Slurm has no --mpi=$mpi_type, which the program's $library wants; it has: $offered" \
      "export FOURFOLD_LAUNCHER=mpirun   (the one that came with the program's MPI), or FOURFOLD_MPI_TYPE=one of these; then sbatch again" ;;
  esac
  [ "$mpi_type" = "$wanted" ] || say "note: --mpi=$mpi_type, though the program's $library usually wants $wanted"
}

choose_launcher() {
  local kind=${FOURFOLD_LAUNCHER:-} options
  [ -n "$kind" ] || if [ -n "$job" ]; then kind=srun; else kind=mpirun; fi
  read -r -a options <<< "${FOURFOLD_LAUNCH_OPTIONS:-}"
  case $kind in
    srun)
      [ -n "$job" ] || fail 3 "srun wants a job" "sbatch -N 1 jobscripts/$script $*"
      choose_mpi_type
      # A rank that crashes ends the others: without this a step whose rank was killed hangs until the time limit.
      launcher=(srun "--mpi=$mpi_type" -N "$nodes" -n "$ranks" ${per_node:+"--ntasks-per-node=$per_node"}
        "--cpus-per-task=$threads" --cpu-bind=cores --kill-on-bad-exit=1)
      ;;
    mpirun* | mpiexec*) launcher=("$kind" -n "$ranks") ;; # mpiexec.mpich too
    *) fail 3 "FOURFOLD_LAUNCHER is $kind" "export FOURFOLD_LAUNCHER=srun (or mpirun, mpiexec)" ;;
  esac
  command -v "${launcher[0]}" > /dev/null ||
    fail 3 "no ${launcher[0]} here" ". jobscripts/machines/SITE/env.sh   (your site's), then sbatch again"
  launcher+=(${options[@]+"${options[@]}"})
}

count_ranks() {
  local available
  threads=${OMP_NUM_THREADS:-1}
  nodes=${SLURM_JOB_NUM_NODES:-1}
  per_node=${SLURM_NTASKS_PER_NODE:-${FOURFOLD_RANKS_PER_NODE:-}}
  if [ -z "$per_node" ] && [ -n "${SLURM_NTASKS:-}" ]; then
    ranks=$SLURM_NTASKS # sbatch -n
    return
  fi
  available=${SLURM_CPUS_ON_NODE:-$(env -u OMP_NUM_THREADS nproc)}
  [ -n "$per_node" ] || per_node=$((available / threads > 0 ? available / threads : 1))
  ranks=$((nodes * per_node))
  if [ $((per_node * threads)) -gt "$available" ] && [ "${FOURFOLD_SHARE_CORES:-}" != 1 ]; then
    fail 3 "$per_node ranks of $threads thread(s) on a node, but the job has $available core(s) of it" \
      "sbatch --ntasks-per-node=$((available / threads)) ...   (or FOURFOLD_SHARE_CORES=1, if sharing is meant)"
  fi
}

# One line of every rank, before the program: are they one job, does each have cores of its own, do they see the folder?
probe() {
  local lines faults
  lines=$("${launcher[@]}" "$root/jobscripts/rank.sh" --probe "$folder") ||
    fail 3 "the launcher failed (above): ${launcher[*]}" \
      "${launcher[0]} --version; sinfo   (are the nodes well, is $root on a file system that all of them see?)"
  lines=$(sort -t= -k2n <<< "$lines")
  faults=$(awk -v ranks="$ranks" -v threads="$threads" '
    function cores(list, parts, ends, i, n, sum) {
      n = split(list, parts, ",")
      for (i = 1; i <= n; i++) sum += split(parts[i], ends, "-") == 2 ? ends[2] - ends[1] + 1 : 1
      return sum
    }
    {
      delete field
      for (i = 1; i <= NF; i++) { at = index($i, "="); field[substr($i, 1, at - 1)] = substr($i, at + 1) }
      if (field["pmi"] == "none") without++
      if (field["folder"] == "unseen" && !(field["node"] in blind)) { blind[field["node"]]; unseen = unseen " " field["node"] }
      key = field["host"] " " field["cores"] # of the host: virtual nodes share its cores
      if (!(key in users)) size[key] = cores(field["cores"])
      users[key]++
    }
    END {
      if (NR != ranks) print "ranks the launcher started " NR " ranks, not " ranks
      if (without && ranks > 1) print "pmi " without " of " ranks " ranks were not told that they are one job"
      if (unseen) print "folder the run folder is not to be seen on" unseen
      for (key in users) {
        split(key, part, " ")
        if (users[key] * threads > size[key])
          print "cores " users[key] " ranks of " threads " thread(s) share the core(s) " part[2] " of " part[1]
        else if (users[key] > 1 && !loose++)
          print "note ranks are not bound to cores of their own (this Slurm has no task/affinity or task/cgroup?)"
      }
    }' <<< "$lines")
  head -n 16 <<< "$lines"
  [ "$ranks" -le 16 ] || echo "... $((ranks - 16)) more ranks"
  grep '^note' <<< "$faults" | sed "s/^note /$script: note: /"
  cores=own
  if grep -q '^cores' <<< "$faults"; then cores=shared; fi
  if [ "${FOURFOLD_SHARE_CORES:-}" = 1 ]; then faults=$(grep -v '^cores' <<< "$faults"); fi
  faults=$(grep -v '^note' <<< "$faults" | head -n 1)
  case $faults in
    '') ;;
    ranks*) fail 3 "${faults#* }" "srun --mpi=list   (then export FOURFOLD_MPI_TYPE=..., or FOURFOLD_LAUNCHER=mpirun)" ;;
    pmi*) fail 3 "${faults#* }: ${launcher[0]} speaks no PMI here${mpi_type:+ (--mpi=$mpi_type)}" \
      "srun --mpi=list   (then export FOURFOLD_MPI_TYPE=..., or FOURFOLD_LAUNCHER=mpirun, and sbatch again)" ;;
    folder*) fail 4 "${faults#* }: $folder" "sbatch ... run.folder=FOLDER   (one on a file system that all nodes share)" ;;
    cores*) fail 3 "${faults#* }" \
      "export FOURFOLD_LAUNCH_OPTIONS=--cpu-bind=cores   (mpirun: --bind-to none), or FOURFOLD_SHARE_CORES=1 if it is meant" ;;
  esac
}

# selftest ARGUMENTS...: the program's own look at what the job got, before anything is trained.
selftest() {
  local code
  [ "${FOURFOLD_SELFTEST:-1}" = 1 ] || return 0
  "${launcher[@]}" "$root/jobscripts/rank.sh" "$again" "$program" selftest "$@"
  code=$?
  case $code in
    0) ;;
    1 | 2 | 3 | 4) fail $code "this allocation is not fit to run: the lines with FAILED above" \
      "what they say; FOURFOLD_SELFTEST=0 goes without the test" ;;
    *) fail 3 "fourfold selftest was ended with exit code $code: $(explain $code)" \
      "sbatch --exclude=$(uname -n) ...   (another node); FOURFOLD_SELFTEST=0 goes without the test" ;;
  esac
}

prepare() {
  local resolved
  trap 'early=1' USR1 # the ranks are told when they run
  [ $# -ge 1 ] || fail 2 "no deck" "sbatch -N 1 jobscripts/$script inputs/quickstart.yaml"
  [ -x "$program" ] || fail 3 "$program is no program" \
    "cmake --preset release && cmake --build --preset release   (in $root; or export FOURFOLD_PROGRAM=FILE)"
  case $(ldd "$program" 2>&1) in
    *'not found'*) fail 3 "libraries of $program are not here:$(ldd "$program" 2>&1 | awk '/not found/ {print " " $1}' | tr -d '\n')" \
      ". jobscripts/machines/SITE/env.sh   (the modules that it was built with), then sbatch again" ;;
  esac
  count_ranks
  choose_launcher "$@"
  resolved=$("$program" check "$@" --ranks "$ranks") ||
    fail 2 "the deck does not pass on $ranks ranks ($nodes nodes), see above" "$program check $* --ranks $ranks"
  folder=$(sed -n '/^run:/,/^$/s/^  folder: *//p' <<< "$resolved" | tr -d '"')
  steps=$(sed -n '/^run:/,/^$/s/^  steps: *//p' <<< "$resolved")
  marker=$(printf '%s/checkpoints/step_%08d.commit' "$folder" "$steps")
  mkdir -p "$folder" || fail 4 "cannot make the run folder $folder" "sbatch ... run.folder=FOLDER"
  again=$folder/again.${job:-$$}
  probe
  selftest "$@"
  say "$(date '+%F %T')${job:+, job $job}${SLURM_RESTART_COUNT:+, restart $SLURM_RESTART_COUNT}: $ranks ranks on $nodes nodes," \
    "${launcher[0]}${mpi_type:+ with $mpi_type}, run folder $folder, step $(newest_step) of $steps"
}

# newest_step: that of the newest committed checkpoint, 0 without one.
newest_step() {
  local newest
  newest=$(find "$folder/checkpoints" -name 'step_*.commit' 2> /dev/null | sort | tail -n 1)
  newest=${newest##*/step_}
  newest=${newest%%.*}
  echo $((10#${newest:-0}))
}

# Whether the program runs on this launch's ranks: it keeps rings of calls there. A launcher that is told something while it
# still starts them ends.
ranks_run() { [ -n "$(find "$folder" -maxdepth 4 -name 'rank_*.calls' -newer "$started" -print -quit 2> /dev/null)" ]; }

# The launcher hands SIGUSR2 on to all ranks. Not SIGUSR1: scancel may have sent that to the ranks already, and a second
# one of a kind means "at once". Ranks that do not listen yet find the stop file.
tell_ranks() {
  interrupted=1
  say "$(date '+%T') SIGUSR1: the ranks are told to save and stop"
  [ -n "$child" ] || return 0
  told=1
  : > "$folder/STOP"
  if ranks_run; then kill -USR2 "$child" 2> /dev/null; fi
}

# SIGTERM (scancel, the time limit, preemption): Slurm sends it to the ranks too. Here it is only waited for them.
outlive() {
  interrupted=1
  say "$(date '+%T') SIGTERM: waiting for the ranks to save"
}

launch() {
  local code started=$again.started
  rm -f -- "$again"
  : > "$started"
  trap tell_ranks USR1
  trap outlive TERM
  "${launcher[@]}" "$root/jobscripts/rank.sh" "$again" "$program" "$@" &
  child=$!
  [ "$early" = 0 ] || tell_ranks
  while :; do
    interrupted=0
    wait "$child"
    code=$?
    [ $code -eq 127 ] || status=$code
    [ $interrupted = 1 ] || break
  done
  child=
  [ "$told" = 0 ] || rm -f -- "$folder/STOP"
  if [ -e "$again" ]; then status=75; fi
  rm -f -- "$again" "$started"
}

# part_of_study FOLDER RANKS DECK [key=value...]: what a study does on so many ranks, in a job of so many (the scripts that
# `fourfold study --sbatch` writes). Leaves the script.
part_of_study() {
  local wanted=$2
  folder=$1
  shift 2
  trap 'early=1' USR1
  [ -x "$program" ] || fail 3 "$program is no program" \
    "cmake --preset release && cmake --build --preset release   (in $root; or export FOURFOLD_PROGRAM=FILE)"
  count_ranks
  [ "$ranks" = "$wanted" ] || fail 3 "the job has $ranks ranks, this part of the study wants $wanted" \
    "sbatch --ntasks=$wanted ...   (submit.sh beside the script does that)"
  choose_launcher "$@"
  mkdir -p "$folder" || fail 4 "cannot make the study's folder $folder" "another study.folder"
  again=$folder/again.${job:-$$}
  probe
  selftest --folder "$folder"
  launch study "$@" --only "ranks=$wanted"
  say "exit code $status: $(explain "$status")"
  if [ "$status" = 75 ] && scontrol requeue "$job" 2> /dev/null; then
    say "job $job is requeued"
    sleep 60 & # Slurm ends this script meanwhile
    wait $!
  fi
  exit "$status"
}

explain() { # of an exit code of the program
  case $1 in
    0) echo "done" ;;
    1) echo "an error, see above" ;;
    2) echo "the deck, the command or an input file is bad, see above" ;;
    3) echo "launcher or devices, see above" ;;
    4) echo "storage: full, read-only, or no usable checkpoint, see above" ;;
    75) echo "stopped early after a save" ;;
    *) if [ "$1" -gt 128 ]; then echo "a rank was ended by signal $(($1 - 128)), see above"; else echo "see above"; fi ;;
  esac
}
