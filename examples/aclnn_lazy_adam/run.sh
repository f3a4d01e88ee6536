#!/usr/bin/env bash
# Clean, generate, compile, run, compare. Options go to gen_data.py: --rows --dim --count, or --official.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python="${PYTHON:-python3}"

if [ -z "${ASCEND_HOME_PATH:-}" ]; then
  source "$("$python" -m anyfuse acl-config --root)/set_env.sh"
fi

rm -rf build input/*.bin output/*.bin output/execute_op
"$python" scripts/gen_data.py "$@"
cmake -S src -B build -DCMAKE_BUILD_TYPE=Release
cmake --build build
read -r rows dim count < input/dims.txt
./output/execute_op "$rows" "$dim" "$count"
"$python" scripts/verify_result.py
