"""Product profiles: what each Ascend product takes of an operator, as data, and the switch that refuses the rest.

An operator's table (`Profiles`) stands in the operator's file. Under the default product, "any", no table is looked at
and everything that makes mathematical sense is accepted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ._settings import _one_of

ANY = "any"

#: Every product with the name it is sold under.
PRODUCTS = {
    ANY: "no product: everything that makes mathematical sense",
    "Ascend910B": "Atlas A2",
    "Ascend910_93": "Atlas A3",
    "Ascend950": "Ascend 950PR and 950DT",
    "Ascend310P": "Atlas inference series",
    "KirinX90": "Kirin X90",
    "Kirin9030": "Kirin 9030",
}

#: What their chips are called, too ("Ascend910B3"), in any case.
_CHIPS = {
    "Ascend910B": r"ascend910b\d[\w-]*",
    "Ascend910_93": r"ascend910_93\d*|ascend910c",
    "Ascend950": r"ascend950(pr|dt)\w*|ascend910_95\d*",
    "Ascend310P": r"ascend310p\d\w*",
}
#: Products of which no operator here is documented, so that they have no profile.
_WITHOUT_PROFILE = {
    "Atlas 200I/500 A2": r"ascend310b\w*",
    "Atlas training series": r"ascend910|ascend910(a|pro|premium)\w*",
}


def product_of(name: Any) -> str | None:
    """The product that a name means, its own or a chip's, in any case ("ascend910b", "Ascend910B3"); None otherwise."""
    for product in PRODUCTS if isinstance(name, str) else ():
        if re.fullmatch(f"{product}|{_CHIPS.get(product, product)}", name, re.IGNORECASE):
            return product
    return None


def product_named(what: str, name: Any) -> str:
    product = product_of(name)
    if product is not None:
        return product
    sold = [sold for sold, chips in _WITHOUT_PROFILE.items() if re.fullmatch(chips, str(name), re.IGNORECASE)]
    accepted = ", ".join(map(repr, PRODUCTS))
    raise ValueError(f"{what} is {name!r}{''.join(f' ({words}: no profile)' for words in sold)}; accepted: {accepted}")


_default_product = product_named("ANYFUSE_SOC", os.environ.get("ANYFUSE_SOC", ANY))
_product: ContextVar[str] = ContextVar("anyfuse_soc", default=_default_product)


@contextmanager
def soc(name: str) -> Iterator[None]:
    """Makes the block's operators refuse what a product refuses: dtypes, alignments, options, whole operators.

    `name` is "Ascend910B" (Atlas A2), "Ascend910_93" (Atlas A3), "Ascend950", "Ascend310P", "KirinX90", "Kirin9030"
    or "any" (the default, which `ANYFUSE_SOC` changes): everything that makes mathematical sense; or the name of one of
    their chips, such as "Ascend910B3", in any case. The numbers of an accepted call do not depend on it.
    `anyfuse info --soc NAME` prints what a product takes.

    Raises ValueError for another name.
    """
    token = _product.set(product_named("soc", name))
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


@dataclass(frozen=True)
class Limits:
    """What one product takes of one operator, beyond the operator's own checks. Names are those that the operator gives
    to `Profiles.check`.

    `dtypes`: accepted dtypes of a tensor, or of an option that names a dtype. `one_dtype`: tensors that must agree.
    `ranks`: smallest and largest number of dimensions. `shapes`: the exact shape. `multiples`: what a size must be a
    multiple of. `values`: accepted values of an option. `positive`: numbers that must be above 0. `absent`: arguments
    that the product's operator does not have. An argument that is None meets every rule.
    """

    dtypes: Mapping[str, Sequence[torch.dtype | str]] = field(default_factory=dict)
    one_dtype: Sequence[str] = ()
    ranks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    positive: Sequence[str] = ()
    absent: Sequence[str] = ()

    def describe(self) -> dict[str, str]:
        """What is accepted for each argument, in words."""
        words: dict[str, list[str]] = {}
        rules: tuple[tuple[Iterable[str], Callable[[str], str]], ...] = (
            (self.dtypes, lambda name: _names(self.dtypes[name])),
            (self.one_dtype[1:], lambda name: f"the dtype of {self.one_dtype[0]}"),
            (self.ranks, lambda name: _rank_words(*self.ranks[name])),
            (self.shapes, lambda name: f"shape {self.shapes[name]}"),
            (self.multiples, lambda name: f"a multiple of {self.multiples[name]}"),
            (self.values, lambda name: _names(self.values[name])),
            (self.positive, lambda name: "above 0"),
            (self.absent, lambda name: "not available"),
        )
        for names, say in rules:
            for name in names:
                words.setdefault(name, []).append(say(name))
        return {name: "; ".join(parts) for name, parts in words.items()}


class Profiles:
    """The table of one operator: products and their limits. A product that is missing does not have the operator."""

    def __init__(self, operator: str, table: Mapping[tuple[str, ...], Limits]) -> None:
        self.operator = operator
        self.limits = {name: limits for names, limits in table.items() for name in names}
        for name in self.limits:
            _one_of("product", name, tuple(PRODUCTS))

    def check(self, **call: Any) -> None:
        """Refuses the call that the current product refuses. A value is a tensor, a number, an option, a list with one
        for each parameter of a group, or None. Rules for names that are not given are not looked at.

        TypeError for dtypes, ValueError for everything else; the message names product, argument, value and what is
        accepted.
        """
        name = product()
        limits = self.limits.get(name)
        if limits is None:
            raise ValueError(f"{self.operator} is not available on {name}; accepted: soc {_names((ANY, *self.limits))}")
        _check(name, limits, call)


def limits_on(name: str, profiles: Profiles | None) -> dict[str, str] | None:
    """What a product takes of an operator, argument by argument in words; None where it does not have the operator."""
    name = product_named("soc", name)
    if name == ANY or profiles is None:
        return {}
    limits = profiles.limits.get(name)
    return None if limits is None else limits.describe()


def _check(product: str, limits: Limits, call: Mapping[str, Any]) -> None:
    def given(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        for name in names:
            values = call.get(name)
            for value in values if isinstance(values, list) else [values]:
                if value is not None:
                    yield name, value

    def refuse(name: str, got: str, accepted: str, error: type[Exception] = ValueError) -> None:
        raise error(f"{name} {got} on {product}; accepted: {accepted}")

    for name, value in given(limits.absent):
        refuse(name, f"is given ({_kind(value)}), which is not available", "None")
    for name, value in given(limits.dtypes):
        dtype = value.dtype if isinstance(value, Tensor) else value
        if _name(dtype) not in map(_name, limits.dtypes[name]):
            refuse(name, f"has dtype {_name(dtype)}", _names(limits.dtypes[name]), TypeError)
    for name, value in given(limits.values):
        if value not in limits.values[name]:
            refuse(name, f"is {value!r}", _names(limits.values[name]))
    for name, value in given(limits.ranks):
        low, high = limits.ranks[name]
        if not low <= value.dim() <= high:
            refuse(name, f"has {value.dim()} dimensions", _rank_words(low, high))
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
                accepted = f"{_name(leader.dtype)}, the dtype of {first}"
                refuse(name, f"has dtype {_name(tensor.dtype)}", accepted, TypeError)


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _names(values: Iterable[Any]) -> str:
    return ", ".join(map(_name, values))


def _rank_words(low: int, high: int) -> str:
    return f"{low} to {high} dimensions" if low != high else f"{low} dimensions"


def _kind(value: Any) -> str:
    return f"a tensor of {_name(value.dtype)}" if isinstance(value, Tensor) else repr(value)
