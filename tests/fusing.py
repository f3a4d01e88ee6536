"""Functions after the fusion pass alone, without inductor: no C++ is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from anyfuse import fusion
from anyfuse.fusion import _hooks

ROWS, COLS = 5, 96


def compiled(
    function: Callable[..., Any], accept: tuple[str, ...] = (), dynamic: bool | None = None, always: bool = True
) -> Any:
    """The function after the pass alone."""
    run = _hooks.make_pass(frozenset(accept), matmul=True, always=always)

    def inference(module: torch.fx.GraphModule, inputs: Any) -> Any:
        run(module.graph)
        module.recompile()
        return make_boxed_func(module.forward)

    def training(module: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        run(module.graph)
        return min_cut_rematerialization_partition(module, inputs, **options)

    torch._dynamo.reset()
    fusion.report(reset=True)
    backend = aot_autograd(
        fw_compiler=lambda module, inputs: make_boxed_func(module.forward),
        inference_compiler=inference,
        partition_fn=training,
        decompositions=select_decomp_table(),
        keep_inference_input_mutations=True,
    )
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)


def inputs(dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x1, x2 = (torch.randn(2, ROWS, COLS, generator=generator) * scale for _ in range(2))
    return x1.to(dtype), x2.to(dtype), torch.rand(COLS, generator=generator).to(dtype) + 0.5


def quantize(v: Tensor) -> tuple[Tensor, Tensor]:
    scale = v.abs().amax(-1, keepdim=True) / 127
    return (v / scale).round().clamp(-128, 127).to(torch.int8), scale


def close(expected: tuple[Tensor, ...], got: tuple[Tensor, ...]) -> None:
    """Codes may differ on a tie, by one; scales by the rounding of a sum in another order, whose terms are positive:
    half of n·2^-24 for the root, and a few operations."""
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype == torch.int8:
            assert (a.int() - b.int()).abs().max() <= 1
            assert (a != b).float().mean() < 0.01
        else:
            torch.testing.assert_close(a, b, rtol=COLS * 2.0**-24, atol=0)
