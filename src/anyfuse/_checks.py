"""The ground floor of every check: one wording, "NAME is X; accepted: Y". It imports nothing of the package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def require(condition: bool, message: str) -> None:
    """ValueError, for shapes and attributes."""
    if not condition:
        raise ValueError(message)


def require_tensor(name: str, value: Any, dtypes: Sequence[torch.dtype]) -> None:
    """TypeError for what is no tensor, and for a tensor of another dtype."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {kind(value)}; accepted: a tensor of {names(dtypes)}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}; accepted: {names(dtypes)}")


def one_of(what: str, value: T, accepted: Sequence[Any]) -> T:
    """The value, if it is one of those accepted, of their type: 1 is not taken for True. Otherwise ValueError."""
    for choice in accepted:
        if isinstance(value, type(choice)) and value == choice and isinstance(value, bool) == isinstance(choice, bool):
            return value
    raise ValueError(f"{what} is {value!r}; accepted: {', '.join(map(repr, accepted))}")


def dtype_name(dtype: object) -> str:
    """A dtype, or a word that stands for one, as it is written in errors and files: "float32"."""
    return str(dtype).removeprefix("torch.")


def names(dtypes: Iterable[object]) -> str:
    """Several: "float32, int8"."""
    return ", ".join(map(dtype_name, dtypes))


def kind(value: object) -> str:
    """What a value is, where something else was accepted: "a tensor of int8", "a str"."""
    return f"a tensor of {dtype_name(value.dtype)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
