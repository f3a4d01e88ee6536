"""The two-phase calls in Python, on torch tensors and NumPy arrays, over the C interface (`libanyfuse_acl`).

    size, executor = aclnn.aclnnLazyAdamGetWorkspaceSize(gradient, indices, m, v, var, lr, 0.9, 0.999, 1e-8)
    aclnn.aclnnLazyAdam(aclnn.workspace(size), size, executor)

Names, order and meaning of the arguments are those of the C functions; they may be given by name too, and what ends in
`Optional` may be left out. Phase 1 checks everything and raises `AclnnError` with the code of the C function. Results
are written into the tensors and arrays given (`...Ref`, `...Out`), through any strides. `call` does both phases in one.

Settings come from the environment as in C (`ANYFUSE_SOC`, `ANYFUSE_CONVENTION`, `ANYFUSE_NUM_THREADS`), read at the
first call and again after `aclFinalize`. Without a convention, aclnnLazyAdam computes as the device does and the others
by their formulas, as in C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import _core, acl_config
from ._checks import dtype_name, kind

_STATUS_HEADERS = ("acl/acl_base.h", "acl/error_codes/rt_error_codes.h", "aclnn/aclnn_base.h")
#: Names of what the functions return (acl, the runtime below it, aclnn) by code, from the headers of the C interface;
#: empty where the package was built without it.
STATUS_NAMES = {
    code: name
    for path in (acl_config.PREFIX / "include" / header for header in _STATUS_HEADERS)
    if path.exists()
    for name, code in _core.numbers(path.read_text(encoding="utf-8")).items()
    if name.startswith(("ACL_ERROR_", "ACLNN_ERR_")) and code
}
_REPEAT_INITIALIZE = 100002

#: Numbers of aclDataType, by the names that torch and NumPy give the types.
DTYPES = {
    **_core.DTYPES,
    "int16": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 10,
    "float64": 11,
    "bool": 12,
    "complex64": 16,
    "complex128": 17,
}
FORMATS = {"ND": 2, "FRACTAL_NZ": 29}

#: What Python gives for a C number, and what ctypes makes of it.
NUMBERS: dict[str, tuple[tuple[type, ...], Any]] = {
    "double": ((int, float), ctypes.c_double),
    "int64_t": ((int,), ctypes.c_int64),
    "bool": ((bool,), ctypes.c_bool),
}


class AclnnError(RuntimeError):
    """A call that did not succeed.

    Attributes:
        code: what the C function returned, 161002 for example.
        name: the code's name, ACLNN_ERR_PARAM_INVALID for example.
        message: what was wrong: the argument, what it was, what is accepted.
    """

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(f"{message} ({name}, {code})")
        self.code, self.name, self.message = code, name, message


class Described:
    """A tensor or array with a type or format that torch and NumPy have no word for.

    Args:
        data: what holds the elements.
        dtype: "int4" (two to a uint8, the low nibble first; the last dimension counts codes then), "hifloat8" (one to a
            uint8), or another name in `DTYPES` of the same size.
        format: "ND", or "FRACTAL_NZ" for data that is laid out in blocks, as (k1, n1, 16, 32).
    """

    def __init__(self, data: Tensor | np.ndarray, dtype: str | None = None, format: str = "ND") -> None:
        if dtype is not None and dtype not in DTYPES:
            raise TypeError(f"dtype is {dtype!r}; accepted: {', '.join(DTYPES)}")
        if format not in FORMATS:
            raise ValueError(f"format is {format!r}; accepted: {', '.join(FORMATS)}")
        self.data, self.dtype, self.format = data, dtype, format


class Executor:
    """What phase 1 plans and phase 2 runs. It runs once, unless it is made repeatable.

    It keeps the tensors of its call alive, and gives back what the C interface holds for it, when it is done or
    forgotten.
    """

    def __init__(self, handle: int, arguments: Arguments) -> None:
        self._handle: int | None = handle
        self._arguments = arguments
        self.repeatable = False

    def set_repeatable(self) -> Executor:
        """aclSetAclOpExecutorRepeatable: phase 2 may run any number of times, until `destroy`."""
        _check(_library().aclSetAclOpExecutorRepeatable(self.handle()))
        self.repeatable = True
        return self

    def destroy(self) -> None:
        """aclDestroyAclOpExecutor, and the end of the tensors' descriptions. Nothing happens where it has been done."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            _library().aclDestroyAclOpExecutor(ctypes.c_void_p(handle))
        self._arguments.destroy()

    def handle(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._handle)

    def done(self) -> None:
        """After phase 2: it has ended an executor that is not repeatable."""
        for tensor in self._arguments.written:
            if isinstance(tensor, Tensor) and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        if not self.repeatable:
            self._handle = None
            self._arguments.destroy()

    def __del__(self) -> None:
        self.destroy()


# ---- the library ----


@cache
def _library() -> Any:
    acl_config.prefix()
    library = ctypes.CDLL(str(acl_config.LIBRARY))
    for name in ("aclCreateTensor", "aclCreateBoolArray", "aclCreateIntArray"):
        getattr(library, name).restype = ctypes.c_void_p
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    return library


def _ready() -> Any:
    """The library, with the runtime begun and a context in this thread, whoever began it."""
    library = _library()
    code = library.aclInit(None)
    if code != _REPEAT_INITIALIZE:
        _check(code)
    if library.aclrtGetCurrentContext(ctypes.byref(ctypes.c_void_p())):
        _check(library.aclrtSetDevice(0))
    return library


def aclFinalize() -> None:
    """Ends the runtime. The next call begins it anew and reads the environment again."""
    _check(_library().aclFinalize())


def _check(code: int) -> None:
    if code:
        message = _library().aclGetRecentErrMsg().decode(errors="replace")
        raise AclnnError(code, STATUS_NAMES.get(code, f"ACL_ERROR_{code}"), message)


# ---- arguments ----


class Arguments:
    """The words of one call for C, and what must live as long as they do."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.written: list[Tensor | np.ndarray] = []
        self._kept: list[Any] = []
        self._ends: list[tuple[str, int]] = []

    def destroy(self) -> None:
        ends, self._ends = self._ends, []
        for function, handle in ends:
            getattr(_library(), function)(ctypes.c_void_p(handle))
        self._kept.clear()
        self.written = []

    def add_tensor(self, name: str, value: Any, written: bool) -> None:
        given = value if isinstance(value, Described) else Described(value)
        data = given.data
        if data is None:
            self.words.append(None)
            return
        if not isinstance(data, (Tensor, np.ndarray)):
            raise TypeError(f"{name} is {kind(data)}; accepted: a torch tensor, a NumPy array, or None")
        shape, strides, dtype, address = _layout(name, data, written)
        code = DTYPES[dtype] if given.dtype is None else DTYPES[given.dtype]
        if given.dtype == "int4" and dtype != "int4":  # two codes in a byte
            if not shape or strides[-1] != 1:
                raise ValueError(f"{name} holds int4 codes along strides {strides}; accepted: bytes side by side")
            shape, strides = [*shape[:-1], shape[-1] * 2], [*(stride * 2 for stride in strides[:-1]), 1]
        rank = ctypes.c_uint64(len(shape))
        dims, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)
        handle = _library().aclCreateTensor(
            dims, rank, code, steps, ctypes.c_int64(0), FORMATS[given.format], dims, rank, ctypes.c_void_p(address)
        )
        self._add_handle(handle, "aclDestroyTensor", data)
        if written:
            self.written.append(data)

    def add_mask(self, name: str, value: Any) -> None:
        if value is None:
            self.words.append(None)
            return
        if not isinstance(value, Sequence) or not all(isinstance(flag, bool) for flag in value):
            raise TypeError(f"{name} is {value!r}; accepted: booleans, or None")
        flags = (ctypes.c_bool * len(value))(*value)
        handle = _library().aclCreateBoolArray(flags, ctypes.c_uint64(len(value)))
        self._add_handle(handle, "aclDestroyBoolArray", flags)

    def add_number(self, name: str, value: Any, number: str) -> None:
        accepted, word = NUMBERS[number]
        if not isinstance(value, accepted) or (number != "bool" and isinstance(value, bool)):
            names = " or ".join(python.__name__ for python in accepted)
            raise TypeError(f"{name} is {kind(value)}; accepted: {names}")
        bits = 1023 if number == "double" else 63
        if isinstance(value, int) and not -(2**bits) <= value < 2**bits:
            raise ValueError(f"{name} is beyond {bits} bits; accepted: numbers within")
        self.words.append(word(value))

    def add_text(self, name: str, value: Any) -> None:
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is {kind(value)}; accepted: a string, or None")
        self.words.append(None if value is None else ctypes.c_char_p(value.encode()))

    def _add_handle(self, handle: int | None, end: str, kept: Any) -> None:
        if not handle:
            message = _library().aclGetRecentErrMsg().decode(errors="replace")
            raise AclnnError(161002, STATUS_NAMES[161002], message)
        self._ends.append((end, handle))
        self._kept.append(kept)
        self.words.append(ctypes.c_void_p(handle))


def _layout(name: str, data: Tensor | np.ndarray, written: bool) -> tuple[list[int], list[int], str, int]:
    """Shape, strides in elements, name of the dtype, and address."""
    if isinstance(data, Tensor):
        if data.device.type != "cpu" or data.layout is not torch.strided:
            raise ValueError(f"{name} is on {data.device} in layout {data.layout}; accepted: dense tensors on the CPU")
        if data.is_neg() or data.is_conj():
            raise ValueError(f"{name} is a lazily negated or conjugated view; accepted: its values (torch.resolve_neg)")
        if written and data.requires_grad and data.is_leaf and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient and would be written to; accepted under torch.no_grad()")
        dtype = dtype_name(data.dtype)
        shape, strides, address = list(data.shape), list(data.stride()), data.data_ptr()
    else:
        if written and not data.flags.writeable:
            raise ValueError(f"{name} is a read-only array; accepted: an array that can be written to")
        if any(stride % data.itemsize for stride in data.strides):
            raise ValueError(f"{name} has strides {data.strides}; accepted: multiples of its {data.itemsize} bytes")
        if not data.dtype.isnative:
            raise TypeError(f"{name} has dtype {data.dtype.str}; accepted: this machine's byte order")
        dtype = data.dtype.name
        shape, address = list(data.shape), data.ctypes.data
        strides = [stride // data.itemsize for stride in data.strides]
    if dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {dtype}; accepted: {', '.join(DTYPES)}")
    return shape, strides, dtype, address


# ---- the two phases ----

#: The arguments of each operator, as pairs of a kind and the official name.
PROTOTYPES: dict[str, list[tuple[str, str]]] = {}


def _bind(function: str, parameters: list[tuple[str, str]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The value of each parameter, None for those in ...Optional that were left out."""
    names = [name for _, name in parameters]
    if len(args) > len(names):
        raise TypeError(f"{function} takes {len(names)} arguments; got {len(args)}")
    values: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in values:
            raise TypeError(f"{function} has no argument {name!r} left; it takes {', '.join(names)}")
        values[name] = value
    missing = [name for name in names if name not in values and not name.endswith("Optional")]
    if missing:
        raise TypeError(f"{function} lacks {', '.join(missing)}")
    return [values.get(name) for name in names]


def _two_phases(name: str, prototype: str) -> tuple[Callable[..., tuple[int, Executor]], Callable[..., None]]:
    """Both functions of an operator, from the C types and names of its own arguments."""
    parameters = [(kind, word) for kind, _, word in (item.strip().rpartition(" ") for item in prototype.split(","))]
    PROTOTYPES[name] = parameters

    def plan(*args: Any, **kwargs: Any) -> tuple[int, Executor]:
        values = _bind(f"{name}GetWorkspaceSize", parameters, args, kwargs)
        library = _ready()
        arguments = Arguments()
        try:
            for (kind, parameter), value in zip(parameters, values, strict=True):
                if kind == "tensor":
                    arguments.add_tensor(parameter, value, written=parameter.lower().endswith(("ref", "out")))
                elif kind == "mask":
                    arguments.add_mask(parameter, value)
                elif kind == "char*":
                    arguments.add_text(parameter, value)
                else:
                    arguments.add_number(parameter, value, kind)
            size, executor = ctypes.c_uint64(), ctypes.c_void_p()
            phase = getattr(library, f"{name}GetWorkspaceSize")
            _check(phase(*arguments.words, ctypes.byref(size), ctypes.byref(executor)))
        except BaseException:
            arguments.destroy()
            raise
        assert executor.value is not None
        return size.value, Executor(executor.value, arguments)

    def run(workspace: Any, workspaceSize: int, executor: Executor, stream: int | None = None) -> None:
        library = _ready()
        if not isinstance(executor, Executor):
            raise TypeError(f"executor is {kind(executor)}; accepted: what phase 1 returned")
        if workspace is not None and not isinstance(workspace, (Tensor, np.ndarray)):
            raise TypeError(f"workspace is {kind(workspace)}; accepted: a tensor, an array, or None")
        start = None
        if workspace is not None:
            start = _layout("workspace", workspace, True)[3]
            if workspace.nbytes < workspaceSize:
                raise ValueError(
                    f"workspace has {workspace.nbytes} bytes; accepted: {workspaceSize}, its workspaceSize"
                )
        code = getattr(library, name)(
            ctypes.c_void_p(start), ctypes.c_uint64(workspaceSize), executor.handle(), ctypes.c_void_p(stream)
        )
        try:
            _check(code)
            _check(library.aclrtSynchronizeStream(ctypes.c_void_p(stream)))
        except AclnnError:
            if not executor.repeatable:
                executor.destroy()
            raise
        executor.done()

    listed = ", ".join(word for _, word in parameters)
    plan.__name__ = plan.__qualname__ = f"{name}GetWorkspaceSize"
    plan.__doc__ = f"Phase 1 of {name}({listed}): checks, and returns the workspace's size in bytes and the executor."
    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Phase 2 of {name}: computes what phase 1 planned, on a stream or the default one, to its end."
    return plan, run


def workspace(size: int) -> Tensor | None:
    """Memory for phase 2; None where none is needed."""
    return torch.empty(size, dtype=torch.uint8) if size else None


def call(name: str, *args: Any, **kwargs: Any) -> None:
    """Both phases of an operator, by its name: `call("aclnnLazyAdam", gradient, ...)`."""
    if name not in PROTOTYPES:
        raise ValueError(f"name is {name!r}; accepted: {', '.join(PROTOTYPES)}")
    size, executor = globals()[f"{name}GetWorkspaceSize"](*args, **kwargs)
    globals()[name](workspace(size), size, executor)


aclnnApplyAdamWQuantGetWorkspaceSize, aclnnApplyAdamWQuant = _two_phases(
    "aclnnApplyAdamWQuant",
    "tensor varRef, tensor grad, tensor mRef, tensor vRef, tensor qmapM, tensor qmapV, tensor absmaxMRef, "
    "tensor absmaxVRef, tensor step, double lr, double beta1, double beta2, double weightDecay, double eps, "
    "double gnormScale, char* quantModeOptional, int64_t blockSize",
)
aclnnApplyFusedEmaAdamGetWorkspaceSize, aclnnApplyFusedEmaAdam = _two_phases(
    "aclnnApplyFusedEmaAdam",
    "tensor grad, tensor varRef, tensor mRef, tensor vRef, tensor sRef, tensor step, double lr, double emaDecay, "
    "double beta1, double beta2, double eps, int64_t mode, bool biasCorrection, double weightDecay",
)
aclnnQuantMatmulDequantGetWorkspaceSize, aclnnQuantMatmulDequant = _two_phases(
    "aclnnQuantMatmulDequant",
    "tensor x, tensor weight, tensor weightScale, tensor biasOptional, tensor xScaleOptional, tensor xOffsetOptional, "
    "tensor smoothScaleOptional, char* xQuantMode, bool transposeWeight, tensor out",
)
aclnnQuantGroupedMatmulDequantGetWorkspaceSize, aclnnQuantGroupedMatmulDequant = _two_phases(
    "aclnnQuantGroupedMatmulDequant",
    "tensor x, tensor weight, tensor weightScale, tensor groupList, tensor biasOptional, tensor xScaleOptional, "
    "tensor xOffsetOptional, tensor smoothScaleOptional, char* xQuantMode, bool transposeWeight, tensor out",
)
aclnnQuantGroupedMatmulDequantWeightNZGetWorkspaceSize, aclnnQuantGroupedMatmulDequantWeightNZ = _two_phases(
    "aclnnQuantGroupedMatmulDequantWeightNZ",
    "tensor x, tensor weight, tensor weightScale, tensor groupList, tensor biasOptional, tensor xScaleOptional, "
    "tensor xOffsetOptional, tensor smoothScaleOptional, char* xQuantMode, bool transposeWeight, tensor out",
)
aclnnAddRmsNormDynamicQuantGetWorkspaceSize, aclnnAddRmsNormDynamicQuant = _two_phases(
    "aclnnAddRmsNormDynamicQuant",
    "tensor x1, tensor x2, tensor gamma, tensor smoothScale1Optional, tensor smoothScale2Optional, double epsilon, "
    "tensor y1Out, tensor y2Out, tensor xOut, tensor scale1Out, tensor scale2Out",
)
aclnnAddRmsNormDynamicQuantV2GetWorkspaceSize, aclnnAddRmsNormDynamicQuantV2 = _two_phases(
    "aclnnAddRmsNormDynamicQuantV2",
    "tensor x1, tensor x2, tensor gamma, tensor smoothScale1Optional, tensor smoothScale2Optional, "
    "tensor betaOptional, double epsilon, mask outputMaskOptional, tensor y1Out, tensor y2Out, tensor xOut, "
    "tensor scale1Out, tensor scale2Out",
)
aclnnLazyAdamGetWorkspaceSize, aclnnLazyAdam = _two_phases(
    "aclnnLazyAdam",
    "tensor gradient, tensor indices, tensor inputMRef, tensor inputVRef, tensor inputVarRef, tensor lr, double beta1, "
    "double beta2, double epsilon",
)
aclnnTransMatmulWeightGetWorkspaceSize, aclnnTransMatmulWeight = _two_phases(
    "aclnnTransMatmulWeight", "tensor mmWeightRef"
)


def aclnnCalculateMatmulWeightSizeV2(tensorShape: Sequence[int], dataType: torch.dtype | str) -> int:
    """How many elements (not bytes) a matrix of this shape takes in FRACTAL_NZ.

    Args:
        tensorShape: 2 to 6 sizes of at least 1; the last two are the matrix's.
        dataType: torch.int8, torch.float16 or torch.bfloat16, or its name.

    Raises AclnnError for another shape or type, TypeError for what is none.
    """
    name = str(dataType).removeprefix("torch.")
    if name not in DTYPES:
        raise TypeError(f"dataType is {dataType!r}; accepted: {', '.join(DTYPES)}")
    if not all(isinstance(size, int) for size in tensorShape):
        raise TypeError(f"tensorShape is {tensorShape!r}; accepted: whole numbers")
    library = _ready()
    array = library.aclCreateIntArray(
        (ctypes.c_int64 * len(tensorShape))(*tensorShape), ctypes.c_uint64(len(tensorShape))
    )
    size = ctypes.c_uint64()
    try:
        _check(library.aclnnCalculateMatmulWeightSizeV2(ctypes.c_void_p(array), DTYPES[name], ctypes.byref(size)))
    finally:
        library.aclDestroyIntArray(ctypes.c_void_p(array))
    return size.value


def aclnnCalculateMatmulWeightSize(tensorShape: Sequence[int]) -> int:
    """The same for float16."""
    return aclnnCalculateMatmulWeightSizeV2(tensorShape, torch.float16)
