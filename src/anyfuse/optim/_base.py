"""What the optimizers share: the way of a step, and loading of states.

The way of a step: each group gives the calls of its operator, for all of its parameters that have a gradient, and these
calls are taken together (`_step`). Whatever is refused is refused before the first parameter is written.

Every parameter counts its own steps (`state["step"]`, a tensor, as in torch): one that gets its first gradient late
starts at 1. The state of a parameter is made at its first step. It is saved and loaded as it is: loading never changes
a dtype.

Of a parameter that is sharded over ranks (a DTensor) a step sees this rank's part alone (`_sharding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor

from ..ops import _checks as checks
from ..ops import _memory as memory
from ..ops import _register as operators
from . import _sharding as sharding
from ._loading import new_step, whole_step
from ._options import check_betas, check_flag, check_number
from ._step import (
    Entry,
    Group,
    State,
    Taken,
    check_dense,
    check_device,
    check_gradient,
    check_param,
    check_state,
    resolved,
)

_grad_of = attrgetter("grad")
_NoneType = type(None)


class FusedOptimizer(torch.optim.Optimizer):
    """The base of the optimizers. A subclass has

    - `_check_group(group)`: refuses a group's numbers and options (when it is added or loaded, and when one changes),
    - `_new_state(group, param)`: the state of a parameter before its first step, without its `step`,
    - `_entries(group, param, state)`: what each tensor of a state may be, but for `step`,
    - `_calls(taken, grad_scale)`: the operator's calls that step a group, as records; their `step` is the one before,
    - `_adapt_state(group, param, state)`: one parameter's state out of a checkpoint, in that form,
    - `_saved_state(group, param, state)`, where a state is saved in another form than it has,
    - `_with_gradients(group)`, `_check_gradients(taken)`, `_run(call)`, where more than dense gradients are accepted.
    """

    #: How `state_dict` gives 8-bit moments: None, "rows" or "float32"; see docs/distributed.md. It belongs to the
    #: optimizer, not to its state: a loaded state does not set it.
    checkpoint_form: str | None = None

    # torch.amp.GradScaler leaves unscaling and skipping to `step` by the attributes grad_scale and found_inf.
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._checked: dict[int, Any] = {}  # the options of each group as they were looked at last
        self._options = _options_of(defaults)
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._options, self._checked = _options_of(self.defaults), {}
        for kept in self.state.values():
            if isinstance(kept, dict) and kept and not isinstance(kept.get("step"), Tensor):  # of version 0.1
                kept["step"] = new_step(whole_step(kept.get("step", 0)))

    # ---- groups ----

    def add_param_group(self, param_group: Group) -> None:
        """Adds a group (see `torch.optim.Optimizer.add_param_group`); a parameter named twice in it is stepped once.

        Raises TypeError for parameters of another dtype than float32, float16 and bfloat16, and ValueError for options
        out of range and for parameters that lie neither on the CPU nor on a GPU.
        """
        if isinstance(param_group, dict) and not isinstance(param_group["params"], (Tensor, set)):
            param_group = {**param_group, "params": _once(param_group["params"])}
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
            for param in group["params"]:
                if param.requires_grad:
                    check_param(sharding.local(param))
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _check_group(self, group: Group) -> None:
        checks.require(not group.get("amsgrad"), "amsgrad is True; accepted: False")
        check_number("lr", group["lr"], 0.0)
        check_betas(group["betas"])
        check_number("eps", group["eps"], 0.0)
        check_number("weight_decay", group["weight_decay"], 0.0)
        check_flag("maximize", group["maximize"])

    # ---- the step ----

    @torch._disable_dynamo  # type: ignore[attr-defined]  # one native call: there is nothing to trace
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every parameter that has a gradient.

        Args:
            closure: computes the loss anew, with gradients; called once, before the step.

        Returns:
            What the closure returned, or None.

        Raises:
            TypeError: a gradient of a dtype or layout that is not accepted.
            ValueError: an option of a group that is out of range; parameters or states that share memory or do not fit
                each other. Nothing has been written then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf) != 0.0:
            return loss
        self._before_step()
        work = []
        for number, group in enumerate(self.param_groups):
            params, grads = self._with_gradients(group)
            if params:
                self._check_options(number, group)
                work.append(Taken(number, group, params, grads, self._states(params)))
        if not all(map(all, map(_states_of, work))):
            self._make_states(work)
        self._take(work, 1.0 if scale is None else float(scale))
        self._after_step(work)
        return loss

    def _before_step(self) -> None:
        """What a subclass refuses before a step."""

    def _after_step(self, work: Sequence[Taken]) -> None:
        """What a subclass does after a step that was not skipped."""

    def _check_options(self, number: int, group: Group) -> None:
        """Looks at a group's options where they are others than at the step before."""
        options = self._options(group)
        if self._checked.get(number) != options:
            self._check_group(group)
            self._checked[number] = options

    def _with_gradients(self, group: Group) -> tuple[Sequence[Tensor], Any]:
        """The parameters to step, and what each is stepped by."""
        params, grads = group["params"], list(map(_grad_of, group["params"]))
        if _NoneType in set(map(type, grads)):
            params = [param for param, grad in zip(params, grads, strict=True) if grad is not None]
            grads = [grad for grad in grads if grad is not None]
        return params, resolved(sharding.local_gradients(params, grads))

    def _states(self, params: Sequence[Tensor]) -> list[State]:
        return list(map(self.state.get, params))  # type: ignore[arg-type]  # those of none are made before use

    def _make_states(self, work: list[Taken]) -> None:
        """The states of parameters that have none, once all gradients are known to be sound."""
        for taken in work:
            self._check_params(taken)
            self._check_gradients(taken)
            memory.check_memory([("a parameter", taken.mine)], [("a gradient", list(self._read(taken.grads)))])
        for i, taken in enumerate(work):
            for param in taken.params:
                if not self.state[param]:
                    self._make_state(taken.group, param)
            work[i] = taken._replace(states=self._states(taken.params))

    def _make_state(self, group: Group, param: Tensor) -> State:
        state = self.state[param] = {"step": new_step(), **self._new_state(group, param)}
        return state

    def _take(self, work: Sequence[Taken], grad_scale: float) -> None:
        """Steps all groups, or none. See `_step` for the two ways."""
        try:
            calls = list(chain.from_iterable(self._calls(taken, grad_scale) for taken in work))
            plain = not any(map(Tensor.is_neg, chain.from_iterable(taken.params for taken in work)))
        except (KeyError, TypeError, AttributeError):  # of a state that is not as it should be
            plain = False
        if plain and operators.run_together(calls):
            for taken in work:
                operators.bump(taken.mine)  # no graph holds a state
            return
        for taken in work:
            self._check(taken)
        calls = list(chain.from_iterable(self._calls(taken, grad_scale) for taken in work))
        for call in calls:
            self._check_call(call)
        for call in calls:
            self._run(call._replace(step=[step + 1 for step in call.step]))
        for step in {id(step): step for call in calls for step in call.step}.values():
            step += 1

    def _check(self, taken: Taken) -> None:
        """Refuses, in words, parameters, gradients and states that are not as they should be."""
        self._check_params(taken)
        self._check_gradients(taken)
        params = taken.mine
        states: list[Tensor] = []
        for param, mine, state in zip(taken.params, params, taken.states, strict=True):
            entries = self._entries(taken.group, param, state)
            check_state(mine, state, entries)
            states += [state[key] for key in entries]
        written = [("a parameter", params), ("an optimizer state", states)]
        memory.check_memory(written, [("a gradient", list(self._read(taken.grads)))])

    def _check_params(self, taken: Taken) -> None:
        params = taken.mine
        for param in params:
            check_param(param)
            check_device("a parameter", param, params[0].device, "the first one of its group")

    def _check_gradients(self, taken: Taken) -> None:
        check_dense(taken.grads)
        for param, grad in zip(taken.mine, taken.grads, strict=True):
            check_gradient(param, grad)

    def _read(self, grads: Sequence[Any]) -> Iterable[Tensor]:
        """The tensors that gradients are made of."""
        return grads

    def _check_call(self, call: Any) -> None:
        """Refuses what an operator would refuse of a call."""
        operators.operator_of(call).check(call)

    def _run(self, call: Any) -> None:
        operators.operator_of(call).run(call)

    def _calls(self, taken: Taken, grad_scale: float) -> Sequence[Any]:
        raise NotImplementedError

    def _new_state(self, group: Group, param: Tensor) -> State:
        raise NotImplementedError

    def _entries(self, group: Group, param: Tensor, state: State) -> dict[str, Entry]:
        raise NotImplementedError

    # ---- saving and loading ----

    def state_dict(self) -> dict[str, Any]:
        """The state as torch.optim.Optimizer.state_dict gives it; that of sharded parameters as DTensors."""
        after = self.register_state_dict_post_hook(lambda _, packed: self._saved(packed), prepend=True)
        try:
            return super().state_dict()
        finally:
            after.remove()

    def _saved(self, packed: dict[str, Any]) -> dict[str, Any]:
        pairs = [(group, param) for group in self.param_groups for param in group["params"]]
        states = {
            key: self._saved_state(*pairs[key], state) if isinstance(key, int) and state else state
            for key, state in packed["state"].items()
        }
        return {**packed, "state": states}

    def _saved_state(self, group: Group, param: Tensor, state: State) -> State:
        return sharding.wrap_state(param, state) if sharding.is_sharded(param) else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state as it was saved: codes, scales and moments keep their dtypes, whatever the parameters have.

        The options of the saved groups replace those of this optimizer, block sizes and codebooks too, as in torch.
        The tensors are copied. A state of `torch.optim.AdamW` is taken too.

        Raises ValueError when a state does not fit its parameter or its group; the optimizer is then as before.
        """
        before = self.register_load_state_dict_pre_hook(lambda _, given: self._adapted(given))
        after = self.register_load_state_dict_post_hook(_unwrap, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _adapted(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Completes saved groups by the options that they lack, and puts their states into the form that is stepped."""
        groups = state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            return state_dict  # torch refuses it
        states = {key: state for key, state in state_dict["state"].items() if state}
        saved_groups = []
        for group, given in zip(self.param_groups, groups, strict=True):
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            saved = {**options, **given}
            if isinstance(saved["betas"], list):  # some formats make lists of tuples
                saved["betas"] = tuple(saved["betas"])
            self._check_group(saved)
            for key, param in zip(saved["params"], group["params"], strict=True):
                if key in states:
                    mine = sharding.unwrap_state(param, states[key])
                    states[key] = _Kept(self._adapt_state(saved, param, mine))
            saved_groups.append(saved)
        return {**state_dict, "param_groups": saved_groups, "state": states}

    def _adapt_state(self, group: Group, param: Tensor, state: Mapping[str, Any]) -> State:
        """One parameter's state out of a checkpoint, as copies, in the form that is stepped."""
        raise NotImplementedError


class _Kept:
    """A state on its way through torch's loader, which would cast the tensors of a dict to the parameter's dtype."""

    def __init__(self, state: State) -> None:
        self.state = state


def _unwrap(optimizer: torch.optim.Optimizer) -> None:
    for param, state in optimizer.state.items():
        if isinstance(state, _Kept):
            optimizer.state[param] = state.state


_states_of = attrgetter("states")


def _options_of(defaults: dict[str, Any]) -> Callable[[Group], tuple[Any, ...]]:
    """What a group's options are read by: without its counter, and what torch adds to the defaults when it loads."""
    return itemgetter(*(key for key in defaults if key not in ("ema_updates", "differentiable")))


def _once(params: Any) -> list[Any]:
    """The parameters, or pairs of name and parameter, without those that came before."""
    seen: set[int] = set()
    kept = []
    for item in params:
        key = id(item[1] if isinstance(item, tuple) else item)
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept
