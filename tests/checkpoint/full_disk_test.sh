#!/bin/bash
# usage: full_disk_test.sh PROBE LAUNCHER...   A disk with room for one checkpoint and a half: a save that fails inside
# HDF5 ends the job with exit code 4 and its reason, and the step before still loads.
probe=$1
shift
export OMPI_MCA_io=${OMPI_MCA_io:-romio321}
folder=$(mktemp -d)
trap 'umount -l "$folder" 2>/dev/null; rmdir "$folder"' EXIT
if ! mount -t tmpfs -o size=3m fourfold "$folder" 2>/dev/null; then
  echo "NOT TESTED: this user may not mount a tmpfs"
  exit 77
fi

output=$(timeout 60 "$@" 2 "$probe" "$folder/checkpoints" save 2>&1)
code=$?
echo "$output"
[ $code -eq 4 ] || { echo "FAILED: exit code $code, wanted 4"; exit 1; }
first=$(grep -m 1 "^rank [01] on " <<< "$output")
for words in "checkpoint of step 2 not written" "needed 21" "bytes, available "; do
  [[ $first == *"$words"* ]] || { echo "FAILED: the first error line lacks '$words'"; exit 1; }
done
output=$(timeout 60 "$@" 2 "$probe" "$folder/checkpoints" load 2>&1)
echo "$output"
grep -qx "loaded step 1" <<< "$output" || { echo "FAILED: step 1 did not load"; exit 1; }
