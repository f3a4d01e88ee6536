"""lazy_adam: the worked examples, equal ids, skipped and refused ids, and what the call may touch."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from operators import same_bits
from torch import Tensor

import anyfuse
from anyfuse import _core
from anyfuse.ops import lazy_adam as op

lazy_adam_ = anyfuse.lazy_adam_
MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def zeros(rows: int, dim: int, var: float = 0.0) -> dict[str, Tensor]:
    """A table with its state before the first step."""
    return {"m": torch.zeros(rows, dim), "v": torch.zeros(rows, dim), "var": torch.full((rows, dim), var)}


def everyday(rows: int, dim: int, seed: int = 0) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    m, v, var = (torch.randn(rows, dim, generator=source) for _ in range(3))
    return {"m": m, "v": v.abs(), "var": var}


def clones(table: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in table.items()}


def corrected(lr: float, t: int, beta1: float = 0.9, beta2: float = 0.999) -> float:
    return lr * (1 - beta2**t) ** 0.5 / (1 - beta1**t)


# ---- the worked examples of the operator, computed in the device's order; rows = 3, dim = 8, all columns equal ----

RESULT = {"m": 0.0500000119, "v": 0.000249996781, "var": 0.996837676}
EXAMPLES: dict[str, tuple[dict[str, Any], dict[int, dict[str, float]]]] = {
    "E1": ({"ids": [1], "g": [0.5]}, {1: RESULT}),
    "E2": ({"ids": [1], "g": [0.5], "lr": 3.16227766e-4}, {1: {**RESULT, "var": 0.999000013}}),
    "E3": ({"ids": [-1, 2], "g": [0.5, 0.5]}, {2: RESULT}),
    "E4": (
        {"ids": [0], "g": [0.5], "v": -0.5},
        {0: {"m": 0.0500000119, "v": 0.499249995, "var": 0.999929249}},
    ),
    "E5": (
        {"ids": [1, 1], "g": [0.5, 0.25]},
        {1: {"m": 0.0750000179, "v": 0.000562492758, "var": 0.996837676}},
    ),
    "E6": ({"ids": [1], "g": [0.0]}, {1: {"m": 0.0, "v": 0.0, "var": 1.0}}),
}


@pytest.mark.parametrize("convention", ["device", "formula"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_example(name: str, convention: str) -> None:
    """Nine digits name one fp32 number, so the device's order is compared exactly. The device subtracts a rounded beta
    from 1, which the formula does not: their v differ by up to 2^-24 / (1 - beta2), relative."""
    given, expected = EXAMPLES[name]
    table = zeros(3, 8, var=1.0)
    table["v"].fill_(given.get("v", 0.0))
    before = clones(table)
    gradient = torch.tensor(given["g"]).unsqueeze(1).repeat(1, 8)
    ids = torch.tensor(given["ids"], dtype=torch.int32)
    lazy_adam_(gradient, ids, **table, lr=given.get("lr", 1e-3), convention=convention)
    tolerance = 0.0 if convention == "device" else 2**-24 / (1 - 0.999)
    for row in range(3):
        for key, tensor in table.items():
            if row in expected:
                value = torch.full((8,), expected[row][key])
                torch.testing.assert_close(tensor[row], value, rtol=tolerance, atol=0.0)
            else:
                assert same_bits(tensor[row], before[key][row])


@pytest.mark.parametrize("convention", ["device", "formula"])
def test_official_steps_in_numpy(convention: str) -> None:
    """The update written once more, in numpy, on the fp32 numbers."""
    import numpy as np

    f = np.float32
    table = everyday(50, 24)
    old = {name: tensor.numpy().copy() for name, tensor in table.items()}
    ids = torch.randperm(50, generator=torch.Generator().manual_seed(1))[:20]
    gradient = everyday(20, 24, seed=2)["m"]
    lazy_adam_(gradient, ids, **table, lr=0.02, beta1=0.9, beta2=0.999, epsilon=1e-7, convention=convention)
    rest1, rest2 = (f(1) - f(b) if convention == "device" else f(1 - b) for b in (0.9, 0.999))
    i, g = ids.numpy(), gradient.numpy()
    m = old["m"][i] * f(0.9) + g * rest1
    v = np.abs(old["v"][i] * f(0.999) + (g * g) * rest2)
    var = old["var"][i] + (m * -f(0.02)) / (np.sqrt(v) + f(1e-7))
    for name, rows in (("m", m), ("v", v), ("var", var)):
        old[name][i] = rows
        assert same_bits(table[name], torch.from_numpy(old[name])), name


# ---- cases of users ----


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_case_o39_equal_ids_are_summed_before_the_step(backend: str) -> None:
    """Stepping one by one would give m = .39, the sum of squares v = .010. Values to 1e-6: they were computed in
    float64 without epsilon, beside which fp32 and an epsilon of 1e-8 stand at 3e-7."""
    table = zeros(4, 1)
    with anyfuse.backend(backend):
        step = partial(lazy_adam_, convention="formula", **table)
        step(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), lr=corrected(0.1, 1))
        first = {name: float(tensor[1]) for name, tensor in table.items()}
        assert first == pytest.approx({"m": 0.4, "v": 0.016, "var": -0.1}, rel=1e-6)
        step(torch.tensor([[2.0]]), torch.tensor([1]), lr=corrected(0.1, 2))
    assert float(table["var"][1]) - first["var"] == pytest.approx(-0.1 * 0.9321796, rel=1e-6)
    for tensor in table.values():
        assert not tensor[[0, 2, 3]].any()


def test_case_o39_a_hundred_thousand_equal_ids_give_the_same_bits_every_time(target: str) -> None:
    """The sum in order of appearance, whatever else is in the call and however many threads take part."""
    n, dim = 100_000, 3
    gradient = everyday(n + 500, dim)["m"]
    ids = torch.full((n + 500,), 7, dtype=torch.int64)
    ids[:: (n + 500) // 500] = torch.arange(ids[:: (n + 500) // 500].numel())
    fresh = everyday(600, dim, seed=3)
    with anyfuse.backend("reference"):
        expected = clones(fresh)
        lazy_adam_(gradient, ids, **expected, lr=0.1)
    with _core.target(target):
        for run in range(20):
            torch.set_num_threads((1, 2, 3, 16)[run % 4])
            table = clones(fresh)
            lazy_adam_(gradient, ids, **table, lr=0.1)
            for name, tensor in table.items():
                assert same_bits(tensor, expected[name]), (run, name)


def test_the_sum_starts_from_the_first_gradient_and_keeps_its_order() -> None:
    """-0 stays -0 where a sum from +0 would lose it, and 1e8 + 1 - 1e8 is 0 in this order alone."""
    ids, total = op.sum_by_id(torch.tensor([[1e8], [-0.0], [1.0], [-0.0], [-1e8]]), torch.tensor([5, 2, 5, 2, 5]))
    assert ids.tolist() == [2, 5]
    assert same_bits(total, torch.tensor([[-0.0], [0.0]]))
    table = zeros(6, 1, var=1.0)
    table["m"].fill_(-0.0)
    lazy_adam_(torch.tensor([[-0.0], [-0.0]]), torch.tensor([2, 2]), **table, lr=0.1)
    assert same_bits(table["m"][2], torch.tensor([-0.0]))


@pytest.mark.parametrize("ids", [torch.zeros(0, dtype=torch.int32), torch.full((3, 1), -1), torch.tensor([-(2**31)])])
def test_case_o40_nothing_named_changes_nothing(ids: Tensor) -> None:
    table = everyday(5, 64)
    before = clones(table)
    returned = lazy_adam_(torch.ones(len(ids), 64), ids, **table, lr=0.1)
    for result, (name, tensor) in zip(returned, table.items(), strict=True):
        assert result is tensor
        assert same_bits(tensor, before[name])


def test_case_o40_tables_without_rows_or_columns() -> None:
    lazy_adam_(torch.ones(2, 4), torch.tensor([-1, -5]), **zeros(0, 4), lr=0.1)
    lazy_adam_(torch.ones(2, 0), torch.tensor([0, 1]), **zeros(3, 0), lr=0.1)
    with pytest.raises(IndexError, match="indices holds 0; accepted: ids below 0"):
        lazy_adam_(torch.ones(1, 4), torch.tensor([0]), **zeros(0, 4), lr=0.1)
    lazy_adam_([], [], [], [], [], lr=0.1)


def guarded(rows: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """A table between two rows on either side, and the storage of all of them."""
    whole = torch.randn(rows + 4, dim, generator=torch.Generator().manual_seed(seed))
    return whole[2:-2], whole


@pytest.mark.parametrize("assume_unique", [False, True])
@pytest.mark.parametrize("dim", [1, 5, 8, 64])
def test_case_o41_skipped_ids_and_guard_rows(target: str, dim: int, assume_unique: bool) -> None:
    tables = {name: guarded(10, dim, seed) for seed, name in enumerate(("m", "v", "var"))}
    before = {name: whole.clone() for name, (_, whole) in tables.items()}
    arguments = {name: table for name, (table, _) in tables.items()}
    with _core.target(target):
        lazy_adam_(torch.ones(3, dim), torch.tensor([-1, 3, 9]), **arguments, lr=0.1, assume_unique=assume_unique)
    named = torch.tensor([2 + 3, 2 + 9])
    for name, (_, whole) in tables.items():
        changed = (whole != before[name]).any(dim=1).nonzero().flatten()
        assert torch.equal(changed, named), name


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("assume_unique", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_case_o41_an_id_beyond_the_table_writes_nothing(dtype: torch.dtype, assume_unique: bool, backend: str) -> None:
    """Not even in the other rows and the other tables of the call."""
    fine, bad = everyday(10, 8), everyday(10, 8, seed=1)
    tables = {name: [fine[name], bad[name]] for name in fine}
    before = {name: [tensor.clone() for tensor in pair] for name, pair in tables.items()}
    ids = [torch.tensor([1, 2], dtype=dtype), torch.tensor([9, 10], dtype=dtype)]
    message = "indices holds 10; accepted: ids below 10, the rows of var"
    with anyfuse.backend(backend), pytest.raises(IndexError, match=message):
        lazy_adam_([torch.ones(2, 8)] * 2, ids, **tables, lr=0.1, assume_unique=assume_unique)
    for name, pair in tables.items():
        assert all(map(same_bits, pair, before[name])), name


def test_case_o42_the_type_and_shape_of_ids_change_no_bit() -> None:
    ids = torch.randint(-2, 40, (300,), generator=torch.Generator().manual_seed(0))
    gradient = everyday(300, 24)["m"]
    results = []
    for given in (ids, ids.int(), ids.unsqueeze(1), ids.int().unsqueeze(1)):
        table = everyday(40, 24, seed=1)
        lazy_adam_(gradient, given, **table, lr=0.1)
        results.append(table)
    for other in results[1:]:
        assert all(same_bits(other[name], results[0][name]) for name in other)
    for dtype in (torch.uint8, torch.int16, torch.float32):
        with pytest.raises(TypeError, match="indices has dtype"):
            lazy_adam_(gradient, ids.to(dtype), **everyday(40, 24), lr=0.1)


def unbacked(rows: int, dim: int) -> Tensor:
    """A table of zeros of which only the pages that are touched take memory, of any size."""
    memory = mmap.mmap(-1, rows * dim * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    return torch.frombuffer(memory, dtype=torch.float32).view(rows, dim)


def test_case_o42_offsets_beyond_32_bits(target: str) -> None:
    """Rows around elements 2^31 and 2^32 of a table; were an offset cut to 32 bits, a row near 0 would change."""
    dim = 64
    rows = 2**32 // dim + 10
    table = {name: unbacked(rows, dim) for name in ("m", "v", "var")}
    named = [5, 2**31 // dim - 1, 2**31 // dim, 2**31 // dim + 3, 2**32 // dim, rows - 1]
    ids = torch.tensor([*named, -1])
    gradient = everyday(len(ids), dim)["m"]
    small = zeros(len(named), dim)
    lazy_adam_(gradient, torch.tensor([*range(len(named)), -1]), **small, lr=0.1)
    with _core.target(target):
        lazy_adam_(gradient, ids, **table, lr=0.1)
        lazy_adam_(gradient[:0], ids[:0].int(), **table, lr=0.1)
    for name, tensor in table.items():
        assert same_bits(tensor[ids[:-1]], small[name]), name
        for row in (0, 1, 2, 3, 4, 6, 7, 9, 10):
            assert not tensor[row].any()


FORBIDDEN = """
import ctypes, mmap, sys, torch, anyfuse
from anyfuse import _core
sys.path.insert(0, {tests!r})
from test_lazy_adam import forbid_all_but, unbacked
rows, dim = 10_000_000, 64
named = [3, 70, 71, 5_000_000, rows - 1]
tables = {{name: unbacked(rows, dim) for name in ("m", "v", "var")}}
for table in tables.values():
    forbid_all_but(table, named)
ids = torch.tensor([named[0], *named, -1, named[-1]])
for target in _core.available_targets():
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with _core.target(target):
            anyfuse.lazy_adam_(torch.ones(len(ids), dim), ids, **tables, lr=0.1)
            anyfuse.lazy_adam_(torch.ones(5, dim), ids[1:6].int(), **tables, lr=0.1, assume_unique=True)
assert all(bool(table[row].any()) for table in tables.values() for row in named)
print("only named rows")
"""


def forbid_all_but(table: Tensor, named: list[int]) -> None:
    """From now on, to touch a page that holds none of the named rows ends the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    page, size = mmap.PAGESIZE, table[0].nbytes
    start = table.data_ptr()
    assert start % page == 0
    length = -(-table.nbytes // page) * page
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(length), 0) == 0
    for row in named:
        first, last = row * size // page, ((row + 1) * size - 1) // page
        span = ctypes.c_size_t((last - first + 1) * page)
        assert libc.mprotect(ctypes.c_void_p(start + first * page), span, mmap.PROT_READ | mmap.PROT_WRITE) == 0


def test_case_o51_no_other_row_of_the_table_is_touched() -> None:
    """The work does not grow with the table: all pages of a table of 10 million rows that hold no named row are made
    inaccessible, so that a single read there would end the process."""
    code = FORBIDDEN.format(tests=str(Path(__file__).parent))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert result.stdout.strip() == "only named rows"


# ---- what else the interface promises ----


def test_strided_tables_are_stepped_through_their_views() -> None:
    """By their named rows: the interleaved state of one storage stays where it is."""
    packed = torch.randn(100, 3, 20, generator=torch.Generator().manual_seed(0)).abs()
    before = packed.clone()
    ids = torch.tensor([99, 4, -1, 4, 50], dtype=torch.int32)
    gradient = everyday(5, 20)["m"]
    expected = {name: packed[:, i].contiguous() for i, name in enumerate(("m", "v", "var"))}
    lazy_adam_(gradient, ids, **expected, lr=0.1)
    lazy_adam_(gradient, ids, packed[:, 0], packed[:, 1], packed[:, 2], lr=0.1)
    for i, tensor in enumerate(expected.values()):
        assert same_bits(packed[:, i], tensor)
    untouched = torch.ones(100, dtype=torch.bool)
    untouched[[4, 50, 99]] = False
    assert same_bits(packed[untouched], before[untouched])


@pytest.mark.parametrize(
    "lr", [0.1, torch.tensor([0.1]), torch.tensor(0.1, dtype=torch.float64), [0.1, torch.tensor([0.1])]]
)
def test_lr_is_a_number_a_tensor_or_one_for_each_table(lr: Any) -> None:
    one, two, other = everyday(5, 8), everyday(5, 8), everyday(5, 8)
    lazy_adam_(torch.ones(1, 8), torch.tensor([2]), **one, lr=0.1)
    lists = {name: [two[name], other[name]] for name in two}
    lazy_adam_([torch.ones(1, 8)] * 2, [torch.tensor([2])] * 2, **lists, lr=lr)
    assert all(same_bits(one[name], two[name]) and same_bits(one[name], other[name]) for name in one)


def test_the_bound_of_epsilon_is_compared_in_fp32() -> None:
    for epsilon in (1e-8, float(torch.tensor(1e-8)), -1e-8, 1.0):
        lazy_adam_(torch.ones(1, 8), torch.tensor([2]), **zeros(5, 8), lr=0.1, epsilon=epsilon)
    with pytest.raises(ValueError, match=r"epsilon is 9.9e-09; accepted: a magnitude of at least 1e-8"):
        lazy_adam_(torch.ones(1, 8), torch.tensor([2]), **zeros(5, 8), lr=0.1, epsilon=9.9e-9)


def test_a_broken_promise_of_distinct_ids_stays_within_its_rows() -> None:
    """What the rows of equal ids hold then is not defined; no other row may change, and none may be out of bounds."""
    tables = {name: guarded(50, 16, seed) for seed, name in enumerate(("m", "v", "var"))}
    before = {name: whole.clone() for name, (_, whole) in tables.items()}
    ids = torch.arange(20_000) % 3 + 10
    arguments = {name: table for name, (table, _) in tables.items()}
    torch.set_num_threads(4)
    lazy_adam_(torch.ones(20_000, 16), ids, **arguments, lr=0.1, assume_unique=True)
    for name, (_, whole) in tables.items():
        changed = (whole != before[name]).any(dim=1).nonzero().flatten()
        assert changed.tolist() == [12, 13, 14], name


def test_products_take_multiples_of_eight_in_fp32_with_int32_ids() -> None:
    ids = torch.tensor([1], dtype=torch.int32)
    with anyfuse.soc("Ascend910B"):
        lazy_adam_(torch.ones(1, 8), ids, **zeros(5, 8), lr=0.1)
        with pytest.raises(ValueError, match="dim is 9 on Ascend910B; accepted: a multiple of 8"):
            lazy_adam_(torch.ones(1, 9), ids, **zeros(5, 9), lr=0.1)
        with pytest.raises(TypeError, match="indices has dtype int64 on Ascend910B"):
            lazy_adam_(torch.ones(1, 8), ids.long(), **zeros(5, 8), lr=0.1)
        with pytest.raises(TypeError, match="gradient has dtype bfloat16 on Ascend910B"):
            lazy_adam_(torch.ones(1, 8).bfloat16(), ids, **zeros(5, 8), lr=0.1)
    with anyfuse.soc("Ascend310P"), pytest.raises(ValueError, match="lazy_adam is not available on Ascend310P"):
        lazy_adam_(torch.ones(1, 8), ids, **zeros(5, 8), lr=0.1)


@pytest.mark.parametrize("name", ["native", "reference"])
def test_a_row_with_no_step_to_catch_up_is_not_touched_before_its_own(name: str) -> None:
    """Weights of -0 stay -0: they are not added to a move of nothing."""
    var, m, v = torch.full((2, 3), -0.0), torch.zeros(2, 3), torch.zeros(2, 3)
    counts = torch.tensor([4, 1], dtype=torch.int32)
    with anyfuse.backend(name):
        anyfuse.lazy_adam_(
            torch.zeros(2, 3), None, m, v, var, 0.1, row_step=counts, step=5, decay_mode="catch_up", weight_decay=0.1
        )
    assert torch.signbit(var).tolist() == [[True] * 3, [False] * 3]
    assert counts.tolist() == [5, 5]
