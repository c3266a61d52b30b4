#!/usr/bin/env bash
# Builds the parsers and libfuzzer.cpp with clang's fuzzer, address and undefined-behaviour sanitizers, and runs them.
#
#   bash tests/fuzz/libfuzzer.sh BUILD_FOLDER [SECONDS]
#
# Exit codes: 0 nothing found, 1 a crash (its input stays in BUILD_FOLDER/libfuzzer), 77 no clang with libFuzzer here.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1
seconds=${2:-60}
work=$build/libfuzzer
mkdir -p "$work/corpus"
command -v clang++ > /dev/null || { echo "NOT TESTED: no clang++ here (the seeded loop of tests/fuzz runs)"; exit 77; }
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' > "$work/probe.cpp"
clang++ -fsanitize=fuzzer "$work/probe.cpp" -o "$work/probe" 2> /dev/null ||
  { echo "NOT TESTED: this clang++ has no libFuzzer (the seeded loop of tests/fuzz runs)"; exit 77; }
cd "$root" || exit 1
sources=(tests/fuzz/libfuzzer.cpp tests/fuzz/targets.cpp modules/base/error.cpp modules/base/files.cpp
  modules/base/strict_json.cpp modules/checkpoint/safetensors.cpp modules/data/megatron.cpp modules/data/llmc.cpp
  modules/base/log.cpp modules/data/bpe_files.cpp modules/data/byte_bpe.cpp)
clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -Imodules -Itests/fuzz \
  -DSPDLOG_SHARED_LIB -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL "${sources[@]}" -lspdlog -lfmt -lpcre2-8 -o "$work/fuzz" || exit 1
cd "$work" || exit 1
./fuzz -max_total_time="$seconds" -max_len=4096 -timeout=5 -print_final_stats=1 corpus
