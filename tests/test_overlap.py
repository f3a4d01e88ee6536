"""Whether tensors share memory: decided by arithmetic, against lists of every byte, and what operators make of it."""

from __future__ import annotations

import itertools
import os
import random
import time

import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import _core
from anyfuse._core import APART, OVERLAP, UNDECIDED, Layout

DRAWS = int(os.environ.get("ANYFUSE_TEST_DRAWS", "4000"))
BASE = 1 << 20


def draw_layout(draw: random.Random) -> Layout:
    rank = draw.randrange(6)
    sizes = [draw.choice((1, 1, 2, 2, 3, 4, 5, 7)) for _ in range(rank)]
    strides = [
        draw.choice((0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 17, 20, 30, 48, draw.randrange(200))) for _ in range(rank)
    ]
    if rank and draw.random() < 0.1:
        sizes[draw.randrange(rank)] = 0
    return BASE + draw.randrange(400), sizes, strides, draw.choice((1, 1, 2, 4, 8))


def starts(layout: Layout) -> list[int]:
    address, sizes, strides, width = layout
    indices = itertools.product(*map(range, sizes))
    return [address + width * sum(i * s for i, s in zip(index, strides, strict=True)) for index in indices]


def test_small_shapes_are_decided_as_a_list_of_every_byte_decides() -> None:
    draw, seen = random.Random(2), []
    for _ in range(DRAWS):
        a, b = draw_layout(draw), draw_layout(draw)
        of_a, of_b = starts(a), starts(b)
        bytes_of_a = {start + i for start in of_a for i in range(a[3])}
        shared = any(start + i in bytes_of_a for start in of_b for i in range(b[3]))
        assert _core.overlap(a, b) == _core.overlap(b, a) == shared, (a, b)
        assert _core.overlap(a) == (len(set(of_a)) < len(of_a)), a
        seen.append(shared)
    assert 0.1 < sum(seen) / DRAWS < 0.9


LARGE = 1 << 20
ENTANGLED = [112, 133, 133, 193], [18046000, 7617369, 4145867, 755134]
CASES: dict[str, tuple[Layout, Layout | None, int]] = {
    "two columns of one [n, 2]": ((BASE, [LARGE], [2], 4), (BASE + 4, [LARGE], [2], 4), APART),
    "column halves": ((BASE, [2048, 4096], [8192, 1], 4), (BASE + 4 * 4096, [2048, 4096], [8192, 1], 4), APART),
    "halves that meet": ((BASE, [2048, 4097], [8192, 1], 4), (BASE + 4 * 4096, [2048, 4096], [8192, 1], 4), OVERLAP),
    "one transposed": ((BASE, [4096, 2048], [1, 8192], 4), (BASE + 4 * 4096, [2048, 4096], [8192, 1], 4), APART),
    "codes beside their scale": ((BASE, [LARGE, 64], [68, 1], 1), (BASE + 64, [LARGE], [17], 4), APART),
    "codes over their scale": ((BASE, [LARGE, 65], [68, 1], 1), (BASE + 64, [LARGE], [17], 4), OVERLAP),
    "two pitches of large primes": ((BASE, [LARGE], [999983], 1), (BASE + 5, [7], [999979], 1), APART),
    "every element on another": ((0, [65536, 65536], [1, 1], 4), None, OVERLAP),
    "windows": ((BASE, [LARGE, 5], [1, 1], 4), None, OVERLAP),
    "five distinct dimensions": ((BASE, [9, 10, 11, 12, 13], [17160, 1716, 156, 13, 1], 4), None, APART),
    "a lattice, apart": ((BASE, [1000, 1000], [1001, 1000], 4), None, APART),
    "a lattice, met": ((BASE, [1001, 1002], [1001, 1000], 4), None, OVERLAP),
    "too entangled": ((BASE, *ENTANGLED, 4), None, UNDECIDED),
    "beyond any address": ((BASE, [1 << 40, 2], [1 << 40, 1], 8), (BASE, [1], [1], 8), UNDECIDED),
}


@pytest.mark.parametrize("case", CASES)
def test_large_shapes_are_decided_in_a_fixed_time(case: str) -> None:
    a, b, expected = CASES[case]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert _core.overlap(a, b) == expected
        times.append(time.perf_counter() - start)
    # Listing two million addresses takes a hundred times as long; a busy machine may be ten times slower than this one.
    assert min(times) < 0.05


def interleaved(*dtypes: torch.dtype, count: int = 8) -> list[Tensor]:
    """Views of one record for each element, a field of each dtype side by side."""
    width = sum(dtype.itemsize for dtype in dtypes)
    memory = torch.zeros(count * width, dtype=torch.uint8)
    views, offset = [], 0
    for dtype in dtypes:
        whole = memory.view(dtype)
        assert width % dtype.itemsize == offset % dtype.itemsize == 0
        views.append(whole.as_strided((count,), (width // dtype.itemsize,), offset // dtype.itemsize))
        offset += dtype.itemsize
    return views


def ema(var: Tensor, m: Tensor, v: Tensor, s: Tensor) -> None:
    anyfuse.apply_fused_ema_adamw_(torch.ones(var.shape), var, m, v, s, 1)


def test_fields_of_one_record_are_stepped_as_tensors_of_their_own() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.bfloat16)
    m, v, s = interleaved(torch.float32, *dtypes[1:])
    plain = [torch.zeros(8, dtype=dtype) for dtype in dtypes]
    var, other = torch.ones(8), torch.ones(8)
    ema(var, m, v, s)
    ema(other, *plain)
    assert torch.equal(var, other)
    assert all(map(torch.equal, (m, v, s), plain))


def test_what_meets_and_what_cannot_be_decided_is_refused_by_name() -> None:
    memory = torch.zeros(100)
    apart = [torch.zeros(8) for _ in range(2)]
    with pytest.raises(ValueError, match="v shares memory with m"):
        ema(torch.zeros(8), memory[0:16:2], memory[1:9], apart[0])
    with pytest.raises(ValueError, match="m has elements that share memory"):
        ema(torch.zeros(8), memory.as_strided((8,), (0,)), *apart)
    sizes, strides = [3, 4, 5, 3, 4], [1, 2, 3, 5, 7]
    with pytest.raises(ValueError, match="m has elements that share memory"):
        ema(torch.zeros(sizes), memory.as_strided(sizes, strides), torch.zeros(sizes), torch.zeros(sizes))


def test_an_undecided_question_is_refused_naming_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(a: Layout, b: Layout | None = None) -> int:
        return APART if b is None else UNDECIDED

    monkeypatch.setattr(_core, "overlap", answer)
    memory = torch.zeros(16)
    with pytest.raises(ValueError, match=r"(v|m) may share memory with (m|v)"):
        ema(torch.zeros(8), memory[0::2], memory[1::2], torch.zeros(8))
