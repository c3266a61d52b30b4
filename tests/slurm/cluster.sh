# shellcheck shell=bash
# Sourced by the tests of this folder: a real Slurm on 127.0.0.1, without systemd and cgroups: munged, slurmctld and one
# slurmd for each virtual node n1..nN.
#
#   start_cluster NODES CPUS    starts it in $cluster (a folder of mktemp), waits until all nodes are idle
#   stop_cluster                cancels what is left, ends the daemons by their own ids, removes $cluster
#
# Works as root and as an ordinary user. A second copy beside it does no harm: folder and ports are its own. Daemons stay
# children of the script that sources this, and end with it even where it is killed.

PATH=$PATH:/usr/sbin:/sbin
cluster=
daemons=()

# what_is_missing: one line that says why there is no Slurm here; empty where there is one.
what_is_missing() {
  local command
  for command in munged slurmctld slurmd sbatch srun scontrol scancel squeue setpriv; do
    command -v "$command" > /dev/null || {
      echo "no $command: bash tests/install_packages.sh slurm (Debian's slurmctld, slurmd, slurm-client, munge, libpmix-dev)"
      return
    }
  done
  srun --mpi=list 2>&1 | grep -qw pmix || ls /usr/lib/*/slurm*/mpi_pmix*.so > /dev/null 2>&1 ||
    echo "this Slurm has no mpi/pmix, which Open MPI needs"
}

# free_ports COUNT: the first of COUNT neighbouring ports that nobody listens on, below those of outgoing connections.
free_ports() {
  local base port busy
  for _ in $(seq 1 100); do
    base=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    busy=0
    for port in $(seq $base $((base + $1 - 1))); do
      grep -qi "$(printf ':%04X 0' "$port")" /proc/net/tcp /proc/net/tcp6 2> /dev/null && busy=1
    done
    [ $busy = 1 ] || {
      echo $base
      return
    }
  done
  return 1
}

# wait_until SECONDS COMMAND...: polls until the command succeeds.
wait_until() {
  local end=$((SECONDS + $1))
  shift
  until "$@" > /dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

# daemon NAME COMMAND...: in the background, with its log, gone when this script is.
daemon() {
  local name=$1
  shift
  setpriv --pdeathsig TERM "$@" > "$cluster/log/$name.out" 2>&1 < /dev/null &
  daemons+=("$!")
}

write_configuration() { # NODES CPUS FIRST_PORT
  local host node me
  host=$(hostname -s)
  me=$(id -un)
  # All virtual nodes have one host name, by which Open MPI names its segments of shared memory: each node needs a folder
  # of its own. Not for the batch script, whose environment mpirun would hand to all ranks.
  cat > "$cluster/task_prolog" << 'EOF'
#!/bin/sh
[ -n "${SLURM_STEP_ID-}" ] || exit 0
folder=SHM-$SLURMD_NODENAME
mkdir -p "$folder"
echo "export OMPI_MCA_btl_vader_backing_directory=$folder"
echo "export OMPI_MCA_osc_sm_backing_directory=$folder"
# Jobs side by side share one loopback: ports of its own for each, or ranks that first meet may find another job's.
echo "export OMPI_MCA_btl_tcp_port_min_v4=$((10000 + SLURM_JOB_ID % 500 * 40))"
echo "export OMPI_MCA_btl_tcp_port_range_v4=40"
EOF
  sed -i "s|SHM|$shared_memory|" "$cluster/task_prolog"
  chmod 755 "$cluster/task_prolog"
  cat > "$cluster/slurm.conf" << EOF
ClusterName=virtual
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
# a job that is requeued waits cred_expire seconds at least
AuthInfo=socket=$cluster/run/munge.sock,cred_expire=5
CredType=cred/munge
SlurmUser=$me
SlurmdUser=$me
SlurmctldPort=$3
SlurmctldPidFile=$cluster/run/slurmctld.pid
SlurmdPidFile=$cluster/run/slurmd-%n.pid
SlurmctldLogFile=$cluster/log/slurmctld.log
SlurmdLogFile=$cluster/log/slurmd-%n.log
SlurmdSpoolDir=$cluster/spool/%n
StateSaveLocation=$cluster/state
TmpFS=$cluster/tmp/%n
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
# no cgroups
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
# nodes may claim more CPUs and memory than the host has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=1,sched_interval=1
ReturnToService=2
MinJobAge=3600
KillWait=30
TaskProlog=$cluster/task_prolog
JobCompType=jobcomp/filetxt
JobCompLoc=$cluster/log/finished
MailProg=/bin/true
EOF
  for node in $(seq 1 "$1"); do
    mkdir -p "$cluster/spool/n$node" "$cluster/tmp/n$node"
    echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$(($3 + node)) CPUs=$2 RealMemory=4000 State=UNKNOWN"
  done >> "$cluster/slurm.conf"
  echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >> "$cluster/slurm.conf"
}

all_idle() { [ "$(sinfo -h -N -o '%T' | grep -cx idle)" -eq "$1" ]; }
no_jobs() { [ -z "$(squeue -h 2>&1)" ]; }

start_cluster() { # NODES CPUS
  local port node
  cluster=$(mktemp -d "${TMPDIR:-/tmp}/fourfold-slurm.XXXXXX")
  shared_memory=/dev/shm/$(basename "$cluster")
  mkdir -p "$cluster"/{munge,run,state,log,spool,tmp}
  chmod 755 "$cluster" "$cluster"/{run,log,spool}
  chmod 700 "$cluster/munge"
  port=$(free_ports $(($1 + 1))) || return 1
  export SLURM_CONF=$cluster/slurm.conf
  write_configuration "$1" "$2" "$port"
  (umask 077 && head -c 128 /dev/urandom > "$cluster/munge/key")
  daemon munged munged -F --socket="$cluster/run/munge.sock" --key-file="$cluster/munge/key" \
    --pid-file="$cluster/run/munged.pid" --log-file="$cluster/munge/munged.log" --seed-file="$cluster/munge/seed"
  wait_until 10 test -S "$cluster/run/munge.sock" || return 1
  daemon slurmctld slurmctld -D
  for node in $(seq 1 "$1"); do daemon "slurmd-n$node" slurmd -D -N "n$node"; done
  wait_until 60 all_idle "$1"
}

# end_process ID: TERM, and KILL after 10 s.
end_process() {
  kill "$1" 2> /dev/null || return 0
  for _ in $(seq 1 200); do
    kill -0 "$1" 2> /dev/null || return 0
    sleep 0.05
  done
  kill -KILL "$1" 2> /dev/null
}

stop_cluster() {
  local index
  [ -n "$cluster" ] || return 0
  if squeue -h -o %A > "$cluster/left" 2> /dev/null; then
    sort -u "$cluster/left" | xargs -r scancel 2> /dev/null
    wait_until 30 no_jobs
  fi
  # The last started first: nodes, then slurmctld, then munged.
  for ((index = ${#daemons[@]} - 1; index >= 0; index--)); do end_process "${daemons[index]}"; done
  wait 2> /dev/null
  daemons=()
  rm -rf "$cluster" "$shared_memory"-n*
  cluster=
}
