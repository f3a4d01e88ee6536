"""`torch_npu.testing`: what test files of torch_npu's kind are written on, over unittest and NumPy."""

from __future__ import annotations

import inspect
import itertools
import os
import random
import sys
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._products import ANY, product_of
from .._soc import product
from . import npu, plain

# ---- torch_npu.testing.testcase ----

_COMPARED = ("bool", "uint8", "uint16", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def run_tests() -> None:
    """Runs the tests of the script."""
    unittest.main(argv=sys.argv)


class TestCase(unittest.TestCase):
    """unittest's, with comparisons of tensors. Each test begins with the seed of the variable SEED, or 666."""

    precision = 1e-5
    maxDiff = None
    exact_dtype = False
    npu_device: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.npu_device = set_npu_device()

    def setUp(self) -> None:
        seed = int(os.environ.get("SEED", "666"))
        torch.manual_seed(seed)
        random.seed(seed)

    def assertRtolEqual(
        self,
        x: Any,
        y: Any,
        prec: float = 1e-4,
        prec16: float = 1e-3,
        auto_trans_dtype: bool = False,
        message: Any = None,
    ) -> None:
        """Tensors, arrays, numbers or sequences of them are close. With e = |x - y| and r = e / (max(|x|, |y|) + tiny),
        two tensors of n elements fail only if e is not within prec everywhere, nor is r, and more than n·prec elements
        are beyond it in e, and as many in r. prec16 is for float16. Shapes and dtypes must agree."""
        if isinstance(x, Sequence) and isinstance(y, Sequence):
            for one, other in zip(x, y, strict=False):
                self.assertRtolEqual(one, other, prec, prec16, auto_trans_dtype, message)
            return
        one, other = _array(x, y), _array(y, x)
        if auto_trans_dtype:
            one = one.astype(other.dtype)
        self.assertEqual(one.shape, other.shape, message="shape error")
        if one.dtype != other.dtype or one.dtype.name not in _COMPARED:
            self.fail(f"dtype error: {one.dtype} and {other.dtype}; accepted: one dtype of {', '.join(_COMPARED)}")
        if one.dtype == np.bool_:
            self.assertTrue(bool((one == other).all()), message)
            return
        limit, tiny = (prec16, 6e-8) if one.dtype == np.float16 else (prec, 1e-9)
        a, b = one.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.abs(a - b)
            within = error <= limit, error / (np.maximum(np.abs(a), np.abs(b)) + tiny) <= limit
        if not any(side.all() for side in within) and all((~side).sum() > one.size * limit for side in within):
            self.fail(message or f"result error: {(~within[0]).sum()} of {one.size} elements are beyond {limit}")

    def assertEqual(
        self,
        x: Any,
        y: Any,
        prec: Any = None,
        message: Any = "",
        allow_inf: bool = False,
        exact_dtype: bool | None = None,
    ) -> None:
        """Tensors and numbers are equal within `prec` (a message, where it is a string), everything else by ==.
        NaNs equal NaNs; infinities equal each other in tensors, and elsewhere with `allow_inf`."""
        if isinstance(prec, str):
            prec, message = None, prec
        limit = self.precision if prec is None else prec
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            super().assertEqual(tuple(x.shape), tuple(y.shape), message or None)
            if self.exact_dtype if exact_dtype is None else exact_dtype:
                super().assertEqual(x.dtype, y.dtype, message or None)
            a, b = (np.asarray(_dense(side).double()) for side in (x, y))
            if not np.allclose(a, b, rtol=0.0, atol=limit, equal_nan=True):
                self.fail(message or f"tensors differ by more than {limit}")
        elif _is_number(x) and _is_number(y):
            one, other = (side.item() if isinstance(side, Tensor) else side for side in (x, y))
            if not (abs(one - other) <= limit or (allow_inf and one == other)):
                self.fail(message or f"{one} and {other} differ by more than {limit}")
        elif isinstance(x, dict) and isinstance(y, dict):
            super().assertEqual(set(x), set(y), message or None)
            for key in x:
                self.assertEqual(x[key], y[key], prec, message, allow_inf, exact_dtype)
        elif isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
            super().assertEqual(len(x), len(y), message or None)
            for one, other in zip(x, y, strict=True):
                self.assertEqual(one, other, prec, message, allow_inf, exact_dtype)
        else:
            super().assertEqual(x, y, message or None)


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) or (isinstance(value, Tensor) and value.numel() == 1)


def _dense(x: Tensor) -> Tensor:
    x = x.detach().cpu()
    return x.to_dense() if x.is_sparse else x


def _array(x: Any, beside: Any) -> np.ndarray[Any, Any]:
    """x as an array; a sequence beside a tensor has its dtype."""
    if isinstance(x, Sequence) and isinstance(beside, Tensor):
        x = torch.as_tensor(x, dtype=beside.dtype)
    return np.asarray(_dense(x).numpy() if isinstance(x, Tensor) else x)


# ---- torch_npu.testing.common_utils ----


def get_npu_device() -> str:
    """The NPU that tests use: that of the variable SET_NPU_DEVICE, or "npu:0"."""
    return f"npu:{os.environ.get('SET_NPU_DEVICE', '0')}"


def set_npu_device() -> str:
    device = get_npu_device()
    npu.set_device(device)
    return device


def create_common_tensor(item: Sequence[Any], minValue: float, maxValue: float, device: Any = None) -> Any:
    """Random values in [minValue, maxValue) on the CPU and on the NPU. `item`: NumPy dtype, layout (-1: as it is; see
    `torch_npu.Format`), shape."""
    dtype, layout, shape = item
    return _on_both(np.random.uniform(minValue, maxValue, shape).astype(dtype), layout, device)


def create_dtype_tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    npu_format: int = -1,
    min_value: float = -5,
    max_value: float = 5,
    no_zero: bool = False,
    device: Any = None,
) -> Any:
    """As `create_common_tensor`: float32 and float16 of that range, booleans, or int32 for any other dtype. `no_zero`
    puts ones in the place of zeros."""
    if dtype == torch.bool:
        x = np.random.randint(0, 2, size=shape).astype(bool)
    elif dtype in (torch.float16, torch.float32):
        name = "float16" if dtype == torch.float16 else "float32"
        x = np.random.uniform(min_value, max_value, shape).astype(name)
    else:
        x = np.random.randint(int(min_value), int(max_value) + 1, size=shape).astype(np.int32)
    return _on_both(np.where(x != 0, x, np.ones_like(x)) if no_zero else x, npu_format, device)


def _on_both(values: np.ndarray[Any, Any], layout: int, device: Any) -> tuple[Tensor, Tensor]:
    moved = torch.from_numpy(values).to(get_npu_device() if device is None else device)
    return torch.from_numpy(values), moved if layout == -1 else plain.npu_format_cast(moved, layout)


class SupportedDevices:
    """Skips a test where the product in force (`ANYFUSE_SOC`, `anyfuse.soc`) is none of those named. Without one every
    test runs."""

    def __init__(self, supported_devices: Sequence[str], *others: Any) -> None:
        self.names = [name.replace("Ascend910_95", "Ascend950") for name in supported_devices]  # as it was called

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            now = product()
            if now != ANY and not any(now.startswith(name) or product_of(name) == now for name in self.names):
                raise unittest.SkipTest(f"the product is {now}; the test is for {', '.join(self.names)}")
            return function(*args, **kwargs)

        return wrapper


class SkipIfNotGteCANNVersion:
    """Runs the test: there is no CANN here that could be too old."""

    def __init__(self, version: str) -> None:
        self.version = version

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


@contextmanager
def freeze_rng_state() -> Iterator[None]:
    """Puts the state of the CPU's generator back after a block."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def iter_indices(tensor: Tensor) -> Any:
    """The indices of a tensor's elements: numbers of a vector, tuples of anything larger, none of a scalar."""
    if tensor.dim() < 2:
        return range(tensor.numel() if tensor.dim() else 0)
    return itertools.product(*map(range, tensor.shape))


def is_iterable(obj: Any) -> bool:
    try:
        iter(obj)
    except TypeError:
        return False
    return True


# ---- torch_npu.testing.decorator ----


class Dtypes:
    """`instantiate_tests` makes a test for each of these dtypes, and hands it to the parameter "dtype"."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        self.dtypes = dtypes

    def __call__(self, function: Any) -> Any:
        function.dtypes = self.dtypes
        return function


class Formats:
    """As `Dtypes`, for layouts and the parameter "npu_format"."""

    def __init__(self, *formats: int) -> None:
        self.formats = formats

    def __call__(self, function: Any) -> Any:
        function.formats = self.formats
        return function


def instantiate_tests(cls: Any) -> Any:
    """Puts a test for each combination of dtype and layout in the place of a test that has `Dtypes` or `Formats`."""
    for name, function in list(vars(cls).items()):
        axes = {kind: getattr(function, f"{kind}s") for kind in ("dtype", "format") if hasattr(function, f"{kind}s")}
        if not axes:
            continue
        parameters = inspect.signature(function).parameters
        names = [next(parameter for parameter in parameters if kind in parameter) for kind in axes]
        device = {"device": "npu"} if "device" in parameters else {}
        for values in itertools.product(*axes.values()):
            ending = "".join(f"_{str(value).removeprefix('torch.')}" for value in values)
            setattr(cls, name + ending, _with(function, {**device, **dict(zip(names, values, strict=True))}))
        delattr(cls, name)
    return cls


def _with(function: Any, arguments: dict[str, Any]) -> Any:
    @wraps(function)
    def test(self: Any) -> Any:
        return function(self, **arguments)

    return test


def graph_mode(function: Any) -> Any:
    """The test as it is: the NPU's graph mode is not provided."""
    return function


def _named(*things: Any) -> dict[str, Any]:
    return {thing.__name__: thing for thing in things}


#: What the modules hold.
CONTENTS: dict[str, dict[str, Any]] = {
    "torch_npu.testing": {},
    "torch_npu.testing.testcase": _named(TestCase, run_tests),
    "torch_npu.testing.common_utils": _named(
        SkipIfNotGteCANNVersion,
        SupportedDevices,
        create_common_tensor,
        create_dtype_tensor,
        freeze_rng_state,
        get_npu_device,
        is_iterable,
        iter_indices,
        set_npu_device,
    ),
    "torch_npu.testing.decorator": _named(Dtypes, Formats, graph_mode, instantiate_tests),
}
