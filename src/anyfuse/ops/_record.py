"""The words that the operators' records are written in. `csrc/torch/schemas.py` reads them, too, without torch."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

_T = TypeVar("_T")

#: An argument that the operator updates in place.
Updated = Annotated[_T, "updated"]

#: A list with an entry for each tensor that is empty where the argument is absent.
Perhaps = Annotated[_T, "perhaps"]

Convention = Literal["formula", "device"]
