"""AdamW that keeps an exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import _checks as checks
from ..ops import apply_fused_ema_adamw as op
from . import _adamw_rows as rows
from . import _sharding as sharding
from ._base import FusedOptimizer
from ._buffers import Buffers
from ._loading import new_step
from ._options import check_choice, check_flag, check_number, check_whole
from ._step import Entry, Group, State, Taken, first_seed, scale_tensor

_FLOAT32 = frozenset([torch.float32])
_dtype_of = attrgetter("dtype")


class EMAAdamW(FusedOptimizer):
    """AdamW and an exponential moving average (EMA) of the weights in one pass over the memory.

    The mathematics is that of `anyfuse.apply_fused_ema_adamw_` (MindSpeed's `npu_apply_fused_ema_adamw`); with
    `state_bits=8` that of `anyfuse.apply_adam_w_quant_` with its EMA. The EMA of a parameter starts at the weights
    before its first step and moves with its steps; frozen parameters have none.

    Args:
        params: parameters, pairs of name and parameter, or groups; float32, float16 or bfloat16, on the
            CPU or, by the kernels of `anyfuse[triton]`, on one GPU a group.
        lr, betas, eps, weight_decay, maximize: as in torch.optim.AdamW; read anew at each step.
        ema_decay: the share of the EMA that stays at each step, once the warm-up is over.
        ema_warmup: True: the n-th update uses min(ema_decay, (1 + n)/(10 + n)). "diffusers": the same with n - 1, and 0
            at the first update, as in that library. False: ema_decay from the start. n counts the group's steps.
        adam_w_mode: False adds the decay to the gradient (Adam with L2). Not with `state_bits=8`.
        bias_correction: divides the moments by 1 - beta^step. Always with `state_bits=8`.
        ema_dtype: the EMA's dtype. In 16 bits a decay close to 1 needs `stochastic_rounding` to move it at all.
        state_bits: 32, or 8 for moments as AdamW8bit keeps them (parameters of `min_8bit_size` elements and more).
        step_mode: "parameter": each parameter counts its own steps for the bias correction. "group": one count for a
            group, as in MindSpeed.
        stochastic_rounding: parameters and EMAs of 16 bits are rounded up or down by chance (see AdamW8bit).
        block_size, min_8bit_size, codebook, nonzero_v, `checkpoint_form`: as in AdamW8bit, for `state_bits=8`.

    Groups may set each of these. State of a parameter: `step` (int64, one element), `exp_avg`, `exp_avg_sq` (float32,
    or codes and scales) and `ema`. State of a group: `ema_updates`, the number of its EMA's updates; after
    `average_buffers`, of the first one, `ema_buffers`, the averages by name.

    Raises:
        TypeError: a parameter, a gradient or an option of another kind.
        ValueError: an option out of range, or options that do not go together; states that do not fit.

    Example:
        >>> import torch, anyfuse
        >>> weight = torch.nn.Parameter(torch.ones(4))
        >>> optimizer = anyfuse.optim.EMAAdamW([weight], lr=0.1, weight_decay=0.0, ema_decay=0.5, ema_warmup=False)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> with optimizer.swap_ema():
        ...     print(weight.data)
        tensor([0.9500, 0.9500, 0.9500, 0.9500])
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        ema_decay: float = 0.9999,
        ema_warmup: bool | str = True,
        adam_w_mode: bool = True,
        bias_correction: bool = True,
        ema_dtype: torch.dtype = torch.float32,
        state_bits: int = 32,
        step_mode: str = "parameter",
        stochastic_rounding: bool = False,
        maximize: bool = False,
        block_size: int = 256,
        min_8bit_size: int = 4096,
        codebook: str = "dynamic",
        nonzero_v: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "ema_decay": ema_decay,
            "ema_warmup": ema_warmup,
            "ema_updates": 0,
            "adam_w_mode": adam_w_mode,
            "bias_correction": bias_correction,
            "ema_dtype": ema_dtype,
            "state_bits": state_bits,
            "step_mode": step_mode,
            "stochastic_rounding": stochastic_rounding,
            "rounding_seed": first_seed(),
            "maximize": maximize,
            "block_size": block_size,
            "min_8bit_size": min_8bit_size,
            "codebook": codebook,
            "nonzero_v": nonzero_v,
        }
        self._trained: list[tuple[Tensor, Tensor]] | None = None
        self._stored: list[Tensor] | None = None
        self._buffers: Buffers | None = None
        self._codebooks = rows.Codebooks()
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._codebooks = rows.Codebooks(self.param_groups, self.state)
        for name in ("_trained", "_stored", "_buffers"):  # loading a state keeps them, a copied optimizer has none
            self.__dict__.setdefault(name, None)

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        check_number("ema_decay", group["ema_decay"], 0.0)
        checks.require(group["ema_decay"] <= 1.0, f"ema_decay is {group['ema_decay']}; accepted: 0 to 1")
        check_whole("ema_updates", group["ema_updates"], 0)
        rows.check_quantized(group)
        check_choice("ema_warmup", group["ema_warmup"], (True, False, "diffusers"))
        check_choice("ema_dtype", group["ema_dtype"], checks.FLOATS)
        check_choice("step_mode", group["step_mode"], ("parameter", "group"))
        for name in ("adam_w_mode", "bias_correction"):
            check_flag(name, group[name])
        if group["state_bits"] == 8:
            for name in ("adam_w_mode", "bias_correction"):
                checks.require(group[name], f"{name} is False; accepted: True, as state_bits is 8")

    # ---- the step ----

    def _before_step(self) -> None:
        if self._trained is not None:
            raise RuntimeError("step inside swap_ema: the EMA weights are in place, and the step would be lost")
        self._check_buffers()

    def _calls(self, taken: Taken, grad_scale: float) -> Sequence[Any]:
        self._codebooks.check(taken)
        group = taken.group
        decay = decay_at(group, group["ema_updates"] + 1)
        call = rows.call_of if group["state_bits"] == 8 else _call_of
        calls = call(taken, grad_scale, decay)
        return [calls if group["step_mode"] == "parameter" else calls._replace(step=[new_step(group["ema_updates"])])]

    def _after_step(self, work: Sequence[Taken]) -> None:
        for taken in work:
            group = taken.group
            group["ema_updates"] += 1
            if group["step_mode"] == "group":
                for step in taken.column("step"):
                    step.fill_(group["ema_updates"])
        if self._buffers is not None:
            group = self.param_groups[0]
            self._buffers.average(group["ema_buffers"], decay_at(group, max(group["ema_updates"], 1)))

    def _new_state(self, group: Group, param: Tensor) -> State:
        self._codebooks.made(param, group["codebook"])
        return rows.new_state(group, param) | {"ema": _copy(param, group["ema_dtype"])}

    def _entries(self, group: Group, param: Tensor, state: State) -> dict[str, Entry]:
        found = rows.entries(group, param, state)
        return found | {"ema": Entry(checks.FLOATS, sharding.local(param).shape)}

    def _saved_state(self, group: Group, param: Tensor, state: State) -> State:
        return rows.saved_state(group, param, state, self.checkpoint_form)

    def _adapt_state(self, group: Group, param: Tensor, state: Mapping[str, Any]) -> State:
        adapted = rows.adapt_state(group, param, state)
        if adapted["exp_avg"].dtype == torch.uint8 and group["state_bits"] != 8:
            raise ValueError("a saved state has 8-bit moments, and state_bits of its group is 32; accepted: 8")
        ema = adapted.get("ema")
        if ema is None:
            adapted["ema"] = _copy(param, group["ema_dtype"])
        elif ema.shape != (shape := sharding.local(param).shape):
            raise ValueError(f"ema of a saved state has shape {tuple(ema.shape)}; accepted: {tuple(shape)}")
        return adapted

    # ---- the EMA ----

    def effective_ema_decay(self) -> list[float]:
        """The decay of each group's last update (the first update's, before there was one)."""
        return [decay_at(group, max(group["ema_updates"], 1)) for group in self.param_groups]

    def average_buffers(self, model: nn.Module) -> None:
        """Averages the model's floating-point buffers too (running means, say), from now on.

        Each step moves the averages by the rule of the weights, average = decay·average + (1 - decay)·buffer, in
        float32 (float64 for buffers of it), with the decay of the first group. `swap_ema` and `ema_state_dict` then
        take them for the buffers; other buffers, such as counters, stay as they are. They start as copies of the
        buffers, and are saved with the optimizer's state: call this before or after `load_state_dict`, whose averages
        are kept.

        Raises ValueError for averages that were loaded and do not belong to the model's buffers.
        """
        buffers, group = Buffers(_plain(model)), self.param_groups[0]
        if "ema_buffers" in group:
            buffers.check(group["ema_buffers"])
        else:
            group["ema_buffers"] = buffers.first_averages()
        self._buffers = buffers

    def _check_buffers(self) -> None:
        if "ema_buffers" in self.param_groups[0]:
            if self._buffers is None:
                raise RuntimeError("the state has averages of buffers, which no model is known for: average_buffers")
            self._buffers.check(self.param_groups[0]["ema_buffers"])

    def _averaged_buffers(self) -> list[tuple[Tensor, Tensor]]:
        self._check_buffers()
        if self._buffers is None:
            return []
        averages = self.param_groups[0]["ema_buffers"]
        return [(value, averages[name]) for name, value in self._buffers.now().items()]

    @contextmanager
    def swap_ema(self, model: nn.Module | None = None) -> Iterator[None]:
        """Puts the EMA weights into the parameters for the block, and the trained ones back, whatever happens in it.

        In place: views, compiled models and `data_ptr` stay valid. The trained weights are copied meanwhile. Every rank
        swaps its part of sharded parameters; FSDP2 may still hold whole ones, which it gathered for the last forward
        pass, so that the model has to be given: its `reshard` is called on both sides.

        Raises ValueError for sharded parameters without a model, RuntimeError when the EMA weights are in place
        already, and for a `step` inside the block.
        """
        if self._trained is not None:
            raise RuntimeError("swap_ema inside swap_ema: the EMA weights are in place already")
        pairs = self._with_ema() + self._averaged_buffers()
        if model is None and any(sharding.is_sharded(param) for param, _ in pairs):
            raise ValueError("swap_ema of sharded parameters without a model; accepted: swap_ema(model)")
        _reshard(model)
        self._trained = trained = [(param, sharding.local(param).detach().clone()) for param, _ in pairs]
        try:
            _assign(pairs)
            yield
        finally:
            self._trained = None
            _reshard(model)
            _assign(trained)

    def ema_state_dict(self, model: nn.Module, *, full: bool = False) -> dict[str, Tensor]:
        """The model's state dict with the EMA in place of each parameter that has one.

        It has every entry of `model.state_dict()`: frozen and unused parameters with their values, buffers with theirs
        (with their averages after `average_buffers`), tied weights under each of their names. The prefixes of
        torch.compile and (Distributed)DataParallel are left out, so that the plain model loads it strictly. Tensors are
        not copied, and an average has its own dtype.

        Under FSDP2 the entries are DTensors, each rank's part alone, as in the model's own state dict. With `full` they
        are whole tensors on rank 0 and the dict is empty on the others; all ranks have to call then.

        Raises ValueError when no parameter of the model has an EMA here.
        """
        averages = {id(param): sharding.wrap(param, ema) for param, ema in self._with_ema()}
        live = _plain(model).state_dict(keep_vars=True)
        if not any(id(value) in averages for value in live.values()):
            raise ValueError("model has no parameter with an EMA in this optimizer; accepted: the model that it steps")
        averages |= {id(buffer): average for buffer, average in self._averaged_buffers()}
        exported = {
            name.replace("_orig_mod.", ""): averages.get(id(value), value).detach()
            if isinstance(value, Tensor)
            else value
            for name, value in live.items()
        }
        return sharding.on_rank_0(exported) if full else exported

    def store(self, parameters: Iterable[Tensor]) -> None:
        """Keeps copies of parameters for `restore` (as in MindSpeed; `swap_ema` does all three)."""
        self._stored = [sharding.local(param).detach().clone() for param in parameters]

    def copy_to(self) -> None:
        """Puts the EMA weights into the parameters, in place. (Buffers stay: `store` has no copies of them.)"""
        _assign(self._with_ema())

    def restore(self, parameters: Iterable[Tensor]) -> None:
        """Puts the stored values back, in place. RuntimeError without `store`, ValueError for other parameters."""
        if self._stored is None:
            raise RuntimeError("restore without store: there are no weights to put back")
        params = sharding.locals_of(list(parameters))
        if [param.shape for param in params] != [kept.shape for kept in self._stored]:
            raise ValueError("parameters have other shapes than those stored; accepted: the parameters given to store")
        _assign(list(zip(params, self._stored, strict=True)))
        self._stored = None

    def _with_ema(self) -> list[tuple[Tensor, Tensor]]:
        params = [param for group in self.param_groups for param in group["params"]]
        return [(param, self.state[param]["ema"]) for param in params if self.state.get(param)]


def decay_at(group: Group, n: int) -> float:
    """The decay of a group's n-th update; n = 1 at the first."""
    decay, warmup = float(group["ema_decay"]), group["ema_warmup"]
    if warmup is False:
        return decay
    if warmup == "diffusers":
        n -= 1
        if n == 0:
            return 0.0
    return min(decay, (1 + n) / (10 + n))


def _call_of(taken: Taken, grad_scale: float, ema_decay: float) -> op.Call:
    """A step of a group of float32 moments. TypeError for others, which the operator would take."""
    group, m, v = taken.group, taken.column("exp_avg"), taken.column("exp_avg_sq")
    if not _FLOAT32.issuperset(map(_dtype_of, chain(m, v))):
        raise TypeError("moments of another dtype; accepted: float32")
    return op.Call(
        grad=list(taken.grads),
        var=list(taken.mine),
        m=m,
        v=v,
        s=taken.column("ema"),
        step=taken.column("step"),
        lr=float(group["lr"]),
        ema_decay=ema_decay,
        beta1=float(group["betas"][0]),
        beta2=float(group["betas"][1]),
        eps=float(group["eps"]),
        adam_mode=int(group["adam_w_mode"]),
        bias_correction=group["bias_correction"],
        weight_decay=float(group["weight_decay"]),
        convention="formula",
        lr_tensor=None,
        grad_scale=scale_tensor(grad_scale),
        found_inf=None,
        maximize=bool(group["maximize"]),
        stochastic_rounding=taken.seeds(),
    )


def _copy(param: Tensor, dtype: torch.dtype) -> Tensor:
    return sharding.local(param).detach().to(dtype, copy=True, memory_format=torch.contiguous_format)


@torch.no_grad()
def _assign(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in pairs:
        sharding.local(tensor).copy_(value)


def _reshard(model: nn.Module | None) -> None:
    """Lets FSDP2 drop the whole parameters that it still holds, so that it gathers them anew."""
    if model is None:
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _plain(model: Any) -> nn.Module:
    """The model inside those that torch.compile and (Distributed)DataParallel make."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            plain: nn.Module = model
            return plain
