"""Product profiles: the switch that refuses what an Ascend product does not take of an operator (`_products.py`).

Under the default product, "any", no table is looked at and everything that makes mathematical sense is accepted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from . import _core
from ._checks import dtype_name, kind, names
from ._products import ANY, OPERATORS, Limits, product_named, rank_words

_default_product = product_named("ANYFUSE_SOC", os.environ.get("ANYFUSE_SOC", ANY))
if _default_product != ANY:
    _core.go_generally()
_product: ContextVar[str] = ContextVar("anyfuse_soc", default=_default_product)


@contextmanager
def soc(name: str) -> Iterator[None]:
    """Makes the block's operators refuse what a product refuses: dtypes, alignments, options, whole operators.

    `name` is "Ascend910B" (Atlas A2), "Ascend910_93" (Atlas A3), "Ascend950", "Ascend310P", "KirinX90", "Kirin9030"
    or "any" (the default, which `ANYFUSE_SOC` changes): everything that makes mathematical sense. Any case and a chip's
    ending are taken ("ascend910b3"). The numbers of an accepted call do not depend on it. `anyfuse info --soc NAME`
    prints what a product takes.

    Raises ValueError for another name.
    """
    name = product_named("soc", name)
    if name != ANY:
        _core.go_generally()
    token = _product.set(name)
    try:
        yield
    finally:
        _product.reset(token)


def product() -> str:
    """The product whose limits calls are held to."""
    return _product.get()


def restricted() -> bool:
    """True when the operator's table is to be looked at."""
    return _product.get() != ANY


class Profiles:
    """The table of one operator in Python: products and their limits. A product that is missing does not have the
    operator. `source` says in words what the table is taken from."""

    def __init__(self, operator: str) -> None:
        table = OPERATORS[operator]
        self.operator = operator
        self.limits = table.table("python")
        self.source = f"{table.document}, read {table.read}." + (f" {table.note}" if table.note else "")

    def check(self, **call: Any) -> None:
        """Refuses the call that the current product refuses. A value is a tensor, a number, an option, a list with one
        for each parameter of a group, or None. Rules for names that are not given are not looked at.

        TypeError for dtypes, ValueError for everything else; the message names product, argument, value and what is
        accepted.
        """
        name = product()
        limits = self.limits.get(name)
        if limits is None:
            raise ValueError(f"{self.operator} is not available on {name}; accepted: soc {names((ANY, *self.limits))}")
        _check(name, limits, call)


def limits_on(name: str, profiles: Profiles | None) -> dict[str, str] | None:
    """What a product takes of an operator, argument by argument in words; None where it does not have the operator."""
    name = product_named("soc", name)
    if name == ANY or profiles is None:
        return {}
    limits = profiles.limits.get(name)
    return None if limits is None else limits.describe()


def _check(product: str, limits: Limits, call: Mapping[str, Any]) -> None:
    def given(arguments: Iterable[str]) -> Iterator[tuple[str, Any]]:
        for name in arguments:
            values = call.get(name)
            for value in values if isinstance(values, list) else [values]:
                if value is not None:
                    yield name, value

    def refuse(name: str, got: str, accepted: str, error: type[Exception] = ValueError) -> None:
        raise error(f"{name} {got} on {product}; accepted: {accepted}")

    for name, value in given(limits.absent):
        refuse(name, f"is given ({_given(value)}), which is not available", "None")
    for name, value in given(limits.dtypes):
        dtype = value.dtype if isinstance(value, Tensor) else value
        if dtype_name(dtype) not in map(dtype_name, limits.dtypes[name]):
            refuse(name, f"has dtype {dtype_name(dtype)}", names(limits.dtypes[name]), TypeError)
    for name, value in given(limits.values):
        if value not in limits.values[name]:
            refuse(name, f"is {value!r}", names(limits.values[name]))
    for name, value in given(limits.ranks):
        low, high = limits.ranks[name]
        if not low <= value.dim() <= high:
            refuse(name, f"has {value.dim()} dimensions", rank_words(low, high))
    for name, value in given(limits.shapes):
        if tuple(value.shape) != limits.shapes[name]:
            refuse(name, f"has shape {tuple(value.shape)}", str(limits.shapes[name]))
    for name, value in given(limits.multiples):
        if value % limits.multiples[name]:
            refuse(name, f"is {value}", f"a multiple of {limits.multiples[name]}")
    for name, value in given(limits.positive):
        if not value > 0:
            refuse(name, f"is {value}", "a number above 0")
    lists = [[value for _, value in given((name,))] for name in limits.one_dtype]
    first = limits.one_dtype[0] if limits.one_dtype else ""
    for name, tensors in zip(limits.one_dtype, lists, strict=True):
        for leader, tensor in zip(lists[0], tensors, strict=False):
            if tensor.dtype != leader.dtype:
                accepted = f"{dtype_name(leader.dtype)}, the dtype of {first}"
                refuse(name, f"has dtype {dtype_name(tensor.dtype)}", accepted, TypeError)


def _given(value: Any) -> str:
    return kind(value) if isinstance(value, Tensor) else repr(value)
