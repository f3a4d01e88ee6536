"""The roofline: the same arrays read, updated and written by the native `anyfuse_stream`, with next to no arithmetic.

It walks as the kernels do, a tile of one array after the other, and exists in a few variants (tile sizes; stores past
the caches where something is only written). All of them run in every round; the fastest median is what the machine
gives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _core
from .case import WRITE, Runner, Traffic

TILES = (64, 256, 1024)
GRANULE = 16384  # units; more than any tile

ARRAY, PARAMS = _core.struct("anyfuse_stream_array"), _core.struct("anyfuse_stream_params")
_stream = _core.function("stream", PARAMS)


def variants(traffic: Traffic) -> dict[str, Runner]:
    """The streams of a pattern by name, on arrays of their own."""
    if traffic.index is not None:
        return {"stream rows": _runner(traffic, _arrays(traffic), 1, False)}
    if traffic.units < GRANULE:
        return {}  # in the caches: no roofline
    arrays = _arrays(traffic)
    found = {f"stream tile {tile}": _runner(traffic, arrays, tile, False) for tile in TILES}
    if any(array.access == WRITE for array in traffic.arrays):
        found |= {f"stream tile {tile} past caches": _runner(traffic, arrays, tile, True) for tile in TILES}
    return found


def streamed_units(traffic: Traffic) -> int:
    """How many of the pattern's units a stream walks: all, rounded down to whole tiles."""
    return traffic.units if traffic.index is not None else traffic.units // GRANULE * GRANULE


def _arrays(traffic: Traffic) -> list[Tensor]:
    tensors = []
    for array in traffic.arrays:
        units = traffic.table_rows if array.rows else traffic.units
        raw = torch.ones(units * array.width + 64, dtype=torch.uint8)
        tensors.append(raw[-raw.data_ptr() % 64 :])
    return tensors


def _runner(traffic: Traffic, tensors: list[Tensor], tile: int, past_caches: bool) -> Runner:
    arrays = (ARRAY * len(tensors))(
        *(
            ARRAY(tensor.data_ptr(), array.width, array.access, array.rows)
            for tensor, array in zip(tensors, traffic.arrays, strict=True)
        )
    )
    index = traffic.index
    units = streamed_units(traffic)
    params = PARAMS(
        _core.sizeof(PARAMS), _core.addressof(arrays), len(tensors), units, tile,
        None if index is None else index.data_ptr(), past_caches, torch.get_num_threads(),
    )  # fmt: skip

    def run(keep: object = (tensors, arrays, index)) -> None:
        _stream(params)

    return Runner(run, units=units)
