"""Elementwise float32 arithmetic of a graph, whichever way it is called: sums, products and fractions with scalars."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ._graph import (
    HALVES,
    AnyNode,
    aten,
    convert,
    dtype_of,
    is_call,
    is_number,
    is_tensor,
    new_call,
    same,
    same_shape,
    value_of,
    widened,
)


class Operation(NamedTuple):
    """`add`, `sub`: a ± alpha·b; `fma`: a·b + c; `addcmul`, `addcdiv`: a + value·b·c, a + value·b/c; others as they are
    called. `kind` is "" for what is none of those, or is not computed in float32."""

    kind: str
    args: tuple[Any, ...]


NOTHING = Operation("", ())
_ARGUMENTS = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "pow": 2, "sqrt": 1, "neg": 1, "reciprocal": 1, "fma": 3, "addcmul": 3,
    "addcdiv": 3,
}  # fmt: skip
_WIDE = (torch.float32, torch.float64)  # hold a number as it takes part in float32 arithmetic; others round it first
_FACTORS = {"add": "alpha", "sub": "alpha", "addcmul": "value", "addcdiv": "value"}


def read(node: Any) -> Operation:
    """The operation that gave a value, be it one tensor's or one of a list's (`_foreach_mul`)."""
    if isinstance(node, Operation):
        return node
    node = stored(node)
    if not is_tensor(node) or value_of(node).dtype != torch.float32:
        return NOTHING
    index: Any = None
    if is_call(node, operator.getitem):
        node, index = node.args
    schema = getattr(node.target, "_schema", None)
    name = "" if schema is None else schema.name.rpartition("::")[2]
    kind = name.removeprefix("_foreach_")
    count = _ARGUMENTS.get(kind)
    if count is None or (index is not None) != name.startswith("_foreach_"):
        return NOTHING
    args = [arg[index] if isinstance(arg, (list, tuple)) else arg for arg in node.args]
    named = dict(node.kwargs)
    if kind in _FACTORS:
        args = [*args, named.pop(_FACTORS[kind], 1)][: count + 1]
    if named or len(args) != count + (kind in _FACTORS) or (kind in _FACTORS and not is_number(args[-1])):
        return NOTHING
    return Operation(kind, tuple(args))


def stored(node: Any) -> Any:
    """The value behind copies that change no bit."""
    while True:
        if is_call(node, aten.copy.default) and same_shape(node, node.args[1]) and _keeps(node, node.args[1]):
            node = node.args[1]
        elif is_call(node, convert) and _keeps(node, node.args[0]):
            node = node.args[0]
        else:
            return node


def _keeps(node: AnyNode, source: AnyNode) -> bool:
    return dtype_of(node) == dtype_of(source)


def same_value(a: Any, b: Any) -> bool:
    return isinstance(a, Node) and isinstance(b, Node) and widened(stored(a)) is widened(stored(b))


def terms(node: Any) -> tuple[tuple[float, Any], tuple[float, Any]] | None:
    """The two terms of a sum, each with a number that it is multiplied with; an unrounded product is one, too."""
    kind, args = read(node)
    if kind in ("add", "sub"):
        return (1, args[0]), (args[2] if kind == "add" else -args[2], args[1])
    if kind == "fma":
        return (1, args[2]), (1, Operation("mul", args[:2]))
    if kind in ("addcmul", "addcdiv"):
        return (1, args[0]), (args[3], Operation("mul" if kind == "addcmul" else "div", args[1:3]))
    return None


def is_unrounded(node: Any) -> bool:
    """Whether a sum may be one of a product that is not rounded before it is added."""
    return read(node).kind in ("fma", "addcmul", "addcdiv")


class Product(NamedTuple):
    """A scalar: a number times and through scalars that the graph computes."""

    number: float
    over: tuple[Node, ...] = ()
    under: tuple[Node, ...] = ()

    def times(self, other: Product) -> Product:
        over, under = [*self.over, *other.over], [*self.under, *other.under]
        for node in list(over):
            if node in under:
                over.remove(node)
                under.remove(node)
        return Product(self.number * other.number, tuple(over), tuple(under))

    def inverse(self) -> Product:
        return Product(1.0 / self.number if self.number else float("inf"), self.under, self.over)

    def is_number(self) -> bool:
        return not self.over and not self.under

    def is_zero(self) -> bool:
        return self.number == 0

    def is_moderate(self) -> bool:
        """Whether its number's square and its inverse are float32 that lose no digits."""
        return 2.0**-60 <= abs(self.number) <= 2.0**60

    def put(self, graph: Graph) -> Node | None:
        """The graph's node of its value; None where it is a number."""
        if self.is_number():
            return None
        # Arithmetic of tensors takes scalars of 16 bits as they are; a product of two would be rounded to 16 bits.
        over, under = ([_widened(graph, node) for node in nodes] for nodes in (self.over, self.under))
        node: Any = over[0] if over else None
        for factor in over[1:]:
            node = new_call(graph, aten.mul.Tensor, node, factor)
        for i, divisor in enumerate(under):
            if node is None and i == 0:
                node = new_call(graph, aten.reciprocal.default, divisor)
            else:
                node = new_call(graph, aten.div.Tensor, node, divisor)
        return node if self.number == 1 else new_call(graph, aten.mul.Tensor, node, self.number)


def _widened(graph: Graph, node: Node) -> Node:
    return new_call(graph, convert, node, torch.float32) if dtype_of(node) in HALVES else node


ONE, ZERO = Product(1.0), Product(0.0)


def as_product(value: Any) -> Product | None:
    """A number, a tensor that is filled with one, or a one-element tensor as a scalar; None for other values."""
    if is_number(value):
        return Product(float(value))
    if is_call(value, aten.full.default) and is_number(value.args[1]) and dtype_of(value) in _WIDE:
        return Product(float(value.args[1]))
    if is_tensor(value) and value_of(value).dtype.is_floating_point and value_of(value).dim() < 2:
        return Product(1.0, (value,)) if same(value_of(value).numel(), 1) else None
    return None


class Fraction(NamedTuple):
    """factor·top / bottom; `bottom` None stands for 1."""

    factor: Product
    top: Any
    bottom: Any = None


def fraction(node: Any) -> Fraction:
    """A value without its scalar factors, and its divisor apart."""
    kind, args = read(node)
    if kind == "neg":
        inner = fraction(args[0])
        return inner._replace(factor=inner.factor.times(Product(-1.0)))
    if kind == "mul":
        for scalar, other in (args, args[::-1]):
            factor = as_product(scalar)
            if factor is not None and as_product(other) is None:
                inner = fraction(other)
                return inner._replace(factor=inner.factor.times(factor))
    if kind == "div":
        divisor = as_product(args[1])
        if divisor is not None:
            inner = fraction(args[0])
            return inner._replace(factor=inner.factor.times(divisor.inverse()))
        top, bottom = fraction(args[0]), fraction(args[1])
        if top.bottom is None and bottom.bottom is None and as_product(args[0]) is None:
            return Fraction(top.factor.times(bottom.factor.inverse()), top.top, bottom.top)
    return Fraction(ONE, node)
