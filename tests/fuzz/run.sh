#!/usr/bin/env bash
# Coverage-guided fuzzing of the C core and the C face (libFuzzer, with AddressSanitizer and checks for undefined
# behaviour) and of the readers of manifests and models (Atheris), each for some time. A finding ends the
# script with an error and leaves the input in the build folder.
#
#     tests/fuzz/run.sh [SECONDS each] [core|face|manifest|quantized|float]...
#     tests/fuzz/run.sh keep [core|face|manifest|quantized|float]...    makes what was found part of tests/fuzz/corpus
#
# CC, CXX name Clang; PYTHON an interpreter with torch, transformers and atheris; BUILD a folder (default: build/fuzz).
set -euo pipefail
cd "$(dirname "$0")/../.."
task=${1:-600}
shift $(($# > 0))
names=("$@")
[ $# = 0 ] && names=(core face manifest quantized float)
build=${BUILD:-build/fuzz}

build_c() {
  cmake -S . -B "$build" -DANYFUSE_FUZZ=ON -DANYFUSE_SANITIZE=address -DCMAKE_C_COMPILER="${CC:-clang}" \
    -DCMAKE_CXX_COMPILER="${CXX:-clang++}" -DANYFUSE_LIBRARY_DIR="$PWD/$build/lib" -DANYFUSE_ACL_PREFIX="$PWD/$build/acl" >"$build/log"
  cmake --build "$build" --parallel "$(nproc)" --target fuzz_core fuzz_face >>"$build/log" || { cat "$build/log" && exit 1; }
}

fuzz() { # name, options of libFuzzer
  local name=$1 program
  shift
  case $name in
    core | face) ASAN_OPTIONS=allocator_may_return_null=1 "$build/tests/fuzz/fuzz_$name" -max_len=512 "$@" ;;
    *)
      program=$build/fuzz_$name
      printf '#!/bin/sh\nPYTHONPATH=src exec "%s" tests/fuzz/readers.py %s "$0" "$@"\n' "${PYTHON:-python3}" "$name" >"$program"
      chmod +x "$program"
      "$program" -max_len=8192 -len_control=0 -dict=tests/fuzz/json.dict "$@"
      ;;
  esac
}

mkdir -p "$build"
[[ " ${names[*]} " =~ \ (core|face)\  ]] && build_c
for name in "${names[@]}"; do
  found=$build/corpus/$name kept=tests/fuzz/corpus/$name archive=$PWD/tests/fuzz/corpus/$name.tar.xz
  [ -f "$archive" ] && kept=$build/kept/$name # many small files
  mkdir -p "$found" "$kept"
  [ -f "$archive" ] && (cd "$kept" && cmake -E tar xf "$archive")
  if [ "$task" = keep ]; then
    smaller=$(mktemp -d)
    fuzz "$name" -merge=1 -use_counters=0 "$smaller" "$kept" "$found" # an input for each edge, not for each count of it
    [ -n "$(ls "$smaller")" ] || { echo "nothing was kept" && exit 1; }
    rm -rf "$kept" && mv "$smaller" "$kept" && chmod 755 "$kept"
    [ -f "$archive" ] && (cd "$kept" && cmake -E tar cJf "$archive" -- *)
  else
    fuzz "$name" -max_total_time="$task" -timeout=20 -rss_limit_mb=4096 -artifact_prefix="$build/" -print_final_stats=1 \
      "$found" "$kept"
  fi
done
