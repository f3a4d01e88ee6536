#!/usr/bin/env bash
# The C tests, the kept inputs of the fuzzers, the C face's programs and every operator from Python, under
# AddressSanitizer with checks for undefined behaviour and under ThreadSanitizer. Any finding ends the script with an
# error. Needs GCC. Each part takes a few minutes on two cores, the first of a sanitizer with its build:
#
#     tests/sanitize.sh [address|address-python|thread|thread-python]...
#
# PYTHON names an interpreter with torch (default: python3); BUILD a folder for the builds (default: build/sanitize).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/sanitize}
export ASAN_OPTIONS=allocator_may_return_null=1

compile() { # sanitizer
  cmake -S . -B "$build/$1" -DANYFUSE_SANITIZE="$1" -DANYFUSE_C_TESTS=ON -DANYFUSE_FUZZ=ON -DCMAKE_C_COMPILER=gcc \
    -DCMAKE_CXX_COMPILER=g++ -DANYFUSE_LIBRARY_DIR="$PWD/$build/$1/lib" -DANYFUSE_ACL_PREFIX="$PWD/$build/$1/acl" >"$build-$1.log"
  cmake --build "$build/$1" --parallel "$(nproc)" >>"$build-$1.log" || { cat "$build-$1.log" && exit 1; }
}

program() { # sanitizer, source under tests/aclnn
  local include=(-Icsrc/include -I"$build/$1/acl/include" -I"$build/$1/acl/include/aclnn")
  g++ -std=c++17 -g1 "-fsanitize=$1" -pthread "${include[@]}" "tests/aclnn/$2.cpp" -o "$build/$1/$2" \
    -L"$build/$1/lib" -lanyfuse_acl -lanyfuse "-Wl,-rpath,$PWD/$build/$1/lib"
  "$build/$1/$2"
}

python() { # sanitizer, random calls of each operator, libraries to load first
  local package=$build/$1/python/anyfuse libraries="" library
  rm -rf "$package" && mkdir -p "${package%/*}" && cp -rs "$PWD/src/anyfuse" "$package" # the package over the other library
  rm -rf "$package/_lib" && ln -s "$PWD/$build/$1/lib" "$package/_lib"
  for library in "${@:3}"; do libraries+=" $(gcc -print-file-name="$library")"; done
  # Neither Python's memory nor what torch's own libraries do is ours to judge.
  LD_PRELOAD=${libraries# } ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
    PYTHONPATH=${package%/*} "${PYTHON:-python3}" tests/sanitize_smoke.py "$build/$1/lib" "${3%.so}" "$2"
}

mkdir -p "$build"
parts=("$@")
[ $# = 0 ] && parts=(address address-python thread thread-python)
for part in "${parts[@]}"; do
  sanitizer=${part%-python}
  compile "$sanitizer"
  case $part in
    address)
      ctest --test-dir "$build/address" --output-on-failure
      for name in lifecycle views threads forks; do program address "$name"; done
      ;;
    thread)
      ctest --test-dir "$build/thread" --output-on-failure
      program thread threads
      ;;
    address-python) python address 60 libasan.so libubsan.so libstdc++.so ;;
    thread-python) python thread 10 libtsan.so ;;
    *) echo "unknown part: $part" && exit 2 ;;
  esac
  echo "$part: no findings"
done
