"""Reading a graph of ATen operators: one small vocabulary for the matchers."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import Node

#: A node as the matchers walk it. (Its arguments are a union of fifteen types; `is_call` tells which one it is.)
AnyNode: TypeAlias = Any

aten = torch.ops.aten
convert = torch.ops.prims.convert_element_type.default

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES)

ADDS = (aten.add.Tensor, aten.add.Scalar)
MULS = (aten.mul.Tensor, aten.mul.Scalar)
DIVS = (aten.div.Tensor, aten.div.Scalar)
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


class Refused(Exception):
    """The code is an operator's in all but one respect, which the text tells."""


def is_call(value: Any, *targets: Any) -> bool:
    return isinstance(value, Node) and value.op == "call_function" and value.target in targets


def value_of(node: Node) -> Any:
    return node.meta.get("val")


def is_node(value: Any) -> bool:
    return isinstance(value, Node)


def is_tensor(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(value_of(node), Tensor)


def dtype_of(node: Node) -> torch.dtype:
    dtype: torch.dtype = value_of(node).dtype
    return dtype


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal, without a guard on them."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(a == b))


def hint(size: Any) -> int | None:
    """A size's value in the calls that the graph is made from; None where it depends on data."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else None


def same_shape(a: Node, b: Node) -> bool:
    left, right = value_of(a).shape, value_of(b).shape
    return len(left) == len(right) and all(map(same, left, right))


def is_row_weight(node: Any, cols: Any) -> bool:
    """One number for a column."""
    return is_tensor(node) and value_of(node).dim() == 1 and same(value_of(node).shape[0], cols)


def is_column(node: Any, dims: int) -> bool:
    """One number for a row, kept as a last dimension of 1."""
    return is_tensor(node) and value_of(node).dim() == dims and same(value_of(node).shape[-1], 1)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def constant(value: Any) -> float | None:
    """A number, or a constant tensor of one element that the graph holds."""
    if is_number(value):
        return float(value)
    if is_call(value, aten.lift_fresh_copy.default) and value.args[0].op == "get_attr":
        tensor = getattr(value.graph.owning_module, value.args[0].target, None)
        if type(tensor) is Tensor and tensor.numel() == 1 and tensor.is_cpu:
            with torch._subclasses.fake_tensor.unset_fake_temporarily():
                return float(tensor)
    return None


def is_zeros(node: Any) -> bool:
    while is_call(node, convert, aten.unsqueeze.default, aten.expand.default, *VIEWS):
        node = node.args[0]
    return is_call(node, aten.full.default) and node.args[1] == 0


def over_last(dims: Any, node: Node) -> bool:
    last = value_of(node).dim() - 1
    dims = [dims] if isinstance(dims, int) else dims
    return isinstance(dims, (list, tuple)) and list(dims) in ([-1], [last])


def widened(node: Any) -> Any:
    """What a chain of exact casts to wider floats starts from."""
    while is_call(node, convert) and dtype_of(node) == torch.float32 and dtype_of(node.args[0]) in HALVES:
        node = node.args[0]
    return node


def keepdim(node: Node, position: int = 2) -> bool:
    return bool(node.args[position]) if len(node.args) > position else bool(node.kwargs.get("keepdim", False))


def is_item(node: Any, index: int, target: Any) -> bool:
    return is_call(node, operator.getitem) and node.args[1] == index and is_call(node.args[0], target)


def new_call(graph: torch.fx.Graph, target: Any, *args: Any) -> Node:
    """A node with the value's description that inductor needs, put where the graph inserts at the moment."""
    node = graph.call_function(target, args)
    values = torch.fx.map_arg(args, value_of)
    tensors = [value for value in torch.utils._pytree.tree_leaves(values) if isinstance(value, Tensor)]
    mode = torch._guards.detect_fake_mode(tensors)
    assert mode is not None
    with mode:
        node.meta["val"] = target(*values)
    return node


def functional_call(
    graph: torch.fx.Graph, target: Any, named: dict[str, Any], written: dict[str, list[Node]]
) -> list[Node]:
    """A call of an operator that writes into lists of tensors, as the graph has it before inductor decides what is
    written in place: the nodes of the new values, in the order of `written`."""
    bases: list[Node] = []
    named = dict(named)
    for name, nodes in written.items():
        named[f"_{name}_length"] = len(nodes)
        named |= {f"_{name}_{i}_base_index": len(bases) + i for i in range(len(nodes))}
        bases += nodes
    functional = torch.ops.higher_order.auto_functionalized_v2
    call = graph.call_function(functional, (target,), {**named, "_all_bases": bases})
    mode = torch._guards.detect_fake_mode([value_of(node) for node in bases])
    assert mode is not None
    with mode:
        call.meta["val"] = (None, *(torch.clone(value_of(node)) for node in bases))
    return [new_call(graph, operator.getitem, call, i + 1) for i in range(len(bases))]


def last_size(graph: torch.fx.Graph, node: Node) -> Node | int:
    size = value_of(node).shape[-1]
    return size if isinstance(size, int) else new_call(graph, aten.sym_size.int, node, -1)


def filled(graph: torch.fx.Graph, like: Node, sizes: list[Any], value: float, dtype: torch.dtype) -> Node:
    """A tensor on the device of another one, filled with a number."""
    named = {"dtype": dtype, "device": value_of(like).device}
    node = graph.call_function(aten.full.default, (sizes, value), named)
    mode = torch._guards.detect_fake_mode([value_of(like)])
    assert mode is not None
    with mode:
        node.meta["val"] = aten.full.default(torch.fx.map_arg(sizes, value_of), value, **named)
    return node


def line_of(node: Node) -> str:
    """Where the user wrote it."""
    for line in reversed(str(node.meta.get("stack_trace") or "").splitlines()):
        if line.strip().startswith("File "):
            parts = line.strip().split(", ")
            return f"{parts[0].removeprefix('File ').strip(chr(34))}:{parts[1].removeprefix('line ')}"
    return node.name
