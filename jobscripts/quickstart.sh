#!/usr/bin/env bash
# From a fresh machine to a trained transformer: installs what is missing, builds, makes a corpus of English text, trains
# inputs/quickstart.yaml in two parts with a restart between, evaluates, and writes text.
#
#   bash jobscripts/quickstart.sh [FILE...]     FILE...: your own text files instead of the dictionary dict-gcide
#
# A second call reuses the build, the corpus and the run (runs/quickstart): what is done is not done again.
# Settings: RANKS (2), MPIEXEC (mpirun). Exit codes: 0 done, else that of the step that failed.
set -uo pipefail
for argument in "$@"; do
  if [ ! -f "$argument" ] || [ ! -r "$argument" ]; then
    echo "jobscripts/quickstart.sh: $argument is not a readable file; usage: bash jobscripts/quickstart.sh [FILE...]" >&2
    exit 2
  fi
done
files=()
for argument in "$@"; do files+=("$(realpath -- "$argument")"); done
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
SECONDS=0
. jobscripts/steps.sh

deck=inputs/quickstart.yaml
folder=runs/quickstart
corpus=corpus/corpus.txt
program=$build/app/fourfold
ranks=${RANKS:-2}
read -r -a launcher <<< "${MPIEXEC:-mpirun}"

# fourfold ARGUMENTS...: on $ranks ranks
fourfold() { "${launcher[@]}" -n "$ranks" "$program" "$@"; }
fail() {
  echo "jobscripts/quickstart.sh: $2" >&2
  exit "$1"
}

# 1. Packages, build
sets=(build)
[ ${#files[@]} -gt 0 ] || sets+=(corpus)
step install bash tests/install_packages.sh "${sets[@]}"
options=()
[ -e "$build/CMakeCache.txt" ] || options=(-DFOURFOLD_TESTS=OFF) # tests/run.sh turns them on
step configure cmake --preset release ${options[@]+"${options[@]}"}
step build cmake --build "$build" --parallel "$cores" --target fourfold
built=$SECONDS

# 2. Corpus. A run on another text cannot go on: it is kept under another name.
step corpus bash jobscripts/make_corpus.sh $corpus ${files[@]+"${files[@]}"}
if [ -e $folder/corpus.from ] && ! cmp -s $folder/corpus.from $corpus.from; then
  old=$folder.$(date +%Y%m%d-%H%M%S)
  mv -- $folder "$old" || exit 1
  echo "   the former run was trained on another text; it is now $old"
fi
mkdir -p $folder && cp -- $corpus.from $folder/corpus.from || exit 1

# 3. Training: a first part that stops half way with a checkpoint (exit code 75), a second that goes on from it
steps=$(sed -n 's/^run:.*[{ ,]steps: *\([0-9]*\).*/\1/p' $deck)
[ -n "$steps" ] || fail 2 "$deck has no run.steps"
echo "== train, first half"
fourfold train $deck --stop-at-step $((steps / 2))
status=$?
[ $status -eq 75 ] || [ $status -eq 0 ] || fail $status "training failed (exit code $status), see above"
echo "== train, from the checkpoint to the end"
fourfold train $deck || fail $? "training failed after the restart, see above"

# 4. All the held-out text, and what compressors need for the same bytes
echo "== evaluate"
text=$folder/valid.txt
report=$(fourfold eval $deck eval.samples=0 --write-text $text) || fail $? "evaluation failed, see above"
echo "$report"
bits=$(sed -n 's/.* \([0-9.]*\) bits per byte.*/\1/p' <<< "$report" | tail -n 1)
[ -n "$bits" ] || fail 1 "the evaluation names no bits per byte"
bytes=$(wc -c < $text)
bits_of() { echo $(($("$@" < $text | wc -c) * 8)) "$bytes" | awk '{ printf "%.3f", $1 / $2 }'; }
gzip_bits=$(bits_of gzip -9 -c)
xz_bits=$(command -v xz > /dev/null && bits_of xz -9 -c)

# 5. Text
echo "== generate"
fourfold generate $deck --prompt 'Ocean \O"cean\, n. ' --tokens 400 --temperature 0.8 --seed 1 ||
  fail $? "generation failed, see above"

cat << EOF
== result: bits per byte of $bytes bytes that the model has not seen
   fourfold  $(printf %.3f "$bits")
   gzip -9   $gzip_bits
   xz -9     ${xz_bits:-(not installed)}
   corpus to generated text in $(minutes $((SECONDS - built))); metrics: $folder/metrics.jsonl
EOF
