"""The official names: scripts written for torch_npu, MindSpeed and mxRec run here as they are.

    import anyfuse.compat
    anyfuse.compat.install()          # or: anyfuse run script.py

makes `torch_npu`, `torch.npu`, MindSpeed's operator and optimizer and mxRec's optimizer importable, registers
`torch.ops.npu.*`, and lets tensors go to "npu": they stay on the stand-in device. Nothing of this happens on import,
and never where a real torch_npu is installed. Which names there are, and what differs, docs/migration-ascend.md lists.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

import torch

from . import _device, _modules, _registered, amp, mindspeed, mx_rec, npu, testing, torch_npu

_ALWAYS: _modules.Contents = {
    "torch_npu": torch_npu.CONTENTS,
    "torch_npu.npu": npu.CONTENTS,
    "torch_npu.npu.amp": amp.CONTENTS,
    "torch.npu": "torch_npu.npu",
    "torch.npu.amp": "torch_npu.npu.amp",
    **testing.CONTENTS,
    "mindspeed.ops.npu_apply_fused_ema_adamw": mindspeed.OPERATOR,
    "mx_rec.optimizers.lazy_adam": mx_rec.CONTENTS,
}
_ABSENT: _modules.Contents = {
    "mindspeed": {},
    "mindspeed.ops": {},
    "mindspeed.core": {},
    "mindspeed.core.optimizer": {},
    "mindspeed.core.optimizer.fused_ema_adamw": {"FusedEmaAdamW": mindspeed.FusedEmaAdamW},  # as anyfuse 0.1 had it
    "mindspeed.core.optimizer.fused_ema_adamw.fused_ema_adamw": mindspeed.OPTIMIZER,
    "mindspeed.optimizer": {},
    "mindspeed.optimizer.ema_adamw": mindspeed.OPTIMIZER,
    "mx_rec": {},
    "mx_rec.optimizers": {},
}
_REASONS = {**torch_npu.REASONS, **{f"torch_npu.npu.{name}": why for name, why in npu.REASONS.items()}}

_installed: str | None = None
_said = False


def install(device: str = "cpu") -> None:
    """Puts the official names in place, with `device` ("cpu" or "cuda") standing in for the NPU.

    Says so on stderr, once in a process. A second call with the same device does nothing. "npu" strings are understood
    in the thread that calls `install`, as with `torch.set_default_device`; `Tensor.npu()` works in every thread.

    Raises:
        RuntimeError: torch_npu is installed; another device was installed before; there is no such device, or no
            kernels for it.
        ValueError: another device than "cpu" and "cuda".
    """
    global _installed
    if _installed is not None:
        if _installed != device:
            raise RuntimeError(
                f"{_installed} stands in for the NPU already; call uninstall() before install({device!r})"
            )
        return
    if "torch_npu" in sys.modules or importlib.util.find_spec("torch_npu") is not None:
        raise RuntimeError("torch_npu is installed here: use it; anyfuse's stand-ins never take its place")
    _check_device(device)
    _modules.install(_ALWAYS, _ABSENT, _REASONS)
    _device.install(torch.device(device), importlib.import_module("torch_npu.npu"))
    _registered.install(torch_npu.CONTENTS)
    _installed = device
    _say(device)


def uninstall() -> None:
    """Takes the official names away again. The name "npu" of torch's private device type remains, as torch keeps it."""
    global _installed
    if _installed is None:
        return
    _registered.uninstall()
    _device.uninstall()
    _modules.uninstall()
    _installed = None


def installed() -> str | None:
    """The device that stands in for the NPU, or None."""
    return _installed


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}; accepted: 'cpu', 'cuda'")
    if device == "cpu":
        return
    if not torch.cuda.is_available():
        raise RuntimeError("device is 'cuda', but torch finds no GPU here; accepted: 'cpu'")
    if not torch._C._dispatch_has_kernel_for_dispatch_key("anyfuse::quant_matmul_dequant", "CUDA"):
        raise RuntimeError("device is 'cuda', but this anyfuse has no kernels for GPUs; accepted: 'cpu'")


def _say(device: str) -> None:
    global _said
    if _said:
        return
    _said = True
    place = "the CPU" if device == "cpu" else f"the GPU ({torch.cuda.get_device_name()})"
    print(
        f"anyfuse: no NPU is used; {place} stands in for it, and anyfuse for torch_npu, mindspeed and mx_rec.",
        file=sys.stderr,
    )
