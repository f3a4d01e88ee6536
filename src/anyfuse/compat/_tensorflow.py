"""Tables in TensorFlow variables, with tf.IndexedSlices for gradients. Imported only where TensorFlow is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

tf = import_module("tensorflow")


class VariableTable:
    """A table in a tf.Variable, with its gradient. Opening it reads the rows that the gradient names; closing writes.

    The work depends on the named rows alone, as with tensors; but rows are copied both ways.
    """

    def __init__(self, grad: Any, var: Any) -> None:
        if not isinstance(var, tf.Variable):
            raise TypeError(f"a table is a {type(var).__name__}; accepted: a tensor, or a tf.Variable")
        if not isinstance(grad, tf.IndexedSlices):
            raise NotImplementedError(f"a gradient is a {type(grad).__name__}; accepted: tf.IndexedSlices")
        if not tf.executing_eagerly():
            raise RuntimeError("TensorFlow builds a graph; accepted: eager execution (outside of tf.function)")
        if var.dtype != tf.float32 or len(var.shape) != 2:
            raise ValueError(f"a table is {var.dtype} of shape {tuple(var.shape)}; accepted: float32 (rows, dim)")
        self.var = var
        values, ids = np.asarray(grad.values), np.asarray(grad.indices).reshape(-1)
        if values.shape != (len(ids), int(var.shape[1])):
            raise ValueError(f"a gradient has shape {values.shape}; accepted: {(len(ids), int(var.shape[1]))}")
        rows = int(var.shape[0])
        if len(ids) and int(ids.max()) >= rows:
            raise IndexError(f"indices holds {int(ids.max())}; accepted: ids below {rows}, the rows of the table")
        self.ids, places = np.unique(ids[ids >= 0], return_inverse=True)
        self.values, self.places = values[ids >= 0], places

    def new_slot(self, name: str) -> Any:
        return tf.Variable(tf.zeros_like(self.var), trainable=False, name=name.replace("/", "_"))

    def open(self, slots: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradient, the place of each row among those read, and the rows of m, v and the table."""
        m, v, var = (self._read(variable) for variable in (slots["m"], slots["v"], self.var))
        return torch.tensor(self.values), torch.tensor(self.places, dtype=torch.int64), m, v, var

    def close(self, slots: dict[str, Any], m: Tensor, v: Tensor, var: Tensor) -> None:
        for variable, rows in ((slots["m"], m), (slots["v"], v), (self.var, var)):
            variable.scatter_update(tf.IndexedSlices(rows.numpy(), self.ids))

    def _read(self, variable: Any) -> Tensor:
        return torch.tensor(np.asarray(tf.gather(variable, self.ids)))
