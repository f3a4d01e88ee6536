"""Descriptions of many tensors at once: the native way and the one for an older torch say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from anyfuse import _core, _tensors
from anyfuse.optim import AdamW8bit, EMAAdamW, LazyAdam

DTYPES = {name: getattr(torch, name) for name in _core.DTYPES if hasattr(torch, name)}


def in_python(tensors: list[Any]) -> np.ndarray:
    rows = np.empty(len(tensors), _tensors.ROW)
    _tensors._describe_in_python(tensors, rows)
    return rows


def views() -> list[Tensor]:
    whole, images = torch.randn(4, 6, 5), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return [
        whole, whole[:, 1:], whole.transpose(0, 2), whole[::2, :, -1], whole[:0], whole[1, 2, 3],
        whole[:, :1].expand(4, 6, 5), images, torch.nn.Parameter(whole.clone()), torch.zeros((1,) * 12),
        torch.zeros(()), torch.zeros(0), torch.zeros(3, 0, 2), torch.zeros(1, 1, 1), torch.zeros(1, 7)[:, ::7],
    ]  # fmt: skip


def test_this_torch_is_asked_natively() -> None:
    assert (_tensors._describe is not None) == hasattr(Tensor, "__dlpack_c_exchange_api__")


def test_both_ways_say_the_same() -> None:
    dtypes = [dtype for name, dtype in DTYPES.items() if name != "int4"]  # torch keeps no values of it
    tensors = views() + [torch.zeros(5, dtype=dtype) for dtype in (*dtypes, torch.float64, torch.complex64)]
    native, plain = _tensors.describe(tensors), in_python(tensors)
    for field in set(_tensors.ROW.names) - {"layout"}:
        assert native[field].tolist() == plain[field].tolist(), field
    for rows in (native, plain):
        same = rows["layout"][:, None] == rows["layout"]
        expected = [[(a.shape, a.stride()) == (b.shape, b.stride()) for b in tensors] for a in tensors]
        assert same.tolist() == expected


def test_a_description_is_that_of_the_tensor() -> None:
    tensor = torch.zeros(6, 10, dtype=torch.bfloat16)[1:4, 2:7]
    (row,) = _tensors.describe([tensor])
    assert row["object"] == id(tensor) and row["data"] == tensor.data_ptr()
    assert (row["numel"], row["extent"], row["dimensions"], row["contiguous"]) == (15, 2 * (2 * 10 + 5), 2, 0)
    assert row["dtype"] == _core.DTYPES["bfloat16"] and row["device"] == _tensors.CPU


@pytest.mark.parametrize("way", [_tensors.describe, in_python])
@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")], ids=["sparse", "meta"])
def test_what_has_no_memory_is_refused(way: Any, tensor: Tensor) -> None:
    with pytest.raises(RuntimeError):
        way([torch.ones(2), tensor])


def test_what_is_no_tensor_is_refused() -> None:
    for wrong in (3, None, "tensor"):
        with pytest.raises((RuntimeError, TypeError, AttributeError)):
            _tensors.describe([wrong])


@pytest.mark.parametrize("cls", [AdamW8bit, EMAAdamW, LazyAdam])
def test_optimizers_step_alike_by_both_ways(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> list[Tensor]:
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in ((70, 70), (3,), ())]
        params.append(torch.nn.Parameter(torch.randn(9, 4).t()))
        optimizer = cls(params, lr=0.1)
        for i in range(4):
            for param in params:
                param.grad = torch.randn_like(param)
            params[0].data = params[0].data.clone() if i == 2 else params[0].data
            optimizer.step()
        return [param.detach() for param in params]

    native = steps()
    monkeypatch.setattr(_tensors, "_describe", None)
    assert all(map(torch.equal, native, steps()))
