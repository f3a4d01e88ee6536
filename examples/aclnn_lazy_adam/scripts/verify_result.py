"""Compares the results with the goldens by the rule of the official LazyAdam test.

An output fails only if not all absolute errors are within the loss, and not all relative errors are, and more than one
in a million elements lie beyond it by both measures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

from anyfuse.verify.compare import compare

OUTPUT = Path(__file__).parent.parent / "output"


def load(name: str) -> torch.Tensor:
    return torch.from_numpy(np.fromfile(OUTPUT / f"{name}.bin", dtype=np.float32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--loss", type=float, default=1e-6, help="accepted error")
    loss = parser.parse_args().loss
    passed = True
    for name in ("M", "V", "Var"):
        result = compare(f"output{name}", load(f"output{name}"), load(f"goldenOutput{name}"), loss=loss)
        print(
            f"{result.name}: {'within' if result.passed else 'beyond'} the rule; {result.elements} elements, "
            f"{result.beyond_abs} beyond {loss:g} absolutely, {result.beyond_rel} relatively, "
            f"largest error {result.max_abs:.3g}"
        )
        passed = passed and result.passed
    print("test pass" if passed else "test failed")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
