"""[residual add,] RMSNorm [, bias] [, smooth scale], then symmetric int8 quantization of each row."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph

from ._graph import (
    ADDS,
    DIVS,
    FLOATS,
    HALVES,
    MULS,
    VIEWS,
    AnyNode,
    Refused,
    aten,
    constant,
    convert,
    dtype_of,
    filled,
    hint,
    is_call,
    is_column,
    is_item,
    is_node,
    is_number,
    is_row_weight,
    is_tensor,
    is_zeros,
    last_size,
    new_call,
    over_last,
    same,
    same_shape,
    value_of,
    widened,
)  # fmt: skip

NAME = "add_rms_norm_dynamic_quant"
OPERATOR = torch.ops.anyfuse.add_rms_norm_dynamic_quant.default
LARGEST = 127.0
THREAD_VALUES = 1 << 17  # twice what makes up for a call and for the fusions with the code around that are lost


@dataclass
class Walk:
    """Follows a value back to what it was made of, and notes what the operator would do otherwise."""

    differences: dict[str, str] = field(default_factory=dict)

    def see(self, node: AnyNode) -> None:
        if dtype_of(node) not in FLOATS:
            raise Refused(f"computed in {str(dtype_of(node)).removeprefix('torch.')}")
        if dtype_of(node) in HALVES:
            name = str(dtype_of(node)).removeprefix("torch.")
            self.differences.setdefault(
                "rounding", f"{node.name} is rounded to {name}; the operator keeps it in float32 (accept 'rounding')"
            )

    def bare(self, node: Any) -> Any:
        """The arithmetic behind casts. Every cast to 16 bits on the way is noted."""
        while is_call(node, convert, aten.clone.default):
            self.see(node)
            node = node.args[0]
        if is_tensor(node):
            self.see(node)
        return node


@dataclass
class Quantization:
    """Rows of `value` as int8 codes. `codes` is the node that holds them, `absmax` the rows' largest magnitudes."""

    codes: AnyNode
    value: AnyNode
    absmax: AnyNode
    walk: Walk


@dataclass(frozen=True)
class Norm:
    """What the operator is called with. `x2` None stands for zeros; `total` is the node that is the operator's x."""

    x1: AnyNode
    x2: AnyNode | None
    gamma: AnyNode | None
    beta: AnyNode | None
    smooth: AnyNode | None
    epsilon: float
    product: AnyNode
    total: AnyNode | None

    def key(self) -> tuple[Any, ...]:
        return self.x1, self.x2, self.gamma, self.beta, self.epsilon

    def inputs(self) -> list[AnyNode]:
        return [node for node in (self.x1, self.x2, self.gamma, self.beta, self.smooth) if node is not None]


# ---- quantization ----


def match_quantization(codes: AnyNode) -> Quantization | None:
    """`codes` is a cast to int8. None if it is no quantization of rows."""
    node, rounded = codes.args[0], False
    low, high = -128.0, 127.0
    while True:
        if is_call(node, convert):
            node = node.args[0]
        elif is_call(node, aten.round.default) and not rounded:
            node, rounded = node.args[0], True
        elif (bounds := _bounds(node)) is not None:
            low, high = max(low, bounds[0]), min(high, bounds[1])
            node = node.args[0]
        elif is_call(node, aten.add.Tensor) and is_zeros(node.args[1]):  # a zero point
            node = node.args[0]
        else:
            break
    if not is_tensor(node) or not is_quotient_of_rows(node):
        return None
    if not rounded:
        raise Refused("the codes are cut off; the operator rounds them")
    value, factor, inverse = _quotient(node)
    walk = Walk()
    walk.see(node)
    absmax, exponent, number = _power_of_absmax(factor, walk) or (None, 0, 1.0)
    expected = (-1, LARGEST) if inverse else (1, 1.0 / LARGEST)
    if exponent != expected[0]:
        return None
    if abs(number / expected[1] - 1.0) > 1e-6:
        scale = number if exponent > 0 else 1.0 / number
        raise Refused(f"the scale is absmax / {1.0 / scale:.6g}; the operator's is absmax / 127")
    if low > -127.0 or high < 127.0:
        raise Refused(f"codes are clamped to {low:g} ... {high:g}; the operator's reach from -127 to 127")
    measured = walk.bare(_magnitudes(absmax))
    value = walk.bare(value)
    if measured is not value:
        raise Refused("absmax is not that of the values that are quantized")
    return Quantization(codes, value, absmax, walk)


def is_quotient_of_rows(node: AnyNode) -> bool:
    """Whether something is divided by what is made of a row's absmax."""
    value, factor, _ = _quotient(node)
    try:
        return value is not None and _power_of_absmax(factor, Walk()) is not None
    except Refused:
        return True


def rounds_rows_for_no_codes(rounded: AnyNode) -> bool:
    """Whether rows are quantized to values that stay floats."""
    return is_tensor(rounded.args[0]) and is_quotient_of_rows(rounded.args[0]) and not _become_codes(rounded)


def _become_codes(rounded: AnyNode) -> bool:
    for user in rounded.users:
        if is_call(user, convert) and dtype_of(user) == torch.int8:
            return True
        if (is_call(user, convert, aten.add.Tensor) or _bounds(user) is not None) and _become_codes(user):
            return True
    return False


def _bounds(node: Any) -> tuple[float, float] | None:
    """The bounds of a clamp with numbers."""
    none = float("-inf"), float("inf")
    if is_call(node, aten.clamp_min.default) and is_number(node.args[1]):
        return float(node.args[1]), none[1]
    if is_call(node, aten.clamp_max.default) and is_number(node.args[1]):
        return none[0], float(node.args[1])
    if is_call(node, aten.clamp.default):
        given = [*node.args[1:], None, None][:2]
        if all(bound is None or is_number(bound) for bound in given):
            return tuple(none[i] if given[i] is None else float(given[i]) for i in (0, 1))  # type: ignore[return-value]
    return None


def _quotient(node: AnyNode) -> tuple[Any, Any, bool]:
    """value and scale of value / scale, or value and factor of value * factor."""
    dims = value_of(node).dim()
    if is_call(node, *DIVS) and is_column(node.args[1], dims) and len(node.kwargs) == 0:
        return node.args[0], node.args[1], False
    if is_call(node, *MULS):
        for value, factor in (node.args, node.args[::-1]):
            if is_column(factor, dims) and is_tensor(value):
                return value, factor, True
    return None, None, False


def _power_of_absmax(node: Any, walk: Walk) -> tuple[AnyNode, int, float] | None:
    """(absmax, exponent, c) of a node that is c·absmax or c/absmax."""
    exponent, number = 1, 1.0
    while is_tensor(node):
        walk.see(node)
        if _magnitudes(node) is not None:
            return node, exponent, number
        if is_call(node, convert) or _is_unsqueeze(node):
            node = node.args[0]
        elif is_call(node, *DIVS) and (divisor := constant(node.args[1])):
            number, node = number * (1.0 / divisor) ** exponent, node.args[0]
        elif is_call(node, *DIVS) and (dividend := constant(node.args[0])):
            number, exponent, node = number * dividend**exponent, -exponent, node.args[1]
        elif is_call(node, *MULS) and (factor := constant(node.args[1])):
            number, node = number * factor**exponent, node.args[0]
        elif is_call(node, aten.reciprocal.default):
            exponent, node = -exponent, node.args[0]
        elif (bounds := _bounds(node)) is not None and bounds[1] == float("inf"):
            text = f"{node.name} is not let below {bounds[0]:g}; the operator has no bound (accept 'clamp')"
            walk.differences.setdefault("clamp", text)
            node = node.args[0]
        elif is_call(node, *ADDS) and is_number(node.args[1]):
            if _power_of_absmax(node.args[0], Walk()) is None:
                return None
            raise Refused(f"{node.args[1]:g} is added to the scale; the operator adds nothing")
        else:
            return None
    return None


def _is_unsqueeze(node: AnyNode) -> bool:
    return is_call(node, aten.unsqueeze.default) and node.args[1] in (-1, value_of(node).dim() - 1)


def _magnitudes(node: Any) -> Any:
    """v of absmax(v) along the last dimension; None for another node."""
    if is_call(node, aten.linalg_vector_norm.default):
        rows = len(node.args) > 2 and node.args[1] == float("inf") and over_last(node.args[2], node.args[0])
        return node.args[0] if rows else None
    if is_call(node, aten.maximum.default):
        return _largest_of_both(node)
    if is_item(node, 0, aten.max.dim):
        node = node.args[0]
    elif not is_call(node, aten.amax.default):
        return None
    source = node.args[0]
    if not is_call(source, aten.abs.default):
        return None
    if len(node.args) < 2 or not over_last(node.args[1], source):
        raise Refused("absmax is not taken of each row; the operator has a scale for each row")
    return source.args[0]


def _largest_of_both(node: AnyNode) -> Any:
    """v of the larger one of -min(v) and max(v), each with or without 0 among its values."""
    for low, high in (node.args, node.args[::-1]):
        if not is_call(low, aten.neg.default, aten.abs.default):
            continue
        low, high = _without_zero(low.args[0], aten.minimum.default), _without_zero(high, aten.maximum.default)
        high = high.args[0] if is_call(high, aten.abs.default) else high
        if is_call(low, aten.amin.default) and is_call(high, aten.amax.default) and low.args[0] is high.args[0]:
            if any(len(part.args) < 2 or not over_last(part.args[1], part.args[0]) for part in (low, high)):
                raise Refused("absmax is not taken of each row; the operator has a scale for each row")
            return low.args[0]
    return None


def _without_zero(node: Any, target: Any) -> Any:
    return node.args[0] if is_call(node, target) and is_zeros(node.args[1]) else node


# ---- norm ----


def match_norm(value: AnyNode, walk: Walk, accept: frozenset[str]) -> Norm | None:
    """The norm that gave `value`; None if it is none."""
    cols = value_of(value).shape[-1]
    if is_call(value, *VIEWS) and value_of(value).dim() == 2 and same(value_of(value.args[0]).shape[-1], cols):
        value = walk.bare(value.args[0])
    node, after = _peel(value, cols, walk)
    beta = None
    before: list[AnyNode] = []
    if is_call(node, aten.add.Tensor) and not node.kwargs:
        for source, weight in (node.args, node.args[::-1]):
            if is_row_weight(weight, cols) and is_tensor(source):
                beta = weight
                node, before = _peel(walk.bare(source), cols, walk)
                break
    found = _normalized(node, walk)
    if found is None:
        if _is_divided_by_length(node):
            raise Refused("the rows are divided by their length; the operator has epsilon under the root, and no bound")
        return None
    base, epsilon = found
    if beta is None and len(after) > 1:
        after, before = after[1:], after[:1]
    elif beta is None:
        after, before = [], after
    if len(before) > 1 or len(after) > 1:
        raise Refused("the norm has more factors than gamma and one smooth scale")
    x1, x2, total = _addends(base, walk, accept)
    weights = [None if w is None else _weight(w) for w in (*(before or [None]), beta, *(after or [None]))]
    return Norm(x1, x2, weights[0], weights[1], weights[2], epsilon, node, total)


def _peel(node: Any, cols: Any, walk: Walk) -> tuple[Any, list[AnyNode]]:
    """Takes factors of the columns off; returns what is left, and the factors in the order they were applied."""
    factors: list[AnyNode] = []
    while is_call(node, *MULS):
        for source, weight in (node.args, node.args[::-1]):
            if is_row_weight(weight, cols) and is_tensor(source) and value_of(source).dim() == value_of(node).dim():
                factors.insert(0, weight)
                node = walk.bare(source)
                break
        else:
            break
    return node, factors


def _normalized(node: Any, walk: Walk) -> tuple[AnyNode, float] | None:
    """(x, epsilon) of x / sqrt(mean(x²) + epsilon)."""
    if not is_tensor(node):
        return None
    dims = value_of(node).dim()
    pairs: list[tuple[Any, Any, float]] = []
    if is_call(node, *DIVS) and is_column(node.args[1], dims) and not node.kwargs:
        pairs = [(node.args[0], node.args[1], 0.5)]
    elif is_call(node, *MULS):
        pairs = [(a, b, -0.5) for a, b in (node.args, node.args[::-1]) if is_column(b, dims)]
    for source, root, exponent in pairs:
        inner = _root(walk.bare(root), exponent, walk)
        if inner is None:
            continue
        epsilon = 0.0
        if is_call(inner, *ADDS) and is_number(inner.args[1]) and not inner.kwargs:
            epsilon, inner = float(inner.args[1]), walk.bare(inner.args[0])
        squared = _mean_square(inner, walk)
        if squared is None:
            continue
        if widened(source) is not widened(squared):
            raise Refused("the mean square is not that of the values that are normalized")
        if not epsilon >= 0.0:
            raise Refused(f"epsilon is {epsilon:g}; the operator's is 0 or more")
        return widened(squared), epsilon
    return None


def _is_divided_by_length(node: Any) -> bool:
    """x / (c·sqrt(sum(x²)) + epsilon), or with a bound instead of epsilon."""
    while is_call(node, *MULS) and is_number(node.args[1]):
        node = node.args[0]
    if not is_call(node, *DIVS):
        return False
    length = node.args[1]
    while is_call(length, convert, aten.expand.default, *MULS, *ADDS) or _bounds(length) is not None:
        length = length.args[0]
    inner = _root(length, 0.5, Walk()) if is_tensor(length) else None
    return is_call(length, aten.linalg_vector_norm.default) or is_call(inner, aten.sum.dim_IntList)


def _root(node: Any, exponent: float, walk: Walk) -> Any:
    """m of sqrt(m) (exponent 0.5) or 1 / sqrt(m) (exponent -0.5)."""
    if is_call(node, aten.pow.Tensor_Scalar) and node.args[1] == exponent:
        return walk.bare(node.args[0])
    if exponent > 0 and is_call(node, aten.sqrt.default):
        return walk.bare(node.args[0])
    if exponent < 0 and is_call(node, aten.rsqrt.default):
        return walk.bare(node.args[0])
    if exponent < 0 and is_call(node, *MULS) and node.args[1] == 1:  # what 1 / x is, beside the reciprocal
        return _root(walk.bare(node.args[0]), exponent, walk)
    if exponent < 0 and is_call(node, aten.reciprocal.default):
        return _root(walk.bare(node.args[0]), -exponent, walk)
    return None


def _mean_square(node: Any, walk: Walk) -> Any:
    """x of mean(x²) along the last dimension."""
    if is_call(node, aten.mean.dim):
        total = node
    elif is_call(node, *DIVS):
        total, count = walk.bare(node.args[0]), node.args[1]
        if not is_call(total, aten.sum.dim_IntList):
            return None
        size = value_of(total.args[0]).shape[-1]
        if not same(value_of(count) if is_node(count) else count, size):
            return None
    else:
        return None
    if not over_last(total.args[1], total.args[0]):
        return None
    square = walk.bare(total.args[0])
    if is_call(square, aten.pow.Tensor_Scalar) and square.args[1] == 2:
        return square.args[0]
    if is_call(square, aten.mul.Tensor) and square.args[0] is square.args[1]:
        return square.args[0]
    return None


def _addends(base: AnyNode, walk: Walk, accept: frozenset[str]) -> tuple[AnyNode, AnyNode | None, AnyNode | None]:
    """(x1, x2, the node that is the operator's x). A sum that the code rounds is computed before the call, x2 being 0:
    the operator uses its own sum unrounded."""
    if dtype_of(base) not in FLOATS:
        raise Refused(f"x is {str(dtype_of(base)).removeprefix('torch.')}")
    total = base
    if dtype_of(base) in HALVES:
        if is_call(base, convert) and dtype_of(base.args[0]) == torch.float32:
            total = base.args[0]
        pair = _sum(total)
        if pair is None or dtype_of(pair[0]) != dtype_of(base) or "rounding" not in accept:
            return base, None, None
        walk.differences.setdefault("rounding", f"{base.name} is rounded before it is normalized")
        return *pair, base
    pair = _sum(base)
    return (base, None, None) if pair is None else (*pair, base)


def _sum(node: AnyNode) -> tuple[AnyNode, AnyNode] | None:
    """The two tensors of one shape and dtype that a node adds."""
    if not is_call(node, aten.add.Tensor) or node.kwargs:
        return None
    if not all(is_tensor(arg) and same_shape(arg, node) for arg in node.args):
        return None
    left, right = map(widened, node.args)
    if dtype_of(left) == dtype_of(right) and dtype_of(left) in FLOATS:
        return left, right
    return None


def _weight(node: AnyNode) -> AnyNode:
    if dtype_of(node) not in FLOATS:
        raise Refused(f"{node.name} is {str(dtype_of(node)).removeprefix('torch.')}; the operator takes float32 or x's")
    return widened(node)


def pays(norm: Norm) -> bool:
    """Whether the operator is likely to be faster than the code: a call costs about 30 us more than inductor's own
    kernel does, and saves half a nanosecond for each value and thread."""
    values = hint(math.prod(value_of(norm.x1).shape))
    return values is not None and values >= (torch.get_num_threads() + 1) * THREAD_VALUES


def is_used_elsewhere(norm: Norm, found: list[tuple[Quantization, Norm]]) -> bool:
    """Whether the norm is needed for more than the quantizations that were found."""
    absorbed = {node for quantization, _ in found for node in (quantization.codes, quantization.absmax)}
    seen, todo = set(absorbed), [norm.product]
    while todo:
        node = todo.pop()
        if node.op == "output":
            return True
        if node not in seen:
            seen.add(node)
            todo += node.users
    return False


# ---- replacement ----


def replace(graph: Graph, found: list[tuple[Quantization, Norm]], order: dict[AnyNode, int]) -> list[list[int]]:
    """Puts the calls into the graph. Returns which of `found` share a call."""
    calls: list[list[int]] = []
    for i, (quantization, norm) in enumerate(found):
        for members in calls:
            if _joins(found, members, norm, order[quantization.absmax], order):
                members.append(i)
                break
        else:
            calls.append([i])
    sums: dict[AnyNode, tuple[AnyNode, int]] = {}
    for members in calls:
        _put(graph, [found[i] for i in members], order, sums)
    return calls


def _joins(
    found: list[tuple[Quantization, Norm]], members: list[int], norm: Norm, position: int, order: dict[AnyNode, int]
) -> bool:
    others = [found[i] for i in members]
    if others[0][1].key() != norm.key():
        return False
    smooths = {other.smooth for _, other in others} | {norm.smooth}
    start = min(position, *(order[quantization.absmax] for quantization, _ in others))
    inputs = [*norm.inputs(), *(node for _, other in others for node in other.inputs())]
    return len(smooths) <= 2 and all(order[node] < start for node in inputs)


def _put(
    graph: Graph, found: list[tuple[Quantization, Norm]], order: dict[AnyNode, int],
    sums: dict[AnyNode, tuple[AnyNode, int]],
) -> None:  # fmt: skip
    """Puts in one call. `sums` are the sums that earlier calls give, and where those stand."""
    norm = found[0][1]
    first = min((quantization.absmax for quantization, _ in found), key=order.__getitem__)
    smooths = list(dict.fromkeys(other.smooth for _, other in found))
    with graph.inserting_before(first):
        x1: AnyNode = _given(norm.x1, sums, order[first])
        x2: AnyNode = _given(norm.x2, sums, order[first])
        gamma = norm.gamma
        if gamma is None:
            gamma = filled(graph, x1, [last_size(graph, x1)], 1.0, torch.float32)
        weights = [_as_accepted(graph, w, x1) for w in (gamma, *smooths, *[None] * (2 - len(smooths)), norm.beta)]
        two = len(smooths) == 2
        call = new_call(graph, OPERATOR, x1, x2, *weights, norm.epsilon, True, two, "int8", "formula")
        results = [
            tuple(new_call(graph, operator.getitem, call, i) for i in places) for places in ((0, 3), (1, 4))[: 1 + two]
        ]
        x = new_call(graph, operator.getitem, call, 2)
    for quantization, other in found:
        codes, scale = results[smooths.index(other.smooth)]
        viewed = value_of(quantization.codes).dim() != value_of(codes).dim()
        if viewed:
            with graph.inserting_before(first):
                codes = new_call(graph, aten.reshape.default, codes, [-1, last_size(graph, codes)])
                scale = new_call(graph, aten.reshape.default, scale, [-1])
        _use_scale(graph, quantization, scale)
        quantization.codes.replace_all_uses_with(codes)
    for _, other in found:
        if other.total is not None:
            _use_sum(other.total, x, order[first], order)
            if dtype_of(other.total) == dtype_of(x):
                sums[other.total] = x, order[first]


def _given(node: AnyNode | None, sums: dict[AnyNode, tuple[AnyNode, int]], position: int) -> AnyNode | None:
    """What an earlier call gives in place of a node; the node itself where none does."""
    x, start = sums.get(node, (node, -1))
    return x if start < position else node


def _as_accepted(graph: Graph, weight: AnyNode | None, x: AnyNode) -> AnyNode | None:
    """A weight in a dtype that goes with x: its own or float32, which holds all others exactly."""
    if weight is None or dtype_of(weight) in (dtype_of(x), torch.float32):
        return weight
    return new_call(graph, convert, weight, torch.float32)


def _use_scale(graph: Graph, quantization: Quantization, scale: AnyNode) -> None:
    """The operator's scale in place of every node that is absmax / 127."""
    todo = list(quantization.absmax.users)
    seen: set[AnyNode] = set()
    while todo:
        node = todo.pop()
        if node in seen or not is_tensor(node):
            continue
        seen.add(node)
        try:
            found = _power_of_absmax(node, Walk())
        except Refused:
            continue
        if found is None or found[0] is not quantization.absmax:
            continue
        todo += node.users
        if found[1] != 1 or abs(found[2] * LARGEST - 1.0) > 1e-6:
            continue
        with graph.inserting_before(node):
            new = scale
            if value_of(node).dim() > value_of(scale).dim():
                new = new_call(graph, aten.unsqueeze.default, scale, -1)
            if dtype_of(node) != torch.float32:
                new = new_call(graph, convert, new, dtype_of(node))
        node.replace_all_uses_with(new)


def _use_sum(total: AnyNode, x: AnyNode, start: int, order: dict[AnyNode, int]) -> None:
    """The operator's x in place of the sum, for what comes after the call."""

    def later(user: AnyNode) -> bool:
        return order.get(user, -1) > start

    if dtype_of(total) == dtype_of(x):
        total.replace_all_uses_with(x, delete_user_cb=later)
        return
    for user in list(total.users):
        if is_call(user, convert) and dtype_of(user) == dtype_of(x) and later(user):
            user.replace_all_uses_with(x)
