"""Sizes beyond 32 bits: elements, and offsets from the first element to the last.

The largest, which take up to 9 GiB and minutes: ANYFUSE_TEST_HUGE=1 python -m pytest tests/test_sizes.py
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

import operators
import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse._bits import clone_with_storage
from anyfuse._opspec import OpSpec
from anyfuse.formats import create_codebook
from anyfuse.samples.draw import Draw

FAR = 2**31


def untouched(count: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory only where they are written."""
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's; Python names it from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, flags=flags), dtype=dtype)


# ---- offsets ----


def far_apart(value: Any) -> Any:
    """Tensors whose rows (elements, of one dimension) lie more than 2^31 elements apart."""
    if isinstance(value, (list, tuple)):
        return type(value)(far_apart(item) for item in value)
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] < 2:
        return value
    row = value.numel() // value.shape[0]
    stride = FAR + row
    strides = (stride, *torch.empty(value.shape[1:], device="meta").stride())
    spread = untouched((value.shape[0] - 1) * stride + row, value.dtype).as_strided(value.shape, strides)
    return spread.copy_(value)


def few_rows(spec: OpSpec) -> Iterator[dict[str, Any]]:
    """A call of few rows, one with lists and one without where the operator takes both."""
    kinds = set()
    for arguments in (spec.samples.draw(Draw(seed)).arguments for seed in range(100)):
        tensors = operators.tensors_of(list(arguments.values()))
        kind = any(isinstance(value, list) for value in arguments.values())
        longest = max((tensor.shape[0] for tensor in tensors if tensor.dim()), default=0)
        if kind not in kinds and 2 <= longest <= 300 and min(tensor.numel() for tensor in tensors) > 0:
            kinds.add(kind)
            yield arguments


def test_rows_that_lie_two_to_the_31_elements_apart(spec: OpSpec) -> None:
    samples = list(few_rows(spec))
    assert samples
    for arguments in samples:
        expected, _ = operators.run(spec, arguments)
        given = {name: far_apart(value) for name, value in clone_with_storage(arguments).items()}
        assert any(max(tensor.stride(), default=0) > FAR for tensor in operators.tensors_of(list(given.values())))
        got = operators.with_changed(spec, spec.function(**given), given)
        assert operators.difference(expected, got) is None


# ---- elements ----


def test_lazy_adam_of_a_table_with_more_than_two_to_the_31_elements() -> None:
    rows, dim = 2**28 + 5, 8
    ids = torch.tensor([rows - 1, 0, 2**27 + 1, 2**28 + 1, rows - 1])
    small = {id_: i for i, id_ in enumerate(sorted(set(ids.tolist())))}
    gradient = Draw(0).normal((len(ids), dim))
    big = [untouched(rows * dim, torch.float32).view(rows, dim) for _ in range(3)]
    little = [torch.zeros(len(small), dim) for _ in range(3)]
    assert big[0].numel() > FAR
    anyfuse.lazy_adam_(gradient, ids, *big, lr=0.1)
    with anyfuse.backend("reference"):
        anyfuse.lazy_adam_(gradient, torch.tensor([small[i] for i in ids.tolist()]), *little, lr=0.1)
    assert operators.difference(little, [tensor[list(small)] for tensor in big]) is None
    assert not big[2][[1, rows - 2]].any()


@pytest.mark.slow
def test_quant_matmul_of_more_than_two_to_the_31_elements() -> None:
    rows, k, n = 2**16 + 3, 2**15, 3
    x = untouched(rows * k, torch.int8).view(rows, k)
    assert x.numel() > FAR
    draw = Draw(0)
    last = (draw.normal((2, k)) * 50).clamp(-127, 127).to(torch.int8)
    x[-2:] = last
    weight, weight_scale = (draw.normal((n, k)) * 50).clamp(-127, 127).to(torch.int8), draw.normal((n,)).abs()
    options: dict[str, Any] = {"out_dtype": torch.float32}
    got = anyfuse.quant_matmul_dequant(x, weight, weight_scale, x_scale=torch.ones(rows), **options)
    with anyfuse.backend("reference"):
        expected = anyfuse.quant_matmul_dequant(last, weight, weight_scale, x_scale=torch.ones(2), **options)
    assert operators.difference([expected], [got[-2:]]) is None
    assert not got[:-2].any()


huge = pytest.mark.skipif("ANYFUSE_TEST_HUGE" not in os.environ, reason="ANYFUSE_TEST_HUGE asks for it: gigabytes")


@huge
@pytest.mark.slow
def test_norm_of_more_than_two_to_the_31_elements() -> None:
    """6.5 GiB: the sum of 16 bits and the codes; the inputs take memory where they are not zero."""
    rows, cols = 2**19 + 3, 4096
    draw = Draw(0)
    places = [0, 2**18, 2**19 - 1, 2**19, rows - 1]  # rows on both sides of 2^31 elements
    few = [draw.normal((len(places), cols)).bfloat16() for _ in range(2)]
    gamma = draw.normal((cols,)).bfloat16()
    x1, x2 = (untouched(rows * cols, torch.bfloat16).view(rows, cols) for _ in range(2))
    x1[places], x2[places] = few
    assert x1.numel() > FAR
    got = anyfuse.add_rms_norm_dynamic_quant(x1, x2, gamma)
    with anyfuse.backend("reference"):
        expected = anyfuse.add_rms_norm_dynamic_quant(*few, gamma)
    assert x1.shape in {tuple(tensor.shape) for tensor in got}
    pairs = [(a, b[places]) for a, b in zip(expected, got, strict=True) if b.shape[:1] == (rows,)]
    assert len(pairs) >= 3
    assert operators.difference([a for a, _ in pairs], [b for _, b in pairs]) is None


@huge
@pytest.mark.slow
def test_8_bit_adamw_of_more_than_two_to_the_31_elements() -> None:
    """8.3 GiB: parameters of 16 bits and two codes; the gradient takes memory where it is not zero."""
    count, block = FAR + 256 * 3 + 7, 256
    blocks = -(-count // block)
    few = [slice(0, 512), slice(FAR - 512, FAR + 512), slice(count - 263, count)]
    maps = [create_codebook("dynamic", signed) for signed in (True, False)]
    draw = Draw(0)

    def tensors(size: int) -> dict[str, Tensor]:
        scales = -(-size // block)
        return {"var": untouched(size, torch.bfloat16), "grad": untouched(size, torch.bfloat16),
                "m": untouched(size, torch.uint8), "v": untouched(size, torch.uint8),
                "absmax_m": torch.zeros(scales), "absmax_v": torch.zeros(scales)}  # fmt: skip

    def step(values: dict[str, Tensor]) -> None:
        anyfuse.apply_adam_w_quant_(
            **values, qmap_m=maps[0], qmap_v=maps[1], step=3, lr=0.1, weight_decay=0.1, block_size=block
        )

    big = tensors(count)
    assert big["absmax_m"].numel() == blocks
    for part in few:
        for name in ("var", "grad"):
            big[name][part] = draw.normal((part.stop - part.start,)).bfloat16()
        for name in ("m", "v"):
            big[name][part] = torch.from_numpy(draw.rng.integers(0, 256, part.stop - part.start)).byte()
    big["absmax_m"].fill_(0.5), big["absmax_v"].fill_(0.25)
    little = []
    for part in few:
        scales = slice(part.start // block, -(-part.stop // block))
        little.append({name: t[scales if "absmax" in name else part].clone() for name, t in big.items()})
    step(big)
    with anyfuse.backend("reference"):
        for part, values in zip(few, little, strict=True):
            step(values)
            scales = slice(part.start // block, -(-part.stop // block))
            got = [t[scales if "absmax" in name else part] for name, t in big.items()]
            assert operators.difference(list(values.values()), got) is None
