#!/usr/bin/env bash
# convert_command.sh FOURFOLD: `convert data` and `convert weights` as commands: what they print, exit codes and messages.
set -u
fourfold=$1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

# expect CODE PATTERN ARGUMENTS...: of fourfold convert
expect() {
  local code=$1 pattern=$2
  shift 2
  "$fourfold" convert "$@" >out 2>&1
  local status=$?
  if [ "$status" != "$code" ] || ! grep -qE -- "$pattern" out; then
    echo "FAILED: convert $*: exit code $status, wanted $code and '$pattern': $(cat out)"
    failures=$((failures + 1))
  fi
}
same() {
  cmp "$1" "$2" || {
    echo "FAILED: $1 and $2 differ"
    failures=$((failures + 1))
  }
}

printf 'one line\nand another\n' >a.txt
printf '{"id": 1, "body": "first"}\n{"id": 2, "body": "second\\nline"}\n' >b.jsonl

# Text, tokens, and text again.
expect 0 '^1 documents, 22 tokens of 21 bytes of text in .* s: a.bin, a.idx$' data a.txt --to megatron --output a
expect 0 '^1 documents, 21 tokens in .* s: back.txt$' data a.idx --to text --output back
same a.txt back.txt
expect 0 '^2 documents, 21 tokens of 19 bytes' data a.txt --to llmc --output l --documents lines --shard-tokens 10
expect 0 '^2 documents, ' data l_000000.bin l_000001.bin l_000002.bin --to text --output lines --documents lines
same a.txt lines.txt
expect 0 '^2 documents, 18 tokens of 16 bytes' data b.jsonl --to megatron --output b --documents jsonl --json-key body
expect 0 '^2 documents, .*: c.jsonl$' data b.bin --to text --output c --documents jsonl
printf '{"text":"first"}\n{"text":"second\\nline"}\n' >want.jsonl
same want.jsonl c.jsonl
expect 0 '^3 documents, 40 tokens' data a.idx b.idx --to megatron --output merged
expect 0 ': p-00001-of-00002.bin, p-00001-of-00002.idx, p-00002-of-00002.bin' data merged.idx --to megatron --output p --parts 2
[ "$("$fourfold" convert data --help | grep -c -- '--')" -gt 10 ] || failures=$((failures + 1))

# Refused: what is wrong with the line, with an option, with a file.
expect 2 'subcommand is required'
expect 2 'FILES is required' data --to megatron --output x
expect 2 '--to is required' data a.txt --output x
expect 2 '--to: .*parquet' data a.txt --to parquet --output x
expect 2 '--documents: .*pages' data a.txt --to megatron --output x --documents pages
expect 2 '--vocab: 0 is not legal; wanted: an integer, 1 to' data a.txt --to megatron --output x --vocab 0
expect 2 'missing.txt' data missing.txt --to megatron --output x
expect 2 'a.bin is there already; move it away first' data a.txt --to megatron --output a
expect 2 'back.txt is there already' data a.idx --to text --output back
expect 2 '--to text wants token files' data a.txt --to text --output x
expect 2 'id 111 is not below --vocab 100' data a.idx --to megatron --output x --vocab 100
expect 2 '--parts splits token files' data a.txt --to megatron --output x --parts 2
expect 2 'nothing.json' data a.txt --to megatron --output x --tokenizer nothing.json
expect 2 'is no tokenizer by its name' data a.txt --to megatron --output x --tokenizer words
expect 2 'byte 0: the line has no text "text"' data b.jsonl --to megatron --output x --documents jsonl
expect 2 'needs --end-of-document ID' data a.idx --to llmc --output x
expect 2 'SOURCE is required' weights --output x
expect 2 '--precision: .*fp8' weights a --output x --precision fp8
expect 2 '--type: ' weights a --output x --type I32
expect 2 '--experts: .*apart' weights a --output x --experts apart
expect 2 'is neither the folder of a run nor a step_N.h5' weights a.txt --output x
mkdir model && echo '{"model_type": "mamba"}' >model/config.json
expect 2 'model_type mamba is not built; built: gpt2' weights model --output x
[ -z "$(ls -d x* 2>/dev/null)" ] || {
  echo "FAILED: a refused conversion left $(ls -d x*)"
  failures=$((failures + 1))
}
echo "$failures failures"
[ "$failures" = 0 ]
