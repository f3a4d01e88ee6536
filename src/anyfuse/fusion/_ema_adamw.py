"""Adam or AdamW with an exponential moving average of the weights, written out: one step of many tensors.

It is found by the copies at the graph's end: four inputs of one shape are written to, of which one becomes its mean
with what is written to another. The update is read twice: as the operator computes it, so that the bits are those of
the code, and otherwise as any product of the same factors, which is the difference "order".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from ..ops._numerics import f32
from ._arithmetic import (
    ONE,
    ZERO,
    Product,
    as_product,
    fraction,
    is_unrounded,
    read,
    same_value,
    stored,
    terms,
)
from ._graph import (
    ADDS,
    DIVS,
    FLOATS,
    HALVES,
    MULS,
    AnyNode,
    Refused,
    aten,
    convert,
    dtype_of,
    filled,
    functional_call,
    hint,
    is_call,
    is_number,
    is_tensor,
    same_shape,
    value_of,
    widened,
)

NAME = "apply_fused_ema_adamw"
OPERATOR = torch.ops.anyfuse.apply_fused_ema_adamw_.default
STATES = ("var", "m", "v", "s")
UNROUNDED = "a product is added unrounded (addcmul)"

#: Below so many values of a tensor in the mean, a call's Python costs as much as it saves.
FEWEST_VALUES = 1 << 16


@dataclass(frozen=True)
class Numbers:
    """What tensors of one call share."""

    correction1: Product
    correction2: Product
    lr: Product
    weight_decay: Product
    ema_decay: float
    beta1: float
    beta2: float
    eps: float
    mode: int


@dataclass(frozen=True)
class Step:
    """A tensor's step. `written` are the inputs that are updated (var, m, v, s), `values` what is written to them."""

    grad: AnyNode
    written: tuple[AnyNode, ...]
    values: tuple[AnyNode, ...]
    numbers: Numbers
    differences: dict[str, str]


@dataclass(frozen=True)
class Update:
    """var' = var - lr·(m'/c1 / (sqrt(v'/c2) + eps) + weight_decay·var), or a product of the same factors."""

    m: AnyNode
    v: AnyNode
    correction1: Product
    correction2: Product
    lr: Product
    weight_decay: Product
    eps: float
    difference: str = ""


@dataclass(frozen=True)
class Mean:
    """keep·old + (1 - keep)·value."""

    keep: float
    value: Any
    difference: str = ""


def match_steps(graph: Graph, refuse: Callable[[AnyNode, str], None]) -> list[Step]:
    """The steps of a graph. `refuse` is told of those that are not the operator's."""
    copies = {node.args[0]: _unrounded(node.args[1]) for node in graph.nodes if _is_update_of_an_input(node)}
    inputs: dict[AnyNode, AnyNode] = {}
    for target, value in copies.items():
        if value not in inputs or target in _parts(value):  # others are copies of it
            inputs[value] = target
    found: list[Step] = []
    written: set[AnyNode] = set()
    for target, value in copies.items():
        mean = _mean(value, target)
        var = None if mean is None else inputs.get(stored(mean.value))
        if mean is None or var is None or var is target:
            continue
        try:
            step = _match(var, target, mean, copies, inputs)
        except Refused as reason:
            refuse(copies[var], str(reason))
            continue
        if step is None:
            continue
        if not written.isdisjoint(step.written):
            both = next(node for node in step.written if node in written)
            refuse(step.values[3], f"another call writes {both.name} already")
            continue
        written.update(step.written)
        found.append(step)
    return found


def _is_update_of_an_input(node: AnyNode) -> bool:
    return is_call(node, aten.copy_.default) and node.args[0].op == "placeholder" and is_tensor(node.args[1])


def _unrounded(node: AnyNode) -> AnyNode:
    """The value that is stored, before it is rounded to what stores it."""
    node = stored(node)
    if is_call(node, aten.copy.default):
        return stored(node.args[1])
    return stored(node.args[0]) if is_call(node, convert) and dtype_of(node) in HALVES else node


def _parts(*values: AnyNode) -> set[AnyNode]:
    """Values and everything that they are computed from."""
    parts: set[AnyNode] = set()
    todo = list(values)
    while todo:
        node = todo.pop()
        if node not in parts:
            parts.add(node)
            todo += node.all_input_nodes
    return parts


def _match(
    var: AnyNode, s: AnyNode, ema: Mean, copies: dict[AnyNode, AnyNode], inputs: dict[AnyNode, AnyNode]
) -> Step | None:
    update = _exact_update(copies[var], var, inputs) or _any_update(copies[var], var, inputs)
    if update is None:
        if not _has_a_root(copies[var]) or _mean(copies[var], var) is not None:
            return None  # an average behind another optimizer, or of another average
        raise Refused("the update is not lr * (m / (sqrt(v) + eps) + weight_decay * var)")
    first, second = _mean(copies[update.m], update.m), _mean_square(copies[update.v], update.v)
    if first is None or second is None:
        raise Refused(f"{(update.m if first is None else update.v).name} does not become a mean with the gradient")
    if not same_value(first.value, second.value):
        raise Refused("the two moments are not of one gradient")
    mode, grad, decay = _gradient(first.value, var, update)
    written = (var, update.m, update.v, s)
    for node in (grad, *written):
        if not is_tensor(node) or dtype_of(node) not in FLOATS or not same_shape(node, var):
            raise Refused(f"{getattr(node, 'name', 'a number')} is no float tensor of the weights' shape")
    differences = [part.difference for part in (ema, first, second, update) if part.difference]
    numbers = Numbers(
        update.correction1, update.correction2, update.lr, decay, ema.keep, first.keep, second.keep, update.eps, mode
    )
    text = {"order": f"{differences[0]}, which moves last bits (accept 'order')"} if differences else {}
    return Step(grad, written, tuple(copies[node] for node in written), numbers, text)


# ---- the means ----


def _mean(value: Any, old: AnyNode) -> Mean | None:
    """The mean of `old` and something that a value is."""
    for (keep, kept), (rest, other) in _orders(value):
        factor, base = _times(keep, kept)
        if not _is(base, old):
            continue
        rest, other = _times(rest, other)
        if factor == 1:
            return _interpolated(rest, other, old)
        if f32(rest) != f32(1.0 - factor):
            return None
        return Mean(factor, other, UNROUNDED if is_unrounded(value) else "")
    return None


def _interpolated(weight: float, difference: Any, old: AnyNode) -> Mean | None:
    """old + weight·(value - old)."""
    kind, args = read(difference)
    if kind != "sub" or args[2] != 1 or not _is(args[1], old):
        return None
    return Mean(1.0 - weight, args[0], "a mean is interpolated (lerp)")


def _mean_square(value: Any, old: AnyNode) -> Mean | None:
    """The mean of `old` and a square, whose root stands in the place of the value."""
    for (keep, kept), (rest, other) in _orders(value):
        factor, base = _times(keep, kept)
        if not _is(base, old):
            continue
        if rest == 1:
            for scaled, root in _pairs(read(other)):
                weight, inner = _times(1.0, scaled)
                if same_value(inner, root) and f32(weight) == f32(1.0 - factor):
                    return Mean(factor, root, UNROUNDED if is_unrounded(value) else "")
        rest, other = _times(rest, other)
        squared = _root_of_square(other)
        if squared is None or f32(rest) != f32(1.0 - factor):
            return None
        return Mean(factor, squared, "the gradient is squared before it is scaled")
    return None


def _root_of_square(node: Any) -> Any:
    kind, args = read(node)
    if kind == "mul" and same_value(*args):
        return args[0]
    return args[0] if kind == "pow" and args[1] == 2 else None


def _orders(value: Any) -> Iterable[tuple[tuple[float, Any], tuple[float, Any]]]:
    pair = terms(value)
    return [] if pair is None else [pair, (pair[1], pair[0])]


def _pairs(operation: Any) -> Iterable[tuple[Any, Any]]:
    kind, args = operation
    return [args, args[::-1]] if kind == "mul" else []


def _times(factor: float, node: Any) -> tuple[float, Any]:
    """The number that a term is multiplied with, and what it multiplies: one of a sum's or the term's own."""
    if factor != 1:
        return factor, node
    for number, other in _pairs(read(node)):
        product = as_product(number)
        if product is not None and product.is_number() and not is_number(other):
            return product.number, other
    return 1.0, node


def _is(node: Any, old: AnyNode) -> bool:
    return isinstance(node, Node) and widened(stored(node)) is old


# ---- the update ----


def _exact_update(value: AnyNode, var: AnyNode, inputs: dict[AnyNode, AnyNode]) -> Update | None:
    """The update in the operator's order of operations."""
    for (one, base), (sign, change) in _orders(value):
        if one != 1 or not _is(base, var) or is_unrounded(value):
            continue
        lr = Product(-sign)
        if abs(sign) == 1:
            scaled = _scaled(change)
            if scaled is None or (sign == 1 and not scaled[0].is_number()):
                continue
            factor, change = scaled
            lr = Product(-sign * factor.number, factor.over, factor.under)
        quotient, decay = _decayed(change, var)
        kind, args = read(quotient)
        bottom = terms(args[1]) if kind == "div" else None
        if bottom is None or not is_number(bottom[1][1]) or bottom[1][0] != 1:
            continue
        m, v = _corrected(args[0]), _corrected(_under_root(bottom[0][1]))
        if bottom[0][0] == 1 and m[0] in inputs and v[0] in inputs:
            return Update(inputs[m[0]], inputs[v[0]], m[1], v[1], lr, decay, float(bottom[1][1]))
    return None


def _scaled(node: Any) -> tuple[Product, Any] | None:
    """(factor, tensor) of a product with a scalar."""
    for scalar, other in _pairs(read(node)):
        factor = as_product(scalar)
        if factor is not None and as_product(other) is None:
            return factor, other
    return None


def _decayed(change: Any, var: AnyNode) -> tuple[Any, Product]:
    """The update without its decay of the weights, and that decay, where it is rounded before it is added."""
    if is_unrounded(change):
        return change, ZERO
    for (one, rest), (factor, decayed) in _orders(change):
        scaled = _scaled(decayed) if factor == 1 else (Product(factor), decayed)
        if one == 1 and scaled is not None and _is(scaled[1], var):
            return rest, scaled[0]
    return change, ZERO


def _under_root(node: Any) -> Any:
    kind, args = read(node)
    return args[0] if kind == "sqrt" or (kind == "pow" and args[1] == 0.5) else None


def _corrected(node: Any) -> tuple[Any, Product]:
    """A moment and what it is divided by."""
    kind, args = read(node)
    correction = as_product(args[1]) if kind == "div" else None
    return (stored(node), ONE) if correction is None else (stored(args[0]), correction)


def _any_update(value: AnyNode, var: AnyNode, inputs: dict[AnyNode, AnyNode]) -> Update | None:
    """An update of the same factors in any order."""
    for (keep, base), (sign, change) in _orders(value):
        kept = fraction(base)
        if not _is(kept.top, var) or kept.bottom is not None:
            continue
        step = fraction(change)
        top, decay = _decayed(step.top, var)
        inner = fraction(top)
        bottoms = [part for part in (step.bottom, inner.bottom) if part is not None]
        if len(bottoms) != 1 or (step.bottom is not None and not decay.is_zero()):
            continue
        if not inner.factor.is_moderate():
            continue
        lr, root, eps = step.factor.times(Product(-sign)), *_root(bottoms[0])
        if root is None or stored(inner.top) not in inputs or stored(root.top) not in inputs:
            continue
        before = _complement(kept.factor.times(Product(keep)))
        if before is None or not (before.is_zero() or (decay.is_zero() and lr.is_moderate())):
            continue
        text = "the corrections are not applied to the moments"
        if not before.is_zero():
            text = "the weights are decayed before they are stepped"
        plain = Product(lr.number)
        nodes = Product(1.0, lr.over, lr.under).times(inner.factor)
        if not before.is_zero():
            decay = before.times(plain.inverse())
        elif not decay.is_zero():
            plain, nodes = lr, inner.factor
        m, v = inputs[stored(inner.top)], inputs[stored(root.top)]
        return Update(m, v, nodes.inverse(), root.factor.inverse(), plain, decay, eps, text)
    return None


def _root(bottom: Any) -> tuple[Any, float]:
    """c·v of sqrt(c·v) + eps as a fraction, and eps; positive factors of the root are taken below it."""
    pair = terms(bottom)
    eps = 0.0
    if pair is not None and pair[1][0] == pair[0][0] == 1 and is_number(pair[1][1]):
        eps, bottom = float(pair[1][1]), pair[0][1]
    outer = fraction(bottom)
    inside = _under_root(outer.top)
    if inside is None or outer.bottom is not None or not _is_positive(outer.factor):
        return None, eps
    inner = fraction(inside)
    if not inner.factor.is_moderate():
        return None, eps
    return inner._replace(factor=inner.factor.times(outer.factor).times(outer.factor)), eps


def _is_positive(factor: Product) -> bool:
    """Whether a factor is positive for certain, and can be squared: its tensors are roots themselves."""
    return factor.number > 0 and factor.is_moderate() and all(map(_is_root, (*factor.over, *factor.under)))


def _is_root(node: AnyNode) -> bool:
    while is_call(node, convert):
        node = node.args[0]
    return is_call(node, aten.sqrt.default, aten.rsqrt.default) or (
        is_call(node, aten.pow.Tensor_Scalar) and node.args[1] == 0.5
    )


def _complement(kept: Product) -> Product | None:
    """1 - kept, where that loses no digits."""
    if kept.is_number():
        return Product(1.0 - kept.number)
    if kept.number != 1 or len(kept.over) != 1 or kept.under:
        return None
    pair = terms(kept.over[0])
    if pair is None or pair[0] != (1, 1) or (decayed := as_product(pair[1][1])) is None:
        return None
    return decayed.times(Product(-pair[1][0]))


def _has_a_root(value: AnyNode) -> bool:
    """Whether a root of a tensor of its shape is a part of a value."""
    return any(is_tensor(node) and same_shape(node, value) and _under_root(node) is not None for node in _parts(value))


def _gradient(value: Any, var: AnyNode, update: Update) -> tuple[int, AnyNode, Product]:
    """(mode, gradient, decay): the decay is a part of the gradient (Adam with L2), or of the update."""
    if update.weight_decay.is_zero():
        rest, decay = _decayed(value, var)
        if not decay.is_zero():
            return 0, widened(stored(rest)), decay
    return 1, widened(stored(value)), update.weight_decay


# ---- replacement ----

_SCALAR_ARITHMETIC = (
    *ADDS, *MULS, *DIVS, aten.sub.Tensor, aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor,
    aten.sqrt.default, aten.reciprocal.default, aten.neg.default, aten.scalar_tensor.default, convert,
)  # fmt: skip


def share_scalars(graph: Graph) -> None:
    """One node for each scalar that is computed anew for every tensor, so that their steps have equal numbers."""
    first: dict[Any, AnyNode] = {}
    for node in graph.nodes:
        if is_call(node, *_SCALAR_ARITHMETIC) and is_tensor(node) and value_of(node).dim() == 0:
            before = first.setdefault(_key([node.target, node.args, sorted(node.kwargs.items())]), node)
            if before is not node:
                node.replace_all_uses_with(before)


def _key(value: Any) -> Any:
    """A key that tells 1 from 1.0 and 0.0 from -0.0."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return value if isinstance(value, Node) else (type(value), repr(value))


def pays(steps: list[Step]) -> bool:
    sizes = [hint(value_of(step.grad).numel()) for step in steps]
    return None not in sizes and sum(filter(None, sizes)) >= FEWEST_VALUES * (len(steps) + 3)


def calls(found: list[Step], order: dict[AnyNode, int]) -> list[list[Step]]:
    """Steps of equal numbers, each of whose inputs are there before any of their results is used."""
    groups: list[list[Step]] = []
    last: dict[Numbers, tuple[list[Step], int, int]] = {}
    for step in found:
        start = max(order[node] for node in (step.grad, *_scalars(step.numbers)))
        end = min((order[user] for user in _others(step)), default=len(order))
        members, latest, earliest = last.get(step.numbers, ([], -1, len(order)))
        latest, earliest = max(latest, start), min(earliest, end)
        if not members or latest >= earliest:
            members, latest, earliest = [], start, end
            groups.append(members)
        members.append(step)
        last[step.numbers] = members, latest, earliest
    return groups


def _scalars(numbers: Numbers) -> list[AnyNode]:
    products = (numbers.correction1, numbers.correction2, numbers.lr, numbers.weight_decay)
    return [node for product in products for node in (*product.over, *product.under)]


def _others(step: Step) -> list[AnyNode]:
    """What uses the new values beside the step itself."""
    own = _parts(*step.values)
    faces = [*step.values, *(u for value in step.values for u in value.users if is_call(u, aten.copy.default))]
    return [
        user for face in faces for user in face.users
        if user not in own and user not in faces and not (_is_update_of_an_input(user) and user.args[0] in step.written)
    ]  # fmt: skip


def replace(graph: Graph, steps: list[Step], order: dict[AnyNode, int]) -> None:
    """Puts one call into the graph, which gives new tensors; inductor makes it write in place where it can."""
    numbers = steps[0].numbers
    inputs = {node for step in steps for node in (step.grad, *step.written, *_scalars(numbers))}
    last = [node for node in graph.nodes if node.op == "placeholder" or node in inputs][-1]
    bases = [step.written[i] for i in range(len(STATES)) for step in steps]
    with graph.inserting_before(last.next):
        # The code has computed the corrections already: the operator divides by those, for the same bits. Of step 0
        # its own are 0, as those are that it is not given for being 0.
        named: dict[str, Any] = {
            "grad": [step.grad for step in steps],
            "step": [filled(graph, bases[0], [1], 0, torch.int64)],
            "lr": numbers.lr.number,
            "ema_decay": numbers.ema_decay,
            "beta1": numbers.beta1,
            "beta2": numbers.beta2,
            "eps": numbers.eps,
            "adam_mode": numbers.mode,
            "bias_correction": True,
            "weight_decay": numbers.weight_decay.number,
            "convention": "formula",
            "lr_tensor": numbers.lr.put(graph),
            "grad_scale": None,
            "found_inf": None,
            "maximize": False,
            "stochastic_rounding": None,
            "correction1": _correction(graph, numbers.correction1, bases[0]),
            "correction2": _correction(graph, numbers.correction2, bases[0]),
            "weight_decay_tensor": numbers.weight_decay.put(graph),
        }
        states = {name: bases[i * len(steps) : (i + 1) * len(steps)] for i, name in enumerate(STATES)}
        new = functional_call(graph, OPERATOR, named, states)
    values = [step.values[i] for i in range(len(STATES)) for step in steps]
    others = {user for step in steps for user in _others(step)}
    for base, value, result in zip(bases, values, new, strict=True):
        _use(value, base, result, others)


def _correction(graph: Graph, product: Product, like: AnyNode) -> AnyNode:
    return product.put(graph) or filled(graph, like, [], product.number, torch.float64)


def _use(value: AnyNode, base: AnyNode, result: AnyNode, others: set[AnyNode]) -> None:
    """The call's result in place of a value: in the copy into its input, and in other uses that do not want it
    unrounded."""
    for face in (value, *(user for user in value.users if is_call(user, aten.copy.default))):
        if dtype_of(face) == dtype_of(base):
            face.replace_all_uses_with(result, delete_user_cb=lambda user: user in others)
    for user in list(base.users):
        if _is_update_of_an_input(user) and user.args[0] is base:
            user.args = (base, result)
