"""int8 rows times int8 weights, and the sums scaled back to float by a scale of each row and of each column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph

from ..ops.quant_matmul_dequant import MAX_K
from . import _kept_weights as keeping
from ._graph import (
    HALVES,
    MULS,
    VIEWS,
    AnyNode,
    Refused,
    aten,
    convert,
    dtype_of,
    hint,
    is_call,
    is_column,
    is_row_weight,
    is_tensor,
    new_call,
    same,
    value_of,
)  # fmt: skip

NAME = "quant_matmul_dequant"

# Where the operator wins: weights in all, rows, and weights for each row.
FEWEST_WEIGHTS, MOST_ROWS, ROW_WEIGHTS = 1 << 20, 256, 1 << 14


@dataclass
class Matmul:
    """What the operator is called with, and the last node that it takes the place of."""

    rows: AnyNode
    rows_view: Any
    weight: AnyNode
    transpose: bool
    scale: AnyNode
    row_scale: AnyNode
    bias: AnyNode | None
    view: Any
    dtype: torch.dtype
    last: AnyNode


def match_matmul(product: AnyNode) -> Matmul | None:
    """`product` is a matmul with sums in int32. None if its factors are no int8 matrices."""
    rows, rows_view = _rows(product.args[0])
    weight, transpose = _weight(product.args[1])
    if rows is None or weight is None:
        return None
    if value_of(product.args[0]).shape[-1] > MAX_K:
        raise Refused(f"more than {MAX_K} values are summed; the operator's sums have 32 bits")
    n = value_of(product).shape[-1]
    scale = row_scale = bias = view = None
    node = product
    while scale is None or row_scale is None:
        user = _only_user(node)
        if is_call(user, *VIEWS) and view is None and same(value_of(user).shape[-1], n):
            view = user.args[1]
        elif is_call(user, convert) and dtype_of(node) == torch.int32:
            if dtype_of(user) in HALVES:
                raise Refused(f"{user.name} rounds the sums to 16 bits; the operator scales them in float32")
        elif is_call(user, aten.add.Tensor) and not user.kwargs and dtype_of(user) == torch.int32:
            other = _other(user, node)
            if bias is not None or not is_row_weight(other, n) or dtype_of(other) != torch.int32:
                raise Refused(f"{user.name} adds what is not one int32 for each column")
            bias = other
        elif is_call(user, *MULS):
            if dtype_of(user) != torch.float32:
                raise Refused(f"{user.name} is not computed in float32; the operator scales in float32")
            dims = value_of(user).dim()
            for factor in _factors(_other(user, node), n, dims):
                if scale is None and is_row_weight(factor, n):
                    scale = factor
                elif row_scale is None and is_column(factor, dims):
                    row_scale = factor
                else:
                    raise Refused(f"{user.name} is no product with one scale for a column or one for a row")
        else:
            wanted = "columns" if scale is None else "rows"
            raise Refused(f"{user.name} follows the sums; the operator has a scale for the {wanted} there")
        node = user
    if not _covers(row_scale, node):
        raise Refused("the rows share scales; the operator has a scale for each row")
    dtype = torch.float32
    users = list(node.users)
    if len(users) == 1 and is_call(users[0], convert) and dtype_of(users[0]) in HALVES:
        node, dtype = users[0], dtype_of(users[0])
    return Matmul(rows, rows_view, weight, transpose, scale, row_scale, bias, view, dtype, node)


def pays(found: Matmul) -> bool:
    """Whether the operator is likely to be faster than the code, by what was measured on a CPU with VNNI.

    `torch._int_mm` packs its weights at every call, which the operator does once; its products themselves are a tenth
    faster with many rows, and a call costs 15 us less. Without VNNI it is a plain loop.
    """
    if not int8_is_fast():
        return True
    shape = value_of(found.rows).shape
    rows, n, k = (hint(size) for size in (math.prod(shape[:-1]), value_of(found.scale).shape[0], shape[-1]))
    if rows is None or n is None or k is None or not is_input(found.weight):
        return False
    return n * k >= FEWEST_WEIGHTS and 2 <= rows <= min(MOST_ROWS, n * k // ROW_WEIGHTS)


def int8_is_fast() -> bool:
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return supported is None or bool(supported())


def is_input(node: AnyNode) -> bool:
    """Whether a node stands for one tensor that is there before the graph runs."""
    return bool(node.op in ("placeholder", "get_attr"))


def _is_int8(node: Any) -> bool:
    return is_tensor(node) and dtype_of(node) == torch.int8


def _rows(node: Any) -> tuple[AnyNode | None, Any]:
    """The int8 matrix, and the shape it is viewed in afterwards, if it is."""
    if _is_int8(node):
        return node, None
    view = None
    while is_call(node, convert, *VIEWS) and not _is_int8(node):
        if not is_call(node, convert):
            view = node.args[1] if view is None else view
        node = node.args[0]
    return (node, view) if _is_int8(node) else (None, None)


def _weight(node: Any) -> tuple[AnyNode | None, bool]:
    """The int8 matrix, and whether its rows are the output columns."""
    transpose = False
    while is_call(node, convert, aten.permute.default, aten.t.default) and value_of(node).dim() == 2:
        if is_call(node, convert):
            if dtype_of(node) not in (torch.int32, torch.int8):
                return None, False
        elif is_call(node, aten.t.default) or list(node.args[1]) == [1, 0]:
            transpose = not transpose
        node = node.args[0]
    return (node, transpose) if _is_int8(node) and value_of(node).dim() == 2 else (None, False)


def _only_user(node: AnyNode) -> AnyNode:
    users = list(node.users)
    if len(users) != 1:
        raise Refused(f"{node.name} has {len(users)} uses; the operator gives the scaled result alone")
    return users[0]


def _other(user: AnyNode, node: AnyNode) -> Any:
    return user.args[1] if user.args[0] is node else user.args[0]


def _factors(factor: Any, n: Any, dims: int) -> list[Any]:
    """The scales of a factor: one, or a scale of columns times a scale of rows."""
    while is_call(factor, convert) and dtype_of(factor) == torch.float32 and dtype_of(factor.args[0]) == torch.float32:
        factor = factor.args[0]
    if is_row_weight(factor, n) or is_column(factor, dims):
        return [factor]
    if is_call(factor, aten.mul.Tensor) and dtype_of(factor) == torch.float32:
        return list(factor.args)
    if is_call(factor, aten.view.default, aten.unsqueeze.default) and is_row_weight(factor.args[0], n):
        return [factor.args[0]]
    return [factor]


def _covers(scale: AnyNode, result: AnyNode) -> bool:
    """Whether there is a scale for each row of the result, none broadcast."""
    return all(map(same, value_of(scale).shape[:-1], value_of(result).shape[:-1]))


def replace(graph: Graph, found: Matmul) -> None:
    with graph.inserting_before(found.last):
        rows = found.rows
        if found.rows_view is not None:
            rows = new_call(graph, aten.reshape.default, rows, found.rows_view)
        scale, row_scale = (
            node if dtype_of(node) == torch.float32 else new_call(graph, convert, node, torch.float32)
            for node in (found.scale, found.row_scale)
        )
        if found.view is not None:
            row_scale = new_call(graph, aten.reshape.default, row_scale, [-1])
        given = rows, found.weight, scale, found.bias, row_scale
        if is_input(found.weight):
            result = new_call(graph, keeping.multiply, *given, found.transpose, found.dtype)
        else:
            options: tuple[object, ...] = None, "pertoken", found.transpose, [], found.dtype, "formula"
            result = new_call(graph, torch.ops.anyfuse.quant_matmul_dequant.default, *given, *options)
        if found.view is not None:
            result = new_call(graph, aten.reshape.default, result, found.view)
    found.last.replace_all_uses_with(result)
