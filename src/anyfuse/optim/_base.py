"""What the optimizers share: the way of a step, its cached plans, and loading of states.

The way of a step: the gradients of all groups are looked at first, and each group makes or refreshes its plan; whatever
is refused is refused there. Then each group's plan runs: one native call for all of its parameters.

Every parameter counts its own steps (`state["step"]`, an int): one that gets its first gradient late starts at 1. The
state of a parameter is made at its first step. It is saved and loaded as it is: loading never changes a dtype.

Of a parameter that is sharded over ranks (a DTensor) a step sees this rank's part alone (`_sharding`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from ..ops import _checks as checks
from . import _sharding as sharding
from ._options import check_betas, check_flag, check_number
from ._plans import Group, State, check_dense, check_param, resolved

Run = Callable[[], None]

_grad_of = attrgetter("grad")
_NoneType = type(None)


class FusedOptimizer(torch.optim.Optimizer):
    """The base of the optimizers. A subclass has

    - `_check_group(group)`: refuses a group's numbers and options (when a group is added, and when one is loaded),
    - `_prepare(number, group, params, grads, grad_scale)`: makes the parameters' state where there is none, refuses
      what the operator would refuse, and returns the function that does the step,
    - `_adapt_state(group, param, state)`: one parameter's state out of a checkpoint, in the form that `_prepare` takes,
    - `_saved_state(group, param, state)`, where a state is saved in another form than it has,
    - `_with_gradients(group)` and `_check_gradients(number, params, grads)`, where more than dense gradients are
      accepted.
    """

    #: How `state_dict` gives 8-bit moments: None, "rows" or "float32"; see docs/distributed.md. It belongs to the
    #: optimizer, not to its state: a loaded state does not set it.
    checkpoint_form: str | None = None

    # torch.amp.GradScaler leaves unscaling and skipping to `step` by the attributes grad_scale and found_inf.
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self._plans: dict[Any, Any] = {}
        self._seen: list[State] = []
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._plans, self._seen = {}, []

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
            ValueError: parameters or states that share memory or do not fit each other. Nothing has been written then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf) != 0.0:
            return loss
        grad_scale = 1.0 if scale is None else float(scale)
        work: list[tuple[int, Group, Sequence[Tensor], Any]] = []
        for number, group in enumerate(self.param_groups):
            params, grads = self._with_gradients(group)
            if params:
                work.append((number, group, params, grads))
        self._forget_replaced_states()
        for number, _, params, grads in work:
            self._check_gradients(number, params, grads)
        for run in [self._prepare(*item, grad_scale) for item in work]:
            run()
        self._after_step()
        return loss

    def _after_step(self) -> None:
        """What a subclass does after a step that was not skipped."""

    def _with_gradients(self, group: Group) -> tuple[Sequence[Tensor], Any]:
        """The parameters to step, and what each is stepped by."""
        params, grads = group["params"], list(map(_grad_of, group["params"]))
        if _NoneType in set(map(type, grads)):
            params = [param for param, grad in zip(params, grads, strict=True) if grad is not None]
            grads = [grad for grad in grads if grad is not None]
        return params, resolved(sharding.local_gradients(params, grads))

    def _check_gradients(self, number: int, params: Sequence[Tensor], grads: Any) -> None:
        """Refuses gradients, unless the group's plan still holds: it takes dense ones alone."""
        if not self._plan_holds(number, params, grads):
            check_dense(grads)

    def _prepare(self, number: int, group: Group, params: Sequence[Tensor], grads: Any, grad_scale: float) -> Run:
        raise NotImplementedError

    def _plan_holds(self, key: Any, params: Sequence[Tensor], others: Sequence[Any]) -> bool:
        """Whether there is a plan that holds for the parameters and what goes with them; drops one that does not."""
        plan = self._plans.get(key)
        if plan is None or plan.holds(params, others):
            return plan is not None
        del self._plans[key]
        return False

    def _plan(self, key: Any, make: Callable[[], Any], options: tuple[Any, ...] = ()) -> Any:
        """The plan of that key, made where there is none for these options of the group (see `_plan_holds`)."""
        plan = self._plans.get(key)
        if plan is None or plan.options != options:
            plan = self._plans[key] = make()
            plan.options = options
            self._seen = list(self.state.values())
        return plan

    def _forget_replaced_states(self) -> None:
        """Drops the plans when a parameter's state is another dict than before."""
        now = list(self.state.values())
        if len(now) != len(self._seen) or not all(map(is_, now, self._seen)):
            self._plans.clear()
            self._seen = now

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
        """One parameter's state out of a checkpoint, as copies, in the form that `_prepare` takes."""
        raise NotImplementedError


class _Kept:
    """A state on its way through torch's loader, which would cast the tensors of a dict to the parameter's dtype."""

    def __init__(self, state: State) -> None:
        self.state = state


def _unwrap(optimizer: torch.optim.Optimizer) -> None:
    for param, state in optimizer.state.items():
        if isinstance(state, _Kept):
            optimizer.state[param] = state.state


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
