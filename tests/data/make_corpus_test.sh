#!/usr/bin/env bash
# make_corpus.sh: makes, skips, makes again when an input changed, and says what failed. $1: the script.
set -euo pipefail
script=$1
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd "$folder"

check() { # check NAME CONDITION...
  local name=$1
  shift
  "$@" || {
    echo "FAILED: $name" >&2
    exit 1
  }
}
refused() { # refused CODE WORDS ARGUMENTS...: exit code and message
  local code=0 wanted=$1 words=$2 message
  shift 2
  message=$(bash "$script" "$@" 2>&1) || code=$?
  check "exit code $wanted, not $code ($*)" [ "$code" -eq "$wanted" ]
  check "message '$words' in '$message'" grep -qF -- "$words" <<< "$message"
}

printf 'first\n' > a.txt
printf 'second\n' > 'b c.txt'
bash "$script" new/corpus.txt a.txt 'b c.txt'
check "content" [ "$(cat new/corpus.txt)" = "$(printf 'first\nsecond')" ]
check "nothing left over" [ "$(ls new)" = "$(printf 'corpus.txt\ncorpus.txt.from')" ]

inode=$(stat -c %i new/corpus.txt)
bash "$script" new/corpus.txt a.txt 'b c.txt' | grep -q 'up to date'
check "skipped" [ "$(stat -c %i new/corpus.txt)" = "$inode" ]
bash "$script" new/corpus.txt a.txt | grep -q ': 6 bytes'
printf 'third, longer\n' > a.txt
bash "$script" new/corpus.txt a.txt
check "an input that changed" [ "$(cat new/corpus.txt)" = "third, longer" ]
printf 'cut' > new/corpus.txt
bash "$script" new/corpus.txt a.txt
check "an output that changed" [ "$(cat new/corpus.txt)" = "third, longer" ]

refused 2 'usage'
refused 2 '--help: there are no options; usage' --help
refused 2 '-x: there are no options' out.txt -x a.txt
check "no file of an option's name" [ ! -e ./--help ]
: > empty.txt
refused 2 'missing.txt: no such file' out.txt a.txt missing.txt
refused 2 'empty.txt: is empty' out.txt empty.txt
refused 2 'new: not a plain file' out.txt new
refused 2 'a.txt: is the output itself' a.txt a.txt
refused 2 'new: is a folder' new a.txt
refused 1 'cannot make the folder' a.txt/out.txt 'b c.txt'
check "no output after a refusal" [ ! -e out.txt ]

if [ -r /usr/share/dictd/gcide.dict.dz ]; then
  bash "$script" gcide.txt
  check "size of the dictionary" [ "$(stat -c %s gcide.txt)" -gt 30000000 ]
  check "English text" grep -q 'Zymosis' gcide.txt
else
  refused 2 'dict-gcide' gcide.txt
fi
echo "make_corpus: passed"
