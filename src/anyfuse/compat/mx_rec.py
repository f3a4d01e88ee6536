"""mxRec's lazy Adam for embedding tables (Rec SDK): an optimizer in the style of TensorFlow, over torch tensors.

`apply_gradients` takes pairs of a sparse gradient and its table. A gradient is a sparse COO tensor, as
`torch.nn.Embedding(sparse=True)` gives it, or any object with `values` and `indices`, as tf.IndexedSlices has. Pairs of
a tf.IndexedSlices and a tf.Variable are taken too where TensorFlow is installed (eager mode).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .._settings import convention_or_default
from ..ops import _checks as checks
from ..ops import _numerics as numerics
from ..ops.lazy_adam import lazy_adam_

_SLOTS = ("m", "v")

_CONVENTION = "device"  # Rec SDK computes 1 - beta in fp32, by the fused operator, as is its default, and without


def create_hash_optimizer(
    learning_rate: Any = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    name: str = "LazyAdam",
    use_fusion_optim: bool = False,
) -> CustomizedLazyAdam:
    """A lazy Adam optimizer.

    Args:
        learning_rate: 0 to 10; a number, or one element in a tensor or variable of torch, TensorFlow or NumPy, which is
            read at each step.
        beta1: between 0 and 1, neither of them.
        beta2: 0 to 1.
        epsilon: above 0, up to 1; with `use_fusion_optim` at least 1e-8.
        name: 1 to 200 characters.
        use_fusion_optim: steps rows by the fused operator, which stores |v|. False: by scatter-adding differences,
            which keeps v's sign and rounds once more.

    Raises:
        ValueError: an argument outside of its range, or of another kind.
    """
    rate = _number_in(learning_rate)
    _require(_is_number(rate) and 0.0 <= rate <= 10.0, "learning_rate", learning_rate, "0 to 10")
    _require(_is_number(beta1) and 0.0 < beta1 < 1.0, "beta1", beta1, "between 0 and 1")
    _require(_is_number(beta2) and 0.0 <= beta2 <= 1.0, "beta2", beta2, "0 to 1")
    _require(_is_number(epsilon) and 0.0 < epsilon <= 1.0, "epsilon", epsilon, "above 0, up to 1")
    _require(isinstance(name, str) and 1 <= len(name) <= 200, "name", name, "a string of 1 to 200 characters")
    _require(isinstance(use_fusion_optim, bool), "use_fusion_optim", use_fusion_optim, "True or False")
    return CustomizedLazyAdam(learning_rate, beta1, beta2, epsilon, False, name, use_fusion_optim)


def _number_in(value: Any) -> Any:
    """The number of a tensor or variable of one element; anything else as it is."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value
    if hasattr(value, "numpy"):  # TensorFlow's
        value = value.numpy()
    return value.item() if getattr(value, "size", 0) == 1 else value


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require(condition: bool, name: str, value: Any, accepted: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {value!r}; accepted: {accepted}")


class CustomizedLazyAdam:
    """What `create_hash_optimizer` makes.

    Every table has the slots m and v, made of zeros when its first gradient comes. All tables share the count of steps,
    of which the bias correction is computed: lr_t = lr·sqrt(1 - beta2^t)/(1 - beta1^t). `use_locking` makes no
    difference: a step is one call, which no other interrupts.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "LazyAdam",
        use_fusion_optim: bool = False,
    ) -> None:
        self.learning_rate = learning_rate
        self.beta1, self.beta2, self.epsilon = float(beta1), float(beta2), float(epsilon)
        self.name, self.use_fusion_optim = name, use_fusion_optim
        self.steps = 0
        # By identity: tables are tensors, whose == is elementwise. The table is kept, so that its id stays its own.
        self._slots: dict[int, tuple[Any, dict[str, Any]]] = {}

    def get_name(self) -> str:
        return self.name

    def get_slot_names(self) -> list[str]:
        return list(_SLOTS)

    def get_slot(self, var: Any, name: str) -> Any:
        """The slot "m" or "v" of a table; None before its first gradient."""
        return self._slots[id(var)][1].get(name) if id(var) in self._slots else None

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: Any = None, name: Any = None
    ) -> None:
        """Steps the rows that the gradients name.

        Negative ids are skipped; the gradients of equal ids are summed first. Pairs without a gradient are left out.

        Args:
            grads_and_vars: pairs of a sparse gradient and a float32 table (rows, dim).
            global_step: a tensor or variable that is counted up.
            name: not used.

        Raises:
            NotImplementedError: a dense gradient.
            ValueError: no gradient at all, a gradient that does not fit its table.
            IndexError: an id beyond the rows of its table. Nothing has been written.
        """
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        if not pairs:
            raise ValueError("grads_and_vars holds no gradient; accepted: at least one")
        tables = [_table(grad, var) for grad, var in pairs]
        rate = self._rate(self.steps + 1)
        slots = [self._slots_of(var, table) for (_, var), table in zip(pairs, tables, strict=True)]
        with torch.no_grad():
            if self.use_fusion_optim:
                self._step_fused(tables, slots, rate)
            else:
                self._step_by_differences(tables, slots, rate)
        self.steps += 1
        _count_up(global_step)

    def _rate(self, t: int) -> float:
        return float(_number_in(self.learning_rate)) * math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)

    def _slots_of(self, var: Any, table: Any) -> dict[str, Any]:
        if id(var) not in self._slots:
            self._slots[id(var)] = var, {name: table.new_slot(f"{self.name}/{name}") for name in _SLOTS}
        return self._slots[id(var)][1]

    def _step_fused(self, tables: list[Any], slots: list[dict[str, Any]], rate: float) -> None:
        work = [table.open(slot) for table, slot in zip(tables, slots, strict=True)]
        columns = [list(column) for column in zip(*work, strict=True)]
        values, ids, m, v, var = columns
        lazy_adam_(values, ids, m, v, var, rate, self.beta1, self.beta2, self.epsilon)
        for table, slot, (_, _, m_, v_, var_) in zip(tables, slots, work, strict=True):
            table.close(slot, m_, v_, var_)

    def _step_by_differences(self, tables: list[Any], slots: list[dict[str, Any]], rate: float) -> None:
        work = [table.open(slot) for table, slot in zip(tables, slots, strict=True)]
        changes = [self._differences(values, ids, m, v, len(var), rate) for values, ids, m, v, var in work]
        for (_, _, *tensors), (ids, *differences) in zip(work, changes, strict=True):
            for tensor, difference in zip(tensors, differences, strict=True):
                tensor.index_add_(0, ids, difference)
        for table, slot, (_, _, m, v, var) in zip(tables, slots, work, strict=True):
            table.close(slot, m, v, var)

    def _differences(
        self, values: Tensor, ids: Tensor, m: Tensor, v: Tensor, rows: int, rate: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ids, g = _sum_by_id(values, ids, rows)
        beta1, beta2, epsilon = numerics.f32(self.beta1), numerics.f32(self.beta2), numerics.f32(self.epsilon)
        device = convention_or_default(None, _CONVENTION) == "device"
        betas = (beta1, beta2) if device else (self.beta1, self.beta2)
        rest1, rest2 = (numerics.f32(1.0 - beta) for beta in betas)
        m_old, v_old = m[ids], v[ids]
        m_new = m_old * beta1 + g * rest1
        v_new = v_old * beta2 + (g * g) * rest2
        change = (m_new * -numerics.f32(rate)) / (numerics.correctly_rounded_sqrt(v_new.abs()) + epsilon)
        return ids, m_new - m_old, v_new - v_old, change


def _sum_by_id(values: Tensor, ids: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The distinct ids that are not negative, and the sums of their gradients in order of appearance."""
    kept = ids >= 0
    ids, positions = ids[kept].unique(return_inverse=True)
    if len(ids) and int(ids[-1]) >= rows:
        raise IndexError(f"indices holds {int(ids[-1])}; accepted: ids below {rows}, the rows of the table")
    sums = torch.zeros(len(ids), values.shape[1], dtype=values.dtype, device=values.device)
    return ids, sums.index_add_(0, positions, values[kept])


def _count_up(global_step: Any) -> None:
    if isinstance(global_step, Tensor):
        global_step.add_(1)
    elif global_step is not None:
        global_step.assign_add(1)


# ---- tables ----


def _table(grad: Any, var: Any) -> Any:
    if isinstance(var, Tensor):
        return _TorchTable(grad, var)
    if "tensorflow" in sys.modules:
        from ._tensorflow import VariableTable

        return VariableTable(grad, var)
    raise TypeError(f"a table is a {type(var).__name__}; accepted: a tensor, or a tf.Variable")


class _TorchTable:
    """A table in a tensor, with its gradient. What is opened is the tensors themselves."""

    def __init__(self, grad: Any, var: Tensor) -> None:
        values, ids = sparse_parts(grad)
        checks.require_tensor("a table", var, (torch.float32,))
        checks.require(var.dim() == 2, f"a table has shape {tuple(var.shape)}; accepted: (rows, dim)")
        checks.require_tensor("a gradient's values", values, (torch.float32,))
        checks.require_tensor("a gradient's ids", ids, (torch.int32, torch.int64))
        ids = ids.reshape(-1) if ids.dim() == 2 and ids.shape[1] == 1 else ids
        checks.require(ids.dim() == 1, f"a gradient's ids have shape {tuple(ids.shape)}; accepted: (n,) or (n, 1)")
        checks.require_shape(
            "a gradient's values", values, (len(ids), var.shape[1]), "its ids and the rows of its table"
        )
        self.var, self.values, self.ids = var, values, ids

    def new_slot(self, name: str) -> Tensor:
        return torch.zeros_like(self.var, requires_grad=False)

    def open(self, slots: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradient, ids, m, v and table, to be stepped in place."""
        return self.values, self.ids, slots["m"], slots["v"], self.var

    def close(self, slots: dict[str, Any], m: Tensor, v: Tensor, var: Tensor) -> None:
        """Nothing is left to write."""


def sparse_parts(grad: Any) -> tuple[Tensor, Tensor]:
    """Values and ids of a sparse gradient. NotImplementedError for a dense one."""
    if isinstance(grad, Tensor):
        if grad.layout is not torch.sparse_coo:
            raise NotImplementedError(
                "a gradient is dense; accepted: sparse gradients, which name the rows they belong to"
            )
        if grad.sparse_dim() != 1:
            raise ValueError(f"a gradient has {grad.sparse_dim()} sparse dimensions; accepted: 1")
        return grad._values(), grad._indices()[0]
    if not (hasattr(grad, "values") and hasattr(grad, "indices")):
        raise NotImplementedError(f"a gradient is a {type(grad).__name__}; accepted: sparse gradients")
    return torch.as_tensor(grad.values), torch.as_tensor(grad.indices)


#: What the module of mxRec holds.
CONTENTS = {"create_hash_optimizer": create_hash_optimizer, "CustomizedLazyAdam": CustomizedLazyAdam}
