#!/usr/bin/env bash
# Installs the Debian or Ubuntu packages that Fourfold needs and this machine lacks.
#
#   bash tests/install_packages.sh [SET...]     sets: build, corpus, test, ci, slurm, mpich; default: build test
#
# Does nothing, and needs neither network nor root, when all are there. Where there is no dpkg (clusters: modules, Spack)
# it says so and leaves the rest to CMake. Exit codes: 0 all there, 1 an installation failed, 2 wrong call.
set -uo pipefail

build=(build-essential cmake ninja-build libopenmpi-dev openmpi-bin libtrilinos-kokkos-dev libhdf5-openmpi-dev
  libyaml-cpp-dev libdnnl-dev ocl-icd-opencl-dev opencl-headers libopenblas-pthread-dev libfmt-dev libspdlog-dev
  libcli11-dev nlohmann-json3-dev libpcre2-dev libsentencepiece-dev)
corpus=(dict-gcide gzip xz-utils)
test=(libgtest-dev python3 python3-numpy python3-matplotlib git ccache)
ci=(clang-format clang-tidy git shellcheck)
slurm=(slurmctld slurmd slurm-client munge libpmix-dev) # libpmix-dev: Slurm opens libpmix.so by that name
mpich=(mpich libmpich-dev libhdf5-mpich-dev)            # beside Open MPI, which keeps the names mpicc and mpirun

say() { printf 'install_packages.sh: %s\n' "$*"; }
fail() {
  printf 'install_packages.sh: %s\n' "$2" >&2
  exit "$1"
}

wanted=()
[ $# -gt 0 ] || set -- build test
for set in "$@"; do
  case $set in
    build) wanted+=("${build[@]}") ;;
    corpus) wanted+=("${corpus[@]}") ;;
    test) wanted+=("${test[@]}") ;;
    ci) wanted+=("${ci[@]}") ;;
    slurm) wanted+=("${slurm[@]}") ;;
    mpich) wanted+=("${mpich[@]}") ;;
    *) fail 2 "unknown set '$set'; sets: build, corpus, test, ci, slurm, mpich" ;;
  esac
done

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
  say "no Debian package manager here; CMake will say what is missing (see README, \"Building on a cluster\")"
  exit 0
fi

is_installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2> /dev/null | grep -qx installed; }

list_missing() {
  missing=()
  local package
  for package in "${wanted[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
}

list_missing
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=(env DEBIAN_FRONTEND=noninteractive)
elif command -v sudo > /dev/null; then
  as_root=(sudo env DEBIAN_FRONTEND=noninteractive)
else
  fail 1 "missing: ${missing[*]}. Neither root nor sudo here; ask for: apt-get install ${missing[*]}"
fi

say "installing ${missing[*]}"
log=$(mktemp "${TMPDIR:-/tmp}/install_packages.XXXXXX.log") || fail 1 "cannot write to ${TMPDIR:-/tmp}"
apt() { "${as_root[@]}" apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >> "$log" 2>&1 < /dev/null; }

# Lists may be old or absent: one update, and the installation shows whether it was enough.
apt update || say "apt-get update failed (no network?); trying with the lists that are here"
if ! apt install --no-install-recommends "${missing[@]}"; then
  tail -n 25 "$log" >&2
  list_missing
  fail 1 "could not install ${missing[*]} (see above; the whole log is $log)"
fi
list_missing
[ ${#missing[@]} -eq 0 ] || fail 1 "apt-get reports success, but these are not installed: ${missing[*]} (log: $log)"
rm -f -- "$log"
say "done"
