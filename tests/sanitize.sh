#!/usr/bin/env bash
# The C tests and a smoke test from Python under AddressSanitizer with checks for undefined behaviour, then the threads of
# the C API under ThreadSanitizer. Any finding ends the script with an error. Takes minutes; needs GCC.
#
#     tests/sanitize.sh [address] [thread]
#
# PYTHON names an interpreter with torch (default: python3); BUILD a folder for the builds (default: build/sanitize).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/sanitize}

compile() {
  cmake -S . -B "$build/$1" -DANYFUSE_SANITIZE="$1" -DANYFUSE_C_TESTS=ON -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ \
    -DANYFUSE_LIBRARY_DIR="$PWD/$build/$1/lib" -DANYFUSE_ACL_PREFIX="$PWD/$build/$1/acl" >"$build-$1.log"
  cmake --build "$build/$1" --parallel "$(nproc)" >>"$build-$1.log" || { cat "$build-$1.log" && exit 1; }
  ctest --test-dir "$build/$1" --output-on-failure
}

program() { # sanitizer flags, source under tests/aclnn
  local include=(-Icsrc/include -I"$build/$1/acl/include" -I"$build/$1/acl/include/aclnn")
  g++ -std=c++17 -g1 "-fsanitize=$2" -pthread "${include[@]}" "tests/aclnn/$3.cpp" -o "$build/$1/$3" \
    -L"$build/$1/lib" -lanyfuse_acl -lanyfuse "-Wl,-rpath,$PWD/$build/$1/lib"
  "$build/$1/$3"
}

mkdir -p "$build"
for sanitizer in "${@:-address}" $([ $# = 0 ] && echo thread); do
  compile "$sanitizer"
  if [ "$sanitizer" = address ]; then
    for name in lifecycle views threads; do
      ASAN_OPTIONS=allocator_may_return_null=1 program address address "$name"
    done
    package="$build/address/python/anyfuse" # the package over the other library
    rm -rf "$package" && mkdir -p "${package%/*}" && cp -rs "$PWD/src/anyfuse" "$package"
    rm -rf "$package/_lib" && ln -s "$PWD/$build/address/lib" "$package/_lib"
    # Python itself is not checked for leaks; what torch's own libraries do is not ours to judge.
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so) $(gcc -print-file-name=libstdc++.so)" \
      ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="${package%/*}" "${PYTHON:-python3}" tests/sanitize_smoke.py "$build/address/lib"
  else
    program thread thread threads
  fi
done
echo "no findings"
