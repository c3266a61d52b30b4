#!/usr/bin/env bash
# Makes one plain text file to train on.
#
#   bash jobscripts/make_corpus.sh OUT            real English: the dictionary of Debian's package dict-gcide, whole
#   bash jobscripts/make_corpus.sh OUT FILE...    the given text files, one after another
#
# Does nothing when OUT is already made of the same inputs (OUT.from lists them). OUT appears whole or not at all.
# Exit codes: 0 made or up to date, 1 failed, 2 wrong call or input file.
set -euo pipefail

dictionary=/usr/share/dictd/gcide.dict.dz

fail() {
  echo "make_corpus.sh: $2" >&2
  exit "$1"
}

[ $# -ge 1 ] || fail 2 "usage: make_corpus.sh OUT [FILE...]"
for name in "$@"; do
  [[ $name != -* ]] || fail 2 "$name: there are no options; usage: make_corpus.sh OUT [FILE...] (a file of that name: ./$name)"
done
out=$1
shift

if [ $# -eq 0 ]; then
  [ -r "$dictionary" ] || fail 2 "$dictionary is missing: install the Debian package dict-gcide \
(bash tests/install_packages.sh corpus), or name text files of your own"
  inputs=("$dictionary")
else
  inputs=("$@")
fi
for file in "${inputs[@]}"; do
  [ -e "$file" ] || fail 2 "$file: no such file"
  [ -f "$file" ] || fail 2 "$file: not a plain file"
  [ -r "$file" ] || fail 2 "$file: cannot be read"
  [ -s "$file" ] || fail 2 "$file: is empty"
  [ ! "$file" -ef "$out" ] || fail 2 "$file: is the output itself"
done
[ ! -d "$out" ] || fail 2 "$out: is a folder; name the file to write"

# Path, size and time of each input, then the size of the output they made.
inputs_now=$(stat -L -c '%n %s %Y' -- "${inputs[@]}")
if [ -s "$out" ] && [ -f "$out.from" ] &&
  [ "$(cat "$out.from")" = "$inputs_now"$'\n'"made $(stat -L -c %s -- "$out")" ]; then
  echo "$out: up to date, $(stat -L -c %s -- "$out") bytes"
  exit 0
fi

mkdir -p -- "$(dirname -- "$out")" || fail 1 "cannot make the folder of $out"
temporary=$out.tmp.$$
trap 'rm -f -- "$temporary" "$temporary.from"' EXIT
trap 'exit 1' INT TERM
if [ $# -eq 0 ]; then
  gzip -dc < "$dictionary" > "$temporary" || fail 1 "cannot unpack $dictionary to $temporary (damaged, or no space left?)"
else
  cat -- "${inputs[@]}" > "$temporary" || fail 1 "cannot write $temporary (no space left?)"
fi
bytes=$(stat -c %s -- "$temporary")
printf '%s\nmade %s\n' "$inputs_now" "$bytes" > "$temporary.from" || fail 1 "cannot write $temporary.from"
rm -f -- "$out.from" # a kill between the two renames leaves no list: the next call makes both again
mv -f -- "$temporary" "$out" || fail 1 "cannot write $out"
mv -f -- "$temporary.from" "$out.from" || fail 1 "cannot write $out.from"
echo "$out: $bytes bytes"
