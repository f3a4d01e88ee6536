"""lazy_adam on GPUs. The mathematics is in `ops/lazy_adam.py`.

For each combination of dtypes in a list of tables: one kernel writes a key (table, id) for each row of the gradient, a
stable sort brings equal keys together (none with `assume_unique`, a mask, or all rows), and one kernel walks over them;
the first row of a run sums the run in order of appearance and steps the table's row. No order depends on the
scheduling, and the work depends on the gradient's rows alone.

Results are built to equal the CPU's bit for bit on NVIDIA, with numbers of the step on the host or on the device: what
they are made of in double is products, a square root and quotients, each rounded once, and no pow. On AMD the compiler
expands a division into a sequence of fused multiply-adds; that its last bit is the correctly rounded one is not
promised. Rows that catch up take their numbers in double, one set for each step that was left out: where a GPU has few
units for double, they cost more than the rest.

Ids that would be refused (beyond their table; negative ones with `refuse_negative`) cannot be before anything is
written without waiting for the device: they are skipped, and the IndexError comes with a later call on that device, or
from `raise_out_of_range`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import _checks as checks
from ..ops import _memory as memory
from ..ops import _numerics as numerics
from ..ops.lazy_adam import IDS, Call, Exact, check, check_step_values, moves_that_count
from ._launch import (
    DTYPES,
    EVERYWHERE,
    Launch,
    Variant,
    by_dtypes,
    capturing,
    columns,
    find,
    first_blocks,
    number,
    numbers,
    on_host,
    ones,
    spread,
    table,
)
from ._maths import stored, widen
from ._watch import Watch, watch_of
from ._watch import raise_out_of_range as raise_out_of_range

#: Rows whose keys a program writes; columns, and elements, that a program steps.
KEYS, COLUMNS, ELEMENTS = 512, 256, 512

#: Most tables, the bits of a key below the table's number, and the type of a key: twice the bits take twice the time to
#: sort. No table has 2^40 rows: they would fill 1 TB with one byte each.
KEY_TYPES = ((1, 31, torch.int32), (128, 24, torch.int32), (2**23, 40, torch.int64))

#: How many of the rows that follow with the same id are loaded at once.
AHEAD = tl.constexpr(4)

#: Bits of a count of steps that is not known to be shorter.
COUNT_BITS = 31

#: How `indices` name rows, as the type of their elements; None: all rows.
INDICES = {torch.int32: tl.int32, torch.int64: tl.int64, torch.bool: tl.uint8, None: None}


# ---- kernels ----


@triton.jit(do_not_specialize=["padding"], do_not_specialize_on_alignment=["count"])
def keys_kernel(
    table, keys, flags, found_inf, padding, count,
    ID: tl.constexpr, ID_BITS: tl.constexpr, REFUSE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """keys[p] = the number of the table and the id of the gradients' row p, -1 for a row that is skipped."""
    block = tl.program_id(0).to(tl.int64)
    i = find(table, count, block)
    row = (block - tl.load(table + i)) * BLOCK + tl.arange(0, BLOCK)
    size = tl.load(table + count + i)
    mask = row < size
    if found_inf is not None:
        size = tl.where(tl.load(found_inf) != 0, 0, size)
    named = row < size
    if ID is None:
        id = row
    else:
        indices = tl.load(table + 4 * count + i).to(tl.pointer_type(ID))
        if ID == tl.uint8:  # a mask
            id = tl.where(tl.load(indices + row, named, other=0) != 0, row, -1)
        else:
            id = tl.load(indices + row, named, other=0).to(tl.int64)
            refused = named & (id >= tl.load(table + 3 * count + i))
            tl.store(flags + tl.zeros_like(id), tl.full((BLOCK,), 1, tl.int32), refused)
            if REFUSE:
                negative = named & (id < 0)
                if padding is not None:
                    negative = negative & (id != padding)
                tl.store(flags + 1 + tl.zeros_like(id), tl.full((BLOCK,), 1, tl.int32), negative)
            named = named & (id >= 0) & (refused == 0)
            if padding is not None:
                named = named & (id != padding)
    key = tl.where(named & (id >= 0), id | (i.to(tl.int64) << ID_BITS), -1)
    tl.store(keys + tl.load(table + 2 * count + i) + row, key.to(keys.dtype.element_ty), mask)


@triton.jit
def _constant(exact, k: tl.constexpr):
    """A number of the call in double: beta1, beta2, sqrt(beta2), epsilon, weight_decay."""
    return tl.load(exact + k).to(tl.float64, bitcast=True)


@triton.jit
def _power(base, n, bits):
    """base^n by repeated squaring, in double, of numbers below 2^bits."""
    result = tl.full(n.shape, 1.0, tl.float64)
    factor = result * base
    for _ in range(bits):
        result = tl.where((n & 1) != 0, result * factor, result)
        factor = factor * factor
        n = n >> 1
    return result


@triton.jit
def _corrected(exact, lr, power1, power2, OUTSIDE: tl.constexpr):
    """The learning rate and epsilon in double after beta1^n and beta2^n, n the number of the step."""
    epsilon = _constant(exact, 3) + tl.zeros_like(power2)
    root = tl.sqrt(1.0 - power2)
    if OUTSIDE:
        epsilon = epsilon * root
    return lr * root / (1.0 - power1), epsilon


@triton.jit(do_not_specialize_on_alignment=["count"])
def numbers_kernel(
    lr, steps, exact, result, count, CORRECTED: tl.constexpr, OUTSIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """-lr, epsilon and the decay factor of each table, (3, count)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rate = tl.load(lr + i, i < count, other=0.0)
    decay = 1.0 - rate * _constant(exact, 4)
    epsilon = _constant(exact, 3) + tl.zeros_like(rate)
    if CORRECTED:
        n = tl.load(steps + i, i < count, other=1)
        rate, epsilon = _corrected(
            exact, rate, _power(_constant(exact, 0), n, 63), _power(_constant(exact, 1), n, 63), OUTSIDE
        )
    tl.store(result + i, -rate.to(tl.float32), i < count)
    tl.store(result + count + i, epsilon.to(tl.float32), i < count)
    tl.store(result + 2 * count + i, decay.to(tl.float32), i < count)


@triton.jit
def _caught_up(
    m, v, var, last, skipped, lr, decay, exact, moves, bits, CORRECTED: tl.constexpr, OUTSIDE: tl.constexpr
):  # fmt: skip
    """Rows that were last named at step `last`, after the steps that did not name them."""
    beta1, beta2, root_beta2 = _constant(exact, 0), _constant(exact, 1), _constant(exact, 2)
    wanted = tl.where(last > 0, tl.minimum(skipped, moves), 0)
    power1, power2 = _power(beta1, last, bits), _power(beta2, last, bits)
    decay1 = tl.full(last.shape, 1.0, tl.float64)
    root_decay = decay1
    root = tl.sqrt_rn(tl.abs(v))
    moved = tl.zeros_like(m)
    rate = lr
    epsilon = _constant(exact, 3) + tl.zeros_like(lr)
    for k in range(tl.max(wanted, axis=0).to(tl.int32)):
        decay1 = decay1 * beta1
        root_decay = root_decay * root_beta2
        if CORRECTED:
            power1 = power1 * beta1
            power2 = power2 * beta2
            rate, epsilon = _corrected(exact, lr, power1, power2, OUTSIDE)
        minus_lr = -(rate * decay1).to(tl.float32)
        below = root * root_decay.to(tl.float32)[:, None] + epsilon.to(tl.float32)[:, None]
        after = moved * decay[:, None] + tl.div_rn(m * minus_lr[:, None], below)
        moved = tl.where((k < wanted)[:, None], after, moved)
    kept = 1.0 - lr * _constant(exact, 4)
    var_decay = _power(kept, skipped, bits).to(tl.float32)[:, None]
    sum_decay = _power(kept, skipped - wanted, bits).to(tl.float32)[:, None]
    late = (skipped > 0)[:, None]
    m = tl.where(late, m * _power(beta1, skipped, bits).to(tl.float32)[:, None], m)
    v = tl.where(late, v * _power(beta2, skipped, bits).to(tl.float32)[:, None], v)
    return m, v, tl.where(late, var * var_decay + moved * sum_decay, var)


@triton.jit
def _rows(table, column, t, mask, count, DTYPE: tl.constexpr):
    """Addresses, and the strides of rows and columns, of one tensor of each named table."""
    address = tl.load(table + column * count + t, mask, other=0).to(tl.pointer_type(DTYPE))
    return address, tl.load(table + (column + 1) * count + t, mask, other=0)


@triton.jit(do_not_specialize=["n", "moves", "bits"], do_not_specialize_on_alignment=["count"])
def kernel(
    table, keys, order, of_tables, lr, steps, exact, factor, n, count, beta1, rest1, beta2, rest2, moves, bits,
    GRADIENT: tl.constexpr, VAR: tl.constexpr, ID_BITS: tl.constexpr, MULTIPLE: tl.constexpr, UNIT: tl.constexpr,
    BY_ROW: tl.constexpr, CATCH_UP: tl.constexpr, CORRECTED: tl.constexpr, OUTSIDE: tl.constexpr,
    STOCHASTIC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    key = tl.load(keys + slot, slot < n, other=-1).to(tl.int64)
    begins = key >= 0
    if order is not None:
        begins = begins & (tl.load(keys + slot - 1, begins & (slot > 0), other=-1) != key)
    t = tl.where(begins, key >> ID_BITS, 0)
    id = tl.where(begins, key & ((1 << ID_BITS) - 1), 0)
    dim = tl.load(table + 6 * count + t, begins, other=0)
    first_row = tl.load(table + 2 * count + t, begins, other=0)
    gradient = tl.load(table + 5 * count + t, begins, other=0).to(tl.pointer_type(GRADIENT))
    m_rows, m_stride = _rows(table, 7, t, begins, count, tl.float32)
    v_rows, v_stride = _rows(table, 10, t, begins, count, tl.float32)
    var_rows, var_stride = _rows(table, 13, t, begins, count, VAR)
    if MULTIPLE > 1:  # rows begin at multiples of 16 bytes: wide loads
        dim = tl.multiple_of(dim, MULTIPLE)
        m_stride = tl.multiple_of(m_stride, MULTIPLE)
        v_stride = tl.multiple_of(v_stride, MULTIPLE)
        var_stride = tl.multiple_of(var_stride, MULTIPLE)
        gradient = tl.multiple_of(gradient, 16)
        m_rows = tl.multiple_of(m_rows, 16)
        v_rows = tl.multiple_of(v_rows, 16)
        var_rows = tl.multiple_of(var_rows, 16)
    if order is not None:
        position = tl.load(order + slot, begins, other=0)
    else:
        position = slot
    minus_lr = tl.load(of_tables + t)
    epsilon = tl.load(of_tables + count + t)
    decay = tl.load(of_tables + 2 * count + t)
    grad_factor = tl.load(factor)
    if BY_ROW or CATCH_UP:
        begins = begins & (dim > 0)  # a table without columns has no steps to count
        counts, stride = _rows(table, 16, t, begins, count, tl.int32)
        counts = counts + id * stride
        last = tl.maximum(tl.load(counts, begins, other=0), 0).to(tl.int64)
        rate = tl.load(lr + t)
        if BY_ROW:
            now = tl.minimum(last, 2147483646) + 1
            power1, power2 = _power(_constant(exact, 0), now, bits), _power(_constant(exact, 1), now, bits)
            corrected, corrected_epsilon = _corrected(exact, rate, power1, power2, OUTSIDE)
            minus_lr = -corrected.to(tl.float32)
            epsilon = corrected_epsilon.to(tl.float32)
        else:
            now = tl.load(steps + t)
            skipped = tl.where(begins, tl.maximum(now - 1 - last, 0), 0)
            late = tl.max(skipped, axis=0) > 0
        tl.debug_barrier()  # all threads of a row have read its count before one of them writes it
        tl.store(counts, now.to(tl.int32), begins)
    if STOCHASTIC:
        seed = tl.load(table + 18 * count + t)[:, None]
        step = tl.load(steps + t)[:, None]
    else:
        seed = None
        step = None
    for start in range(0, tl.max(dim, axis=0), COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        mask = begins[:, None] & (column < dim[:, None])
        at = gradient[:, None] + ((position - first_row) * dim)[:, None] + column
        g = widen(tl.load(at, mask, other=0.0))
        if order is not None:
            ahead = 1
            more = begins & (tl.load(keys + slot + 1, begins & (slot + 1 < n), other=-1) == key)
            while tl.max(more.to(tl.int32), axis=0) > 0:
                for _ in tl.static_range(AHEAD):  # several at a time: a row that many name waits for memory less often
                    later = tl.load(order + slot + ahead, more, other=0)
                    at = gradient[:, None] + ((later - first_row) * dim)[:, None] + column
                    g = tl.where(more[:, None], g + widen(tl.load(at, mask & more[:, None], other=0.0)), g)
                    ahead += 1
                    more = more & (tl.load(keys + slot + ahead, more & (slot + ahead < n), other=-1) == key)
        if UNIT:
            m_column = column
            v_column = column
            var_column = column
        else:
            m_column = column * tl.load(table + 9 * count + t, begins, other=0)[:, None]
            v_column = column * tl.load(table + 12 * count + t, begins, other=0)[:, None]
            var_column = column * tl.load(table + 15 * count + t, begins, other=0)[:, None]
        at_m = m_rows[:, None] + (id * m_stride)[:, None] + m_column
        at_v = v_rows[:, None] + (id * v_stride)[:, None] + v_column
        at_var = var_rows[:, None] + (id * var_stride)[:, None] + var_column
        m = tl.load(at_m, mask, other=0.0)
        v = tl.load(at_v, mask, other=0.0)
        var = widen(tl.load(at_var, mask, other=0.0))
        if CATCH_UP:
            if late:
                m, v, var = _caught_up(
                    m, v, var, last, skipped, rate, decay, exact, moves, bits, CORRECTED, OUTSIDE
                )  # fmt: skip
        g = g * grad_factor
        m = m * beta1 + g * rest1
        v = tl.abs(v * beta2 + (g * g) * rest2)
        update = tl.div_rn(m * minus_lr[:, None], tl.sqrt_rn(v) + epsilon[:, None])
        var = var * decay[:, None] + update
        tl.store(at_m, m, mask)
        tl.store(at_v, v, mask)
        index = id[:, None] * dim[:, None] + column
        tl.store(at_var, stored(var, VAR, seed, step, 0, index, index >> 32), mask)


# ---- launches ----


def rates_on(call: Call, count: int, device: torch.device) -> Tensor:
    """The learning rate of each table."""
    if call.lr_tensor:
        return spread(call.lr_tensor, count, device, torch.float64)
    return torch.full((count,), call.lr, dtype=torch.float64, device=device)


class Numbers:
    """What the kernels multiply and add, for all tables of a call."""

    def __init__(self, call: Call) -> None:
        count, device = len(call.var), call.var[0].device
        with np.errstate(all="ignore"):
            root = float(np.sqrt(np.float64(call.beta2)))
        doubles = (call.beta1, call.beta2, root, call.epsilon, call.weight_decay)
        self.exact = table(device, struct.unpack("<5q", struct.pack("<5d", *doubles))).view(-1)
        self.steps = spread(call.step, count, device, torch.int64) if call.needs_step else None
        self.launches: list[Launch] = []
        self.of_tables = (
            self._on_host(call, count) if on_host((*call.lr_tensor, *call.step)) else self._on_device(call, count)
        )
        self.lr = rates_on(call, count, device) if call.counts_rows else None
        known = call.decay_mode == "catch_up" and on_host(call.step)
        self.bits = max(checks.step_values(call.step, count)).bit_length() if known else COUNT_BITS
        sign = -1.0 if call.maximize else 1.0
        factor = sign if call.grad_scale is None else sign / call.grad_scale.to(device).double()
        self.factor = number(factor, device)
        self.found_inf = None if call.found_inf is None else number(call.found_inf != 0, device)

        def given(x: float) -> float:
            return numerics.f32(x) if call.convention == "device" else x

        self.common = {
            "exact": self.exact if call.counts_rows else None,
            "factor": self.factor,
            "beta1": numerics.f32(call.beta1),
            "rest1": numerics.f32(1.0 - given(call.beta1)),
            "beta2": numerics.f32(call.beta2),
            "rest2": numerics.f32(1.0 - given(call.beta2)),
            "moves": moves_that_count(call.beta1, call.beta2) if call.decay_mode == "catch_up" else 0,
            "bits": self.bits,
            "BY_ROW": call.bias_correction == "row",
            "CATCH_UP": call.decay_mode == "catch_up",
            "CORRECTED": call.bias_correction != "none",
            "OUTSIDE": call.eps_mode == "outside",
            "STOCHASTIC": bool(call.stochastic_rounding),
        }

    def _on_host(self, call: Call, count: int) -> Tensor:
        """-lr, epsilon and the decay factor of each table, (3, count)."""
        rates = [float(value) for value in call.lr_tensor] or [call.lr]
        rates = rates * count if len(rates) == 1 else rates
        steps = checks.step_values(call.step, count) if call.step else [0] * count
        exact = [Exact(rate, call) for rate in rates]
        rows = [(*each.at(step), numerics.f32(each.decay)) for each, step in zip(exact, steps, strict=True)]
        return torch.stack([numbers(column, call.var[0].device) for column in zip(*rows, strict=True)])

    def _on_device(self, call: Call, count: int) -> Tensor:
        result = torch.empty(3, count, dtype=torch.float32, device=call.var[0].device)
        self.launches.append(self.launch(call, rates_on(call, count, result.device), result))
        return result

    def launch(self, call: Call, lr: Tensor, result: Tensor) -> Launch:
        arguments = {
            "lr": lr,
            "steps": self.steps,
            "exact": self.exact,
            "result": result,
            "count": len(lr),
            "CORRECTED": call.bias_correction == "global",
            "OUTSIDE": call.eps_mode == "outside",
            "BLOCK": 128,
        }
        return Launch(numbers_kernel, (-(-len(lr) // 128),), arguments)


class Group:
    """The tables of a list that share their dtypes: what the two kernels are launched with."""

    def __init__(self, call: Call, places: Sequence[int], watch: Watch, numbers: Numbers) -> None:
        def of(values: Sequence[Any]) -> list[Any]:
            return [values[i] for i in places]

        gradient, indices = of(call.gradient), of(call.indices)
        m, v, var = of(call.m), of(call.v), of(call.var)
        device = var[0].device
        sizes = [t.shape[0] for t in gradient]
        starts, self.blocks = first_blocks(sizes, KEYS)
        first_rows = list(accumulate(sizes[:-1], initial=0))
        self.n = sum(sizes)
        state = []
        for tensors in (m, v, var):
            state += [
                [t.data_ptr() for t in tensors],
                [t.stride(0) for t in tensors],
                [t.stride(1) for t in tensors],
            ]
        counts = [[0] * len(var)] * 2
        if call.row_step:
            counts = [[t.data_ptr() for t in of(call.row_step)], [t.stride(0) for t in of(call.row_step)]]
        seeds = of(call.stochastic_rounding or [0] * len(call.var))
        dims = [t.shape[1] for t in var]
        named = [0 if ids is None else ids.data_ptr() for ids in indices]
        addresses = [named, [t.data_ptr() for t in gradient]]
        rows = [len(t) for t in var]
        self.table = table(device, starts, sizes, first_rows, rows, *addresses, dims, *state, *counts, seeds)
        most = max(rows)
        self.id_bits, key = next((b, t) for tables, b, t in KEY_TYPES if len(var) <= tables and most <= 1 << b)
        self.keys = torch.empty(self.n, dtype=key, device=device)
        self.watch, self.numbers, self.call = watch, numbers, call
        self.of_tables = columns(numbers.of_tables, places).contiguous()
        self.lr, self.steps = (None if x is None else columns(x, places) for x in (numbers.lr, numbers.steps))
        self.dim = max(dims)
        self.unit = all(stride == 1 for k in (2, 5, 8) for stride in state[k])
        multiples = [*dims, *state[1], *state[4], *state[7]]
        wide = (addresses[1], state[0], state[3], state[6])
        whole = self.unit and all(x % 16 == 0 for x in (*multiples, *(a for column in wide for a in column)))
        self.multiple = 16 if whole else 1
        kind = None if indices[0] is None else indices[0].dtype
        self.id = INDICES[kind]
        self.sorts = kind in IDS and not call.assume_unique
        self.dtypes = DTYPES[gradient[0].dtype], DTYPES[var[0].dtype]
        self.count = len(places)

    def keys_launch(self) -> Launch:
        arguments = {
            "table": self.table,
            "keys": self.keys,
            "flags": self.watch.flags,
            "found_inf": self.numbers.found_inf,
            "padding": self.call.padding_idx,
            "count": self.count,
            "ID": self.id,
            "ID_BITS": self.id_bits,
            "REFUSE": self.call.refuse_negative,
            "BLOCK": KEYS,
        }
        return Launch(keys_kernel, (self.blocks,), arguments)

    def launch(self, keys: Tensor, order: Tensor | None) -> Launch:
        """Steps the rows that `keys` name; `order` says which row of the gradients each key is of (None: all distinct,
        in place)."""
        cols = min(triton.next_power_of_2(max(self.dim, 1)), COLUMNS)
        rows = max(1, ELEMENTS // cols)
        arguments = {
            "table": self.table,
            "keys": keys,
            "order": order,
            "of_tables": self.of_tables,
            "lr": self.lr,
            "steps": self.steps,
            "n": self.n,
            "count": self.count,
            **self.numbers.common,
            "GRADIENT": self.dtypes[0],
            "VAR": self.dtypes[1],
            "ID_BITS": self.id_bits,
            "MULTIPLE": self.multiple,
            "UNIT": self.unit,
            "ROWS": rows,
            "COLUMNS": cols,
        }
        return Launch(kernel, (-(-self.n // rows),), arguments)

    def run(self) -> None:
        if self.n == 0:
            return
        self.keys_launch().run()
        keys, order = self.keys.sort(stable=True) if self.sorts else (self.keys, None)
        self.launch(keys, order).run()


def groups(call: Call, watch: Watch, numbers: Numbers) -> list[Group]:
    """One for each combination of dtypes; gradients and indices are contiguous, tables have any strides."""
    tensors = list(zip(call.gradient, call.indices, call.var, strict=True))
    return [Group(call, places, watch, numbers) for places in by_dtypes(tensors).values()]


def run(call: Call) -> None:
    check(call)
    call.check_memory()
    if not call.var:
        return
    if on_host(call.step):
        check_step_values([int(step) for step in call.step], call)
    device = call.var[0].device
    watch = watch_of(device)
    if not capturing(device):
        watch.raise_if_seen()
    indices = [None if ids is None else ids.contiguous() for ids in call.indices]
    ready = call._replace(
        gradient=memory.contiguous(call.gradient), indices=indices
    )  # kept until the launches are queued
    numbers = Numbers(ready)
    for launch in numbers.launches:
        launch.run()
    for group in groups(ready, watch, numbers):
        group.run()
    if not capturing(device):
        watch.look()


def variants() -> Iterator[Variant]:
    """What is compiled ahead of time."""
    name, watch = "lazy_adam", watch_of(torch.device("cpu"))

    def launches(
        dim: int, dtypes: tuple[torch.dtype, torch.dtype], indices: Tensor | None, **changes: Any
    ) -> tuple[list[Launch], Launch, Launch]:
        rows = 64
        tables: list[Any] = [[ones(rows, dim)], [ones(rows, dim)], [ones(rows, dim, dtype=dtypes[1])]]
        numbers: dict[str, Any] = dict(
            row_step=[], lr=0.1, lr_tensor=[], step=[], grad_scale=None, found_inf=None,
            beta1=0.9, beta2=0.999, epsilon=1e-8, assume_unique=False, convention="formula", bias_correction="none",
            eps_mode="inside", weight_decay=0.0, decay_mode="touched", refuse_negative=False, padding_idx=None,
            maximize=False, stochastic_rounding=None,
        )  # fmt: skip
        call = Call([ones(rows, dim, dtype=dtypes[0])], [indices], *tables, **(numbers | changes))
        of_call = Numbers(call)
        (group,) = groups(call, watch, of_call)
        rates, result = ones(1, dtype=torch.float64), ones(3, 1)
        scalars = of_call.launch(call, rates, result)
        return (
            [scalars, group.keys_launch()],
            group.launch(group.keys, torch.arange(64)),
            group.launch(group.keys, None),
        )

    full, half = (torch.float32,) * 2, (torch.float32, torch.bfloat16)
    ids, step = torch.arange(64, dtype=torch.int32), [torch.tensor([7])]
    (_, keys), summed, _ = launches(64, full, ids)
    yield Variant(name, "keys, int32 ids", keys)
    yield Variant(name, "fp32, 64 columns", summed)
    _, summed, _ = launches(50, (torch.bfloat16, torch.float16), ids.long())
    yield Variant(name, "bf16 on fp16, 50 columns", summed)
    _, summed, _ = launches(1, (torch.float16, torch.bfloat16), ids.long())
    yield Variant(name, "fp16 on bf16, one column", summed)
    (scalars, keys), summed, _ = launches(
        64, half, ids.long(), bias_correction="global", eps_mode="outside", weight_decay=0.1, step=step,
        grad_scale=ones(1), found_inf=ones(1), refuse_negative=True, padding_idx=0, stochastic_rounding=[3],
    )  # fmt: skip
    yield Variant(name, "numbers of the tables, corrected", scalars, EVERYWHERE)
    yield Variant(name, "keys, int64 ids, negative refused", keys, EVERYWHERE)
    yield Variant(name, "fp32 on bf16, rounded by chance", summed)
    (_, keys), _, unique = launches(64, (torch.float32, torch.float16), None, step=step, stochastic_rounding=[3])
    yield Variant(name, "keys, all rows", keys)
    yield Variant(name, "fp32 on fp16, all rows, rounded by chance", unique)
    counts = [torch.ones(64, dtype=torch.int32)]
    (_, keys), _, unique = launches(
        64, full, ids > 0, bias_correction="row", eps_mode="outside", row_step=counts
    )  # fmt: skip
    yield Variant(name, "keys, a mask", keys)
    yield Variant(name, "fp32, a mask, corrected by row", unique)
    late: dict[str, Any] = {"decay_mode": "catch_up", "row_step": counts, "step": step, "weight_decay": 0.1}
    _, summed, _ = launches(64, full, ids, bias_correction="global", eps_mode="outside", **late)
    yield Variant(name, "fp32, caught up, corrected", summed, EVERYWHERE)
    _, summed, _ = launches(300, half, ids, stochastic_rounding=[3], **late)
    yield Variant(name, "fp32 on bf16, 300 columns, caught up, rounded by chance", summed)
