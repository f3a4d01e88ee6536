#!/usr/bin/env bash
# Builds the fuzzers with Clang, AddressSanitizer and checks for undefined behaviour, and runs each for some time from its
# corpus, which it extends. A finding ends the script with an error and leaves the input in the build folder.
#
#     tests/fuzz/run.sh [SECONDS each] [core] [face]
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-600}
build=${BUILD:-build/fuzz}
mkdir -p "$build"
cmake -S . -B "$build" -DANYFUSE_FUZZ=ON -DANYFUSE_SANITIZE=address -DCMAKE_C_COMPILER="${CC:-clang}" \
  -DCMAKE_CXX_COMPILER="${CXX:-clang++}" -DANYFUSE_LIBRARY_DIR="$PWD/$build/lib" -DANYFUSE_ACL_PREFIX="$PWD/$build/acl" >"$build/log"
cmake --build "$build" --parallel "$(nproc)" --target fuzz_core fuzz_face >>"$build/log" || { cat "$build/log" && exit 1; }
shift $(($# > 0))
for name in "${@:-core}" $([ $# = 0 ] && echo face); do
  mkdir -p "$build/corpus/$name" "tests/fuzz/corpus/$name"
  ASAN_OPTIONS=allocator_may_return_null=1 "$build/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -max_len=512 -timeout=20 \
    -rss_limit_mb=4096 -artifact_prefix="$build/" -print_final_stats=1 "$build/corpus/$name" "tests/fuzz/corpus/$name"
done
