"""Inputs of one LazyAdam step and its goldens, raw little-endian, computed by numpy in fp32."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent.parent
LEARNING_RATE, BETA1, BETA2, EPSILON = np.float32(1e-3), np.float32(0.9), np.float32(0.999), np.float32(1e-7)
ONE = np.float32(1)
CHUNK = 1 << 16  # rows at a time


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the table")
    parser.add_argument("--dim", type=int, default=32, help="columns of the table, a multiple of 8")
    parser.add_argument("--count", type=int, default=5_641, help="rows that the step touches")
    parser.add_argument("--official", action="store_true", help="2 000 000 x 32, 564 096 rows")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.official:
        given.rows, given.dim, given.count = 2_000_000, 32, 564_096
    if given.count > given.rows or given.dim % 8:
        parser.error("count is at most rows, and dim a multiple of 8")
    return given


def main() -> None:
    given = parse()
    random = np.random.default_rng(given.seed)
    shape = (given.rows, given.dim)
    indices = random.permutation(given.rows)[: given.count].astype(np.int32)
    gradient = random.standard_normal((given.count, given.dim), dtype=np.float32)
    m = random.standard_normal(shape, dtype=np.float32)
    v = random.random(shape, dtype=np.float32)
    var = random.standard_normal(shape, dtype=np.float32)
    inputs = {
        "gradient": gradient,
        "indices": indices.reshape(-1, 1),
        "inputM": m,
        "inputV": v,
        "inputVar": var,
        "learningRate": np.array([LEARNING_RATE]),
    }
    for name, values in inputs.items():
        values.tofile(FOLDER / "input" / f"{name}.bin")
    (FOLDER / "input" / "dims.txt").write_text(f"{given.rows} {given.dim} {given.count}\n")

    for start in range(0, given.count, CHUNK):
        rows, g = indices[start : start + CHUNK], gradient[start : start + CHUNK]
        m[rows] = BETA1 * m[rows] + (ONE - BETA1) * g
        v[rows] = BETA2 * v[rows] + (ONE - BETA2) * g * g
        var[rows] = var[rows] - LEARNING_RATE * m[rows] / (np.sqrt(v[rows]) + EPSILON)
    for name, values in {"M": m, "V": v, "Var": var}.items():
        values.tofile(FOLDER / "output" / f"goldenOutput{name}.bin")


if __name__ == "__main__":
    main()
