"""lazy_adam on GPUs. The mathematics is in `ops/lazy_adam.py`.

For each combination of dtypes in a list of tables: one kernel writes a key (table, id) for each row of the gradient, a
stable sort brings equal keys together (none with `assume_unique`), and one kernel walks over them; the first row of a
run sums the run in order of appearance and steps the table's row. No order depends on the scheduling, and the work
depends on the gradient's rows alone. Results are built to equal the CPU's bit for bit on NVIDIA. On AMD the compiler
expands a division into a sequence of fused multiply-adds; that its last bit is the correctly rounded one is not
promised.

Ids beyond their table cannot be refused before anything is written without waiting for the device: they are skipped,
and the IndexError comes with a later call on that device, or from `raise_out_of_range`.

The plain call has kernels: ids, and a learning rate that is used as it is given. A mask, or rows without ids,
corrections of the learning rate, weight decay, catching up, refusing negative ids, grad_scale, found_inf, maximize and
stochastic rounding have none: such a call runs on copies on the CPU, right but slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import _dispatch as d
from ..ops.lazy_adam import IDS, Call, check
from ._launch import DTYPES, Launch, by_dtypes, columns, find, first_blocks, numbers, on_host, table
from ._maths import narrow, widen

#: Rows whose keys a program writes; columns, and elements, that a program steps.
KEYS, COLUMNS, ELEMENTS = 1024, 256, 512

#: Bits of a key below the table's number. No table has that many rows: they would fill 4 TB with one byte each.
ID_BITS = tl.constexpr(40)
ID_MASK = tl.constexpr((1 << 40) - 1)

# ---- ids beyond their table ----


class _Watch:
    """A device's flag that an id was out of range, and the host's view of it, which no one waits for."""

    def __init__(self, device: torch.device) -> None:
        self.flag = torch.zeros(1, dtype=torch.int32, device=device)
        self.seen = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.copied = torch.cuda.Event() if device.type == "cuda" else None

    def look(self) -> None:
        """Sends the flag to the host."""
        self.seen.copy_(self.flag, non_blocking=True)
        if self.copied is not None:
            self.copied.record(torch.cuda.current_stream(self.flag.device))

    def raise_if_seen(self) -> None:
        if (self.copied is None or self.copied.query()) and bool(self.seen):
            self.flag.zero_()
            self.seen.zero_()
            raise IndexError("indices held an id beyond the rows of var; accepted: ids below them. It was skipped")


_watches: dict[torch.device, _Watch] = {}


def _watch(device: torch.device) -> _Watch:
    if device not in _watches:
        _watches[device] = _Watch(device)
    return _watches[device]


def raise_out_of_range(device: torch.device | str = "cuda") -> None:
    """Waits for the device; IndexError if a call since the last error named a row beyond its table."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    watch = _watch(device)
    watch.look()
    if watch.copied is not None:
        watch.copied.synchronize()
    watch.raise_if_seen()


# ---- kernels ----


@triton.jit
def keys_kernel(table, keys, flag, count, ID: tl.constexpr, BLOCK: tl.constexpr):
    """keys[p] = the number of the table and the id of the gradients' row p, -1 for an id that is skipped."""
    block = tl.program_id(0).to(tl.int64)
    i = find(table, count, block)
    row = (block - tl.load(table + i)) * BLOCK + tl.arange(0, BLOCK)
    mask = row < tl.load(table + count + i)
    indices = tl.load(table + 4 * count + i).to(tl.pointer_type(ID))
    id = tl.load(indices + row, mask, other=-1).to(tl.int64)
    beyond = id >= tl.load(table + 3 * count + i)
    tl.store(flag + tl.zeros_like(id), tl.full((BLOCK,), 1, tl.int32), beyond)
    key = tl.where((id < 0) | beyond, -1, id | (i.to(tl.int64) << ID_BITS))
    tl.store(keys + tl.load(table + 2 * count + i) + row, key, mask)


@triton.jit
def _rows(table, column, t, mask, count, DTYPE: tl.constexpr):
    """Addresses, and the strides of rows and columns, of one tensor of each named table."""
    address = tl.load(table + column * count + t, mask, other=0).to(tl.pointer_type(DTYPE))
    return address, tl.load(table + (column + 1) * count + t, mask, other=0)


@triton.jit
def kernel(
    table, keys, order, minus_lr, n, count, beta1, rest1, beta2, rest2, epsilon, max_dim,
    GRADIENT: tl.constexpr, VAR: tl.constexpr, MULTIPLE: tl.constexpr, UNIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    key = tl.load(keys + slot, slot < n, other=-1)
    begins = key >= 0
    if order is not None:
        begins = begins & (tl.load(keys + slot - 1, begins & (slot > 0), other=-1) != key)
    t = tl.where(begins, key >> ID_BITS, 0)
    id = tl.where(begins, key & ID_MASK, 0)
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
    lr = tl.load(minus_lr + t, begins, other=0.0)[:, None]
    for start in range(0, max_dim, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        mask = begins[:, None] & (column < dim[:, None])
        at = gradient[:, None] + ((position - first_row) * dim)[:, None] + column
        g = widen(tl.load(at, mask, other=0.0))
        if order is not None:
            step = 1
            more = begins & (tl.load(keys + slot + 1, begins & (slot + 1 < n), other=-1) == key)
            while tl.max(more.to(tl.int32), axis=0) > 0:
                later = tl.load(order + slot + step, more, other=0)
                at = gradient[:, None] + ((later - first_row) * dim)[:, None] + column
                g = tl.where(more[:, None], g + widen(tl.load(at, mask & more[:, None], other=0.0)), g)
                step += 1
                more = more & (tl.load(keys + slot + step, more & (slot + step < n), other=-1) == key)
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
        m = tl.load(at_m, mask, other=0.0) * beta1 + g * rest1
        v = tl.abs(tl.load(at_v, mask, other=0.0) * beta2 + (g * g) * rest2)
        var = widen(tl.load(at_var, mask, other=0.0)) + tl.div_rn(m * lr, tl.sqrt_rn(v) + epsilon)
        tl.store(at_m, m, mask)
        tl.store(at_v, v, mask)
        tl.store(at_var, narrow(var, VAR), mask)


# ---- launches ----


class Group:
    """The tables of a list that share their dtypes: what the two kernels are launched with."""

    def __init__(
        self, tables: Sequence[tuple[Tensor, ...]], minus_lr: Tensor, watch: _Watch, numbers: dict[str, float]
    ) -> None:
        gradient, indices, m, v, var = (list(column) for column in zip(*tables, strict=True))
        device = var[0].device
        sizes = [ids.shape[0] for ids in indices]
        starts, self.blocks = first_blocks(sizes, KEYS)
        first_rows = [sum(sizes[:i]) for i in range(len(sizes))]
        self.n = sum(sizes)
        state = []
        for tensors in (m, v, var):
            state += [
                [t.data_ptr() for t in tensors],
                [t.stride(0) for t in tensors],
                [t.stride(1) for t in tensors],
            ]
        dims = [t.shape[1] for t in var]
        addresses = [[t.data_ptr() for t in indices], [t.data_ptr() for t in gradient]]
        self.table = table(device, starts, sizes, first_rows, [len(t) for t in var], *addresses, dims, *state)
        self.keys = torch.empty(self.n, dtype=torch.int64, device=device)
        self.flag = watch.flag
        self.minus_lr = minus_lr
        self.numbers = numbers
        self.max_dim = max(dims)
        self.unit = all(stride == 1 for k in (2, 5, 8) for stride in state[k])
        multiples = [*dims, *state[1], *state[4], *state[7]]
        wide = (addresses[1], state[0], state[3], state[6])
        whole = self.unit and all(x % 16 == 0 for x in (*multiples, *(a for column in wide for a in column)))
        self.multiple = 16 if whole else 1
        self.id = tl.int64 if indices[0].dtype == torch.int64 else tl.int32
        self.dtypes = DTYPES[gradient[0].dtype], DTYPES[var[0].dtype]
        self.count = len(tables)

    def keys_launch(self) -> Launch:
        arguments = {
            "table": self.table,
            "keys": self.keys,
            "flag": self.flag,
            "count": self.count,
            "ID": self.id,
            "BLOCK": KEYS,
        }
        return Launch(keys_kernel, (self.blocks,), arguments)

    def launch(self, keys: Tensor, order: Tensor | None) -> Launch:
        """Steps the rows that `keys` name; `order` says which row of the gradients each key is of (None: all distinct,
        in place)."""
        cols = min(triton.next_power_of_2(max(self.max_dim, 1)), COLUMNS)
        rows = max(1, ELEMENTS // cols)
        arguments = {
            "table": self.table,
            "keys": keys,
            "order": order,
            "minus_lr": self.minus_lr,
            "n": self.n,
            "count": self.count,
            **self.numbers,
            "max_dim": self.max_dim,
            "GRADIENT": self.dtypes[0],
            "VAR": self.dtypes[1],
            "MULTIPLE": self.multiple,
            "UNIT": self.unit,
            "ROWS": rows,
            "COLUMNS": cols,
        }
        return Launch(kernel, (-(-self.n // rows),), arguments)


def groups(call: Call, watch: _Watch) -> list[Group]:
    """One for each combination of dtypes; gradients and indices are contiguous, tables have any strides."""
    if not call.var:
        return []
    count, device = len(call.var), call.var[0].device
    if on_host(call.lr):
        rates = [-d.f32(float(value)) for value in call.lr] * (count if len(call.lr) == 1 else 1)
        minus_lr = numbers(rates, device)
    else:
        minus_lr = -torch.cat([value.to(device).reshape(1).float() for value in call.lr]).expand(count)

    def given(x: float) -> float:
        return d.f32(x) if call.convention == "device" else x

    constants = {
        "beta1": d.f32(call.beta1),
        "rest1": d.f32(1.0 - given(call.beta1)),
        "beta2": d.f32(call.beta2),
        "rest2": d.f32(1.0 - given(call.beta2)),
        "epsilon": d.f32(call.epsilon),
    }
    tables: list[Any] = list(zip(call.gradient, call.indices, call.m, call.v, call.var, strict=True))
    return [
        Group([tables[i] for i in places], columns(minus_lr, places).contiguous(), watch, constants)
        for places in by_dtypes(tables).values()
    ]


def has_kernel(call: Call) -> bool:
    """Whether a call is the plain one, with ids and a learning rate to be used as it is given."""
    ids = all(value is not None and value.dtype in IDS for value in call.indices)
    absent = not call.row_step and call.grad_scale is None and call.found_inf is None
    rounds = call.stochastic_rounding is None
    plain = call.bias_correction == "none" and call.decay_mode == "touched" and call.weight_decay == 0
    return ids and absent and rounds and plain and not call.refuse_negative and not call.maximize


def run(call: Call) -> None:
    check(call)
    call.check_memory()
    if not call.var:
        return
    device = call.var[0].device
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    watch = _watch(device)
    if not capturing:
        watch.raise_if_seen()
    indices = [None if ids is None else ids.contiguous() for ids in call.indices]
    ready = call._replace(gradient=d.contiguous(call.gradient), indices=indices)  # kept until the launches are queued
    for group in groups(ready, watch):
        if group.n == 0:
            continue
        group.keys_launch().run()
        keys, order = (group.keys, None) if call.assume_unique else group.keys.sort(stable=True)
        group.launch(keys, order).run()
    if not capturing:
        watch.look()
    d.write_back(*zip(call.updated, call.updated, strict=True))
