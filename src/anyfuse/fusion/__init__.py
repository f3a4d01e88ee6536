"""Finds the operators' arithmetic in plain PyTorch code that `torch.compile` compiles, and puts the operators there.

    with anyfuse.fusion.enabled():
        model = torch.compile(model)
    model(x)
    print(anyfuse.fusion.report())

What is replaced:

- RMSNorm (with or without a residual add before it, a bias and a smooth scale behind it) and symmetric int8
  quantization of each row: one call of `add_rms_norm_dynamic_quant` for one or two quantizations of a norm, two for
  three or four, ...
- an int8 matmul whose sums are multiplied with scales of rows and of columns: `quant_matmul_dequant`
  (with `matmul=True`).

`docs/fusion.md` lists the written forms. A replacement computes the written formula; the order of a sum, and whether a
factor is divided by or its reciprocal multiplied with, may differ, as they may between two compilers: the last bits of
a scale, and a code that stands on a tie. What differs by more is refused, and `report` says so, unless it is accepted
by name.
"""

from ._hooks import DIFFERENCES as DIFFERENCES
from ._hooks import enabled as enabled
from ._report import Miss as Miss
from ._report import Report as Report
from ._report import report as report

__all__ = ["DIFFERENCES", "Miss", "Report", "enabled", "report"]
