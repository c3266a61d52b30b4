#!/usr/bin/env bash
# Builds the parsers and libfuzzer.cpp with clang's fuzzer, address and undefined-behaviour sanitizers, and runs each of them.
#
#   bash tests/fuzz/libfuzzer.sh BUILD_FOLDER [RUNS [TARGET...]]
#
# RUNS inputs of each target: without it 20,000, with FOURFOLD_FULL=1 a million.
# Exit codes: 0 nothing found, 1 a crash or a hang (its input stays in BUILD_FOLDER/libfuzzer), 77 no clang with libFuzzer here.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1
runs=${2:-20000}
if [ $# -lt 2 ] && [ "${FOURFOLD_FULL:-}" = 1 ]; then runs=1000000; fi
shift $(($# > 2 ? 2 : $#))
work=$build/libfuzzer
mkdir -p "$work"
command -v clang++ > /dev/null || { echo "NOT TESTED: no clang++ here (the seeded loop of tests/fuzz runs)"; exit 77; }
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' > "$work/probe.cpp"
clang++ -fsanitize=fuzzer,address "$work/probe.cpp" -o "$work/probe" 2> /dev/null ||
  { echo "NOT TESTED: this clang++ has no libFuzzer (the seeded loop of tests/fuzz runs)"; exit 77; }
cd "$root" || exit 1
sources=(tests/fuzz/libfuzzer.cpp tests/fuzz/targets.cpp modules/base/error.cpp modules/base/files.cpp modules/base/log.cpp
  modules/base/strict_json.cpp modules/checkpoint/safetensors.cpp modules/data/megatron.cpp modules/data/llmc.cpp
  modules/data/bpe_files.cpp modules/data/byte_bpe.cpp modules/exchange/config.cpp modules/exchange/family.cpp modules/exchange/llmc_model.cpp
  modules/exchange/moe_family.cpp modules/exchange/numbers.cpp)
flags=(-std=c++20 -O1 -gline-tables-only "-fsanitize=fuzzer,address,undefined" -fno-sanitize-recover=undefined -Imodules -Itests/fuzz
  -DSPDLOG_SHARED_LIB -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL)
objects=()
for source in "${sources[@]}"; do
  object=$work/$(basename "$source" .cpp).o
  objects+=("$object")
  [ "$object" -nt "$source" ] && [ -z "$(find modules/base modules/checkpoint modules/data modules/exchange modules/deck -name '*.hpp' \
    -newer "$object" -print -quit)" ] && continue
  clang++ "${flags[@]}" -c "$source" -o "$object" || exit 1
done
clang++ "${flags[@]}" "${objects[@]}" -lspdlog -lfmt -lpcre2-8 -o "$work/fuzz" || exit 1
cd "$work" || exit 1
[ $# -gt 0 ] || set -- safetensors megatron llmc tokenizer llmc_model config
status=0
for target in "$@"; do
  export FOURFOLD_FUZZ_TARGET=$target
  mkdir -p "corpus_$target"
  FOURFOLD_FUZZ_SEEDS=corpus_$target ./fuzz > /dev/null 2>&1 || exit 1
  if ./fuzz -runs="$runs" -seed=20261130 -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 "corpus_$target" \
    > "$target.log" 2>&1; then
    echo "$target: $(sed -n 's/stat::number_of_executed_units: *//p' "$target.log") inputs, nothing found"
  else
    echo "$target: FAILED"
    tail -n 60 "$target.log"
    status=1
  fi
done
exit $status
