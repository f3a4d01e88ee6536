"""What the processes of test_distributed.py do: one process group of 2 or 3 ranks goes through the checks of its list.

Where equality of bits is claimed, all ranks are given the same gradients: an all-reduce adds in its own order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from optimizers import VARIANTS, give_gradients
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import anyfuse
from anyfuse._bits import same_bits
from anyfuse._settings import backend
from anyfuse.optim import AdamW8bit, EMAAdamW, LazyAdam, rows_held

NAMES = ("AdamW8bit", "EMAAdamW", "EMAAdamW 8-bit", "LazyAdam", "LazyAdam by row, stochastic")
CODED = ("AdamW8bit", "EMAAdamW 8-bit")
BLOCK = 256
DTYPES = (torch.float32, torch.bfloat16)


def make(name: str, params: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """An optimizer by its name; of the stochastic one bits are claimed in fp32 alone, where nothing is rounded."""
    return VARIANTS[name](params, lr=1e-2, **options)


def new_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Parts that are uneven, empty on the last ranks, of fewer elements than 8-bit state asks for (4096) and with a
    border inside a block."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 65), nn.Tanh(), nn.Linear(65, 1)).to(dtype)


def sharded(mesh: DeviceMesh, dtype: torch.dtype = torch.float32, **options: Any) -> nn.Sequential:
    model = new_model(dtype)
    fully_shard(model[0], mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def hand_out(whole: nn.Module, model: nn.Module, step: int) -> None:
    """The same gradients to a whole model and to a sharded one."""
    give_gradients(whole.parameters(), step)
    for param, own in zip(whole.parameters(), model.parameters(), strict=True):
        own.grad = distribute_tensor(param.grad, own.device_mesh, own.placements, src_data_rank=None)


def step_without_communication(optimizer: Any, **kwargs: Any) -> None:
    with CommDebugMode() as counted:
        optimizer.step(**kwargs)
    assert counted.get_total_counts() == 0, counted.get_comm_counts()


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def assert_bits(got: Tensor, expected: Tensor, what: Any) -> None:
    assert same_bits(full(got).detach(), full(expected).detach()), what


def borders(rows: int, length: int, world: int) -> list[int]:
    """The elements at which the parts of the ranks begin and end."""
    size = -(-rows // world)
    return [min(rank * size, rows) * length for rank in range(world + 1)]


def pieces_of(param: Tensor, world: int) -> list[tuple[int, int]]:
    """The runs of elements whose blocks are counted from their first one, by the rule of docs/distributed.md."""
    edges = borders(param.shape[0], param.shape[1:].numel(), world)
    found = []
    for begin, end in itertools.pairwise(edges):
        first = min(-(-begin // BLOCK) * BLOCK, end)
        found += [(begin, first), (first, end)]
    return [(begin, end) for begin, end in found if begin < end]


class InPieces:
    """A single process that steps parameters piece by piece: what sharded 8-bit state is to be equal with."""

    def __init__(self, name: str, model: nn.Module, world: int) -> None:
        self.params = list(model.parameters())
        self.where = [
            pieces_of(p, world) if name in CODED and p.numel() >= 4096 else [(0, p.numel())] for p in self.params
        ]
        self.pieces = [
            [nn.Parameter(p.detach().view(-1)[a:b].clone()) for a, b in where]
            for p, where in zip(self.params, self.where, strict=True)
        ]
        groups = [
            {"params": pieces} | ({"min_8bit_size": 0 if p.numel() >= 4096 else 4096} if name in CODED else {})
            for p, pieces in zip(self.params, self.pieces, strict=True)
        ]
        self.optimizer = make(name, groups)

    def step(self) -> None:
        for param, where, pieces in zip(self.params, self.where, self.pieces, strict=True):
            for (begin, end), piece in zip(where, pieces, strict=True):
                piece.grad = param.grad.view(-1)[begin:end].clone()
        self.optimizer.step()

    def values(self) -> list[Tensor]:
        return [torch.cat([p.detach() for p in pieces]) for pieces in self.pieces]

    def state(self, key: str) -> list[Tensor]:
        return [torch.cat([self.optimizer.state[p][key] for p in pieces]) for pieces in self.pieces]


def example_module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the checks ----


def counting_counts(mesh: DeviceMesh, folder: Path) -> None:
    """The counter of collectives sees one when there is one."""
    tensor = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    with CommDebugMode() as counted:
        tensor.full_tensor()
    assert counted.get_total_counts() > 0


def fsdp2_steps(mesh: DeviceMesh, folder: Path) -> None:
    """FSDP2 × every optimizer × {fp32, bf16} = one process, bit for bit (8 bits: with blocks cut at the borders)."""
    for name in NAMES:
        for dtype in DTYPES:
            if "stochastic" in name and dtype == torch.bfloat16:
                continue
            whole, model = new_model(dtype), sharded(mesh, dtype)
            expected, optimizer = InPieces(name, whole, mesh.size()), make(name, model.parameters())
            for step in range(3):
                hand_out(whole, model, step)
                expected.step()
                step_without_communication(optimizer)
            keys = ("exp_avg", "exp_avg_sq") + (("ema",) if "EMA" in name else ())
            saved = optimizer.state_dict()["state"]
            for i, (param, values) in enumerate(zip(model.parameters(), expected.values(), strict=True)):
                assert_bits(full(param).view(-1), values, (name, dtype, i))
                for key in keys:
                    assert_bits(full(saved[i][key]).view(-1), expected.state(key)[i], (name, dtype, i, key))
            coded = optimizer.state[next(model.parameters())]["exp_avg"].dtype == torch.uint8
            assert coded == (name in CODED), "the choice of 8 bits goes by the whole parameter"


def cut_blocks_of_the_reference(mesh: DeviceMesh, folder: Path) -> None:
    """The reference cuts blocks at the same borders as the native call."""
    for name in CODED:
        models = [sharded(mesh), sharded(mesh)]
        optimizers = [make(name, model.parameters()) for model in models]
        for step in range(2):
            for choice, model, optimizer in zip(("native", "reference"), models, optimizers, strict=True):
                give_gradients(whole := [torch.empty(p.shape) for p in model.parameters()], step)
                for param, own in zip(whole, model.parameters(), strict=True):
                    own.grad = distribute_tensor(param.grad, mesh, own.placements, src_data_rank=None)
                with backend(choice):
                    step_without_communication(optimizer)
        for native, reference in zip(*(model.parameters() for model in models), strict=True):
            assert_bits(native, reference, name)


def fsdp2_training(mesh: DeviceMesh, folder: Path) -> None:
    """Forward and backward passes in mixed precision; the single process gets the gradients that came out."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name in NAMES:
        whole, model = new_model(), sharded(mesh, mp_policy=policy)
        expected, optimizer = InPieces(name, whole, mesh.size()), make(name, model.parameters())
        for step in range(2):
            torch.manual_seed(100 * step + dist.get_rank())
            model(torch.randn(8, 100)).float().square().mean().backward()
            for param, own in zip(whole.parameters(), model.parameters(), strict=True):
                assert own.grad.dtype == torch.float32
                param.grad = own.grad.full_tensor()
            expected.step()
            step_without_communication(optimizer)
            optimizer.zero_grad()
        for param, values in zip(model.parameters(), expected.values(), strict=True):
            assert_bits(full(param).view(-1), values, name)


def ddp_steps(mesh: DeviceMesh, folder: Path) -> None:
    """DDP × every optimizer × {fp32, bf16} = one process that is given the gradients that DDP made."""
    for name in NAMES:
        for dtype in DTYPES:
            whole, model = new_model(dtype), nn.parallel.DistributedDataParallel(new_model(dtype))
            expected, optimizer = make(name, whole.parameters()), make(name, model.parameters())
            for step in range(2):
                torch.manual_seed(100 * step + dist.get_rank())
                model(torch.randn(8, 100, dtype=dtype)).float().square().mean().backward()
                for param, own in zip(whole.parameters(), model.parameters(), strict=True):
                    param.grad = own.grad.clone()
                expected.step()
                step_without_communication(optimizer)
                optimizer.zero_grad()
            for param, own in zip(whole.parameters(), model.parameters(), strict=True):
                assert_bits(own, param, (name, dtype))


def grad_scaler(mesh: DeviceMesh, folder: Path) -> None:
    """An infinity in the part of one rank: all ranks leave the step out together, and the scale halves on all. The look
    for it is GradScaler's, and its all-reduce comes before `step`."""
    for name in NAMES:
        whole, model = new_model(), sharded(mesh)
        expected, optimizer = InPieces(name, whole, mesh.size()), make(name, model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step, rank_of_inf in enumerate((None, 0, 1, None)):
            hand_out(whole, model, step)
            for param in model.parameters():
                part = param.grad.to_local().mul_(scaler.get_scale())  # a power of 2: unscaled again without rounding
                if rank_of_inf == dist.get_rank() and part.numel():
                    part.view(-1)[-1] = float("inf")
            scaler.scale(torch.ones(()))
            before = [full(param).clone() for param in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            if rank_of_inf is None:
                expected.step()
            else:
                for param, old in zip(model.parameters(), before, strict=True):
                    assert_bits(param, old, (name, "not left out", step))
        assert scaler.get_scale() == 2.0**8
        assert {int(state["step"]) for state in optimizer.state.values()} == {2}
        for param, values in zip(model.parameters(), expected.values(), strict=True):
            assert_bits(full(param).view(-1), values, name)


def rounding_by_chance(mesh: DeviceMesh, folder: Path) -> None:
    """Copies of a parameter are rounded alike on all ranks, whatever their seeds; parts are not, and repeat
    themselves."""
    torch.manual_seed(1)
    values, grads = torch.randn(4, 300).bfloat16(), [torch.randn(4, 300).bfloat16() for _ in range(2)]
    torch.manual_seed(1 + dist.get_rank())
    for make_one in (
        partial(AdamW8bit, min_8bit_size=0),
        partial(EMAAdamW, ema_dtype=torch.bfloat16),
        partial(EMAAdamW, state_bits=8, min_8bit_size=0),
        LazyAdam,
    ):
        results = []
        for placement in (Replicate(), Shard(0), Shard(0)):
            parts = mesh.size() if placement.is_shard() else 1
            param = nn.Parameter(distribute_tensor(values.repeat(parts, 1), mesh, [placement], src_data_rank=None))
            optimizer = make_one([param], lr=1e-2, stochastic_rounding=True)
            for grad in grads:
                param.grad = distribute_tensor(grad.repeat(parts, 1), mesh, [placement], src_data_rank=None)
                step_without_communication(optimizer)
            results.append(param.to_local().detach())
            found = [torch.empty_like(values) for _ in range(mesh.size())]
            dist.all_gather(found, results[-1])
            for other in found[1:]:
                assert torch.equal(found[0], other) == placement.is_replicate(), (make_one, placement)
        assert same_bits(results[1], results[2])


def ema_exports(mesh: DeviceMesh, folder: Path) -> None:
    """swap_ema and ema_state_dict under FSDP2, also where FSDP2 still holds whole weights of the last forward pass."""
    whole, model = new_model(), sharded(mesh)
    expected, optimizer = EMAAdamW(whole.parameters(), lr=0.1), EMAAdamW(model.parameters(), lr=0.1)
    for step in range(3):
        hand_out(whole, model, step)
        expected.step()
        optimizer.step()
    x = torch.randn(4, 100, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        trained = model(x).clone()
        try:
            with optimizer.swap_ema():
                raise AssertionError("swap_ema without the model was accepted")
        except ValueError as error:
            assert "model" in str(error)
        with optimizer.swap_ema(model), expected.swap_ema():
            swapped = model(x).clone()
            assert torch.allclose(swapped, whole(x), atol=1e-6) and not torch.allclose(swapped, trained, atol=1e-4)
        assert torch.equal(model(x), trained)
    for module in (model[0], model):
        module.reshard()
    averages = expected.ema_state_dict(whole)
    for key, value in optimizer.ema_state_dict(model).items():
        assert isinstance(value, DTensor)
        assert_bits(value, averages[key], key)
    exported = optimizer.ema_state_dict(model, full=True)
    assert exported.keys() == (averages.keys() if dist.get_rank() == 0 else set())
    for key, value in exported.items():
        assert type(value) is Tensor
        assert_bits(value, averages[key], key)


def refusals(mesh: DeviceMesh, folder: Path) -> None:
    """Columns are stepped with fp32 state and refused with 8 bits; gradients must be sharded as their parameters."""
    values, grad = torch.randn(8, 6 * mesh.size()), torch.ones(8, 6 * mesh.size())
    dist.broadcast(values, 0)
    whole = nn.Parameter(values.clone())
    columns = nn.Parameter(distribute_tensor(values, mesh, [Shard(1)]))
    whole.grad, columns.grad = grad, distribute_tensor(grad, mesh, [Shard(1)])
    for fp32_state in (EMAAdamW, lambda params: AdamW8bit([{"params": params, "state_bits": 32}], min_8bit_size=0)):
        fp32_state([whole]).step()
        fp32_state([columns]).step()
        assert_bits(columns, whole, "columns")
    for optimizer, argument, message in (
        (AdamW8bit([columns], min_8bit_size=0), [Shard(1)], "8-bit moments"),
        (LazyAdam([columns], bias_correction="row"), [Shard(1)], "each row"),
        (EMAAdamW([columns]), [Replicate()], "placements"),
    ):
        columns.grad = distribute_tensor(grad, mesh, argument)
        before = full(columns).clone()
        try:
            optimizer.step()
        except ValueError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"not refused: {message}")
        assert_bits(columns, before, message)


def lazy_rows(mesh: DeviceMesh, folder: Path) -> None:
    """A table sharded by rows, each rank with the ids of its own rows; the padding is that of the whole table."""
    torch.manual_seed(3)
    values, ids, grads = torch.randn(11, 4), torch.randint(0, 11, (40,)), torch.randn(40, 4)
    for options in ({"bias_correction": "row"}, {"decay_mode": "catch_up", "weight_decay": 0.1}, {}):
        whole = nn.Parameter(values.clone())
        table = nn.Parameter(distribute_tensor(values, mesh, [Shard(0)]))
        expected = LazyAdam([whole], padding_idx=8, **options)
        optimizer = LazyAdam([table], padding_idx=8, **options)
        part = rows_held(table)
        for step in range(3):
            now = ids[step * 10 : step * 10 + 20]
            given = grads[step * 10 : step * 10 + 20]
            mine = (now >= part.first) & (now < part.first + part.count)
            expected.step(rows={whole: (now, given)})
            step_without_communication(optimizer, rows={table: (now[mine] - part.first, given[mine])})
        assert_bits(table, whole, options)
        saved = optimizer.state_dict()["state"][0]
        for key, value in expected.state_dict()["state"][0].items():
            if isinstance(value, Tensor):
                assert_bits(saved[key], value, (options, key))


def routed_ids(mesh: DeviceMesh, folder: Path) -> None:
    """The example: ids and gradients routed by all-to-all = one process with the batches of all ranks, in order."""
    example = example_module("distributed_embedding")
    torch.manual_seed(5)
    values = torch.randn(23, 4)
    batches = [(torch.randint(0, 23, (30,)), torch.randn(30, 4)) for _ in range(mesh.size())]
    whole, table = nn.Parameter(values.clone()), nn.Parameter(distribute_tensor(values, mesh, [Shard(0)]))
    expected, optimizer = LazyAdam([whole]), LazyAdam([table])
    for _ in range(2):
        ids, grads = batches[dist.get_rank()]
        route = example.Route.of(ids, table)
        assert torch.equal(route.rows(table), full(table)[ids])
        arrived = route.gradients(grads)
        step_without_communication(optimizer, rows={table: (route.ids, arrived)})
        expected.step(rows={whole: (torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]))})
        assert_bits(table, whole, "routed")


# ---- checkpoints ----

SAVED = {
    "AdamW8bit": {},
    "EMAAdamW": {},
    "EMAAdamW 8-bit": {},
    "LazyAdam by row, stochastic": {},
    "AdamW8bit as float32": {"form": "float32"},
}


def optimizer_to_save(key: str, params: Any) -> Any:
    optimizer = make(key.removesuffix(" as float32"), params)
    if key.endswith("float32"):
        optimizer.checkpoint_form = "float32"
    return optimizer


def save(mesh: DeviceMesh, folder: Path) -> None:
    """Saves model and optimizer together, one of them while training goes on, and beside it what other worlds must
    find."""
    for key in SAVED:
        whole, model = new_model(), sharded(mesh)
        optimizer = optimizer_to_save(key, model.parameters())
        for step in range(3):
            hand_out(whole, model, step)
            optimizer.step()
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        found = {
            name: {entry: full(v).clone() if isinstance(v, Tensor) else v for entry, v in values.items()}
            for name, values in optimizer_state["state"].items()
        }
        weights = {name: full(value).clone() for name, value in model_state.items()}
        if key == "EMAAdamW":
            saving = dcp.async_save(state, checkpoint_id=folder / key)
            hand_out(whole, model, 3)
            step_without_communication(optimizer)  # while it is being written; it has what was before
            saving.result()
        else:
            dcp.save(state, checkpoint_id=folder / key)
        if dist.get_rank() == 0:
            torch.save({"state": found, "model": weights}, folder / f"{key}.pt")


def one_process_saves(mesh: DeviceMesh, folder: Path) -> None:
    """What one process saves by rows, the ranks load bit for bit: a border that cuts a block anew changes nothing."""
    for key in SAVED:
        whole, model = new_model(), sharded(mesh)
        alone, optimizer = optimizer_to_save(key, whole.parameters()), optimizer_to_save(key, model.parameters())
        alone.checkpoint_form = alone.checkpoint_form or "rows"
        for step in range(3):
            give_gradients(whole.parameters(), step)
            alone.step()
        saved = dict(zip(("model", "optimizer"), get_state_dict(whole, alone), strict=True))
        place = folder / f"{key} from one of {mesh.size()}"
        if dist.get_rank() == 0:
            dcp.save(saved, checkpoint_id=place, no_dist=True)
        dist.barrier()
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(state, checkpoint_id=place)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        found = get_state_dict(model, optimizer)[1]["state"]
        for name, param in model.state_dict().items():
            assert_bits(param, saved["model"][name], (key, name))
        for name, entries in saved["optimizer"]["state"].items():
            assert found[name].keys() == entries.keys() and found[name]["step"] == entries["step"] == 3
            for entry in entries.keys() - {"step"}:
                assert_bits(found[name][entry], entries[entry], (key, name, entry))


def load(mesh: DeviceMesh, folder: Path) -> None:
    """Loads what two ranks saved, into this world."""
    for key in SAVED:
        model = sharded(mesh)
        load_and_compare(key, model, optimizer_to_save(key, model.parameters()), folder, mesh.size())


def load_and_compare(key: str, model: nn.Module, optimizer: Any, folder: Path, world: int) -> None:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder / key, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    expected = torch.load(folder / f"{key}.pt", weights_only=True)
    for name, value in model.state_dict().items():
        assert_bits(value, expected["model"][name], (key, name))
    found = get_state_dict(model, optimizer)[1]["state"]
    assert found.keys() == expected["state"].keys()
    for name, entries in expected["state"].items():
        assert found[name].keys() == entries.keys() and found[name]["step"] == entries["step"]
        coded, moved = entries["exp_avg"].dtype == torch.uint8, world != 2
        for entry, value in entries.items():
            if isinstance(value, Tensor) and not (coded and moved and "exp_avg" in entry):
                assert_bits(found[name][entry], value, (key, name, entry))
        if coded and moved:
            compare_codes({entry: full(v) for entry, v in found[name].items() if isinstance(v, Tensor)}, entries, world)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()


def compare_codes(found: dict[str, Tensor], saved: dict[str, Tensor], world: int) -> None:
    """Codes and scales are those saved, but in blocks where two pieces of the 2 ranks came together; there the values
    moved by at most half the widest gap of the codebook times the scale."""
    from anyfuse.formats.codebook import create_codebook

    codes = saved["exp_avg"]
    length = codes.shape[1]
    middle = borders(codes.shape[0], length, 2)[1]
    cut = middle // BLOCK * BLOCK
    position = torch.arange(codes.numel()).view(codes.shape)
    joined = (position >= cut) & (position < cut + BLOCK)
    assert middle % BLOCK and middle not in borders(codes.shape[0], length, world), "the case has to have such a block"
    low = (torch.arange(codes.shape[0]) * length) // BLOCK
    slot = position // BLOCK - low[:, None]
    for key, signed in (("exp_avg", True), ("exp_avg_sq", False)):
        qmap = create_codebook("dynamic", signed=signed)
        old_scales, new_scales = (s[f"absmax_{key}"].gather(1, slot) for s in (saved, found))
        assert torch.equal(found[key][~joined], saved[key][~joined])
        assert torch.equal(new_scales[~joined], old_scales[~joined])
        assert new_scales[joined].unique().numel() == 1 and new_scales[joined].max() == old_scales[joined].max()
        kept = joined & (old_scales == new_scales)
        assert kept.any() and not kept[joined].all() and torch.equal(found[key][kept], saved[key][kept])
        moved = qmap[found[key].long()] * new_scales - qmap[saved[key].long()] * old_scales
        bound = float((qmap[1:] - qmap[:-1]).max()) / 2 * float(new_scales[joined].max())
        assert 0 < float(moved[joined].abs().max()) <= bound * (1 + 2**-20)


# ---- two dimensions of ranks ----


def hybrid(mesh: DeviceMesh) -> DeviceMesh:
    """Half of the ranks hold what the other half holds."""
    return init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("replicate", "shard"))


def hsdp_steps(mesh: DeviceMesh, folder: Path) -> None:
    """FSDP2 over replicate × shard = one process, and the copies agree."""
    across = hybrid(mesh)
    for name in NAMES:
        whole, model = new_model(), sharded(across)
        expected, optimizer = InPieces(name, whole, across.size(1)), make(name, model.parameters())
        for step in range(2):
            torch.manual_seed(100 * step + dist.get_rank())
            model(torch.randn(8, 100)).square().mean().backward()
            for param, own in zip(whole.parameters(), model.parameters(), strict=True):
                param.grad = own.grad.full_tensor()
            expected.step()
            step_without_communication(optimizer)
            optimizer.zero_grad()
        for param, values in zip(model.parameters(), expected.values(), strict=True):
            assert param.device_mesh.ndim == 2
            assert_bits(full(param).view(-1), values, name)
            copies = [torch.empty_like(param.to_local()) for _ in range(2)]
            dist.all_gather(copies, param.to_local().detach(), group=across.get_group("replicate"))
            assert_bits(copies[0], copies[1], name)


def hsdp_loads(mesh: DeviceMesh, folder: Path) -> None:
    """What 2 ranks saved, into replicate × shard: the borders are the same ones, and so are all bits."""
    for key in SAVED:
        model = sharded(hybrid(mesh))
        load_and_compare(key, model, optimizer_to_save(key, model.parameters()), folder, mesh.size() // 2)


def fsdp2_with_tensor_parallelism(mesh: DeviceMesh, folder: Path) -> None:
    """FSDP2 over ranks that also split a layer's columns or rows: fp32 state is stepped, 8-bit state is refused."""
    across = init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("data", "tensor"))
    for name in NAMES:
        whole, model = new_model(), new_model()
        model[0] = nn.Sequential(model[0])
        model[2] = nn.Sequential(model[2])
        parallelize_module(model[0], across["tensor"], {"0": ColwiseParallel(output_layouts=Replicate())})
        parallelize_module(model[2], across["tensor"], {"0": RowwiseParallel(input_layouts=Replicate())})
        fully_shard(model, mesh=across["data"])
        expected, optimizer = make(name, whole.parameters()), make(name, model.parameters())
        refused = (name in CODED or "by row" in name) and any(
            placement.is_shard(1) or type(placement) is not Shard
            for param in model.parameters()
            for placement in param.placements
        )
        for step in range(2):
            torch.manual_seed(100 * step + across.get_local_rank("data"))
            model(torch.randn(8, 100)).square().mean().backward()
            for param, own in zip(whole.parameters(), model.parameters(), strict=True):
                param.grad = own.grad.full_tensor()
            if refused:
                try:
                    optimizer.step()
                except ValueError as error:
                    assert "accepted with" in str(error), error
                else:
                    raise AssertionError((name, "not refused"))
                break
            expected.step()
            step_without_communication(optimizer)
            optimizer.zero_grad()
        if not refused:
            for param, own in zip(whole.parameters(), model.parameters(), strict=True):
                assert own.device_mesh.ndim == 2
                assert_bits(own, param, name)
            saved = optimizer.state_dict()["state"]
            for i, state in expected.state_dict()["state"].items():
                for key in state.keys() - {"step"}:
                    assert_bits(saved[i][key], state[key], (name, i, key))


class Killed(FileSystemWriter):
    """A writer whose last rank dies when it has written its part, before the checkpoint is finished."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        written = super().write_data(plan, planner)
        if dist.get_rank() == dist.get_world_size() - 1:
            written.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        return written


def killed_while_saving(mesh: DeviceMesh, folder: Path) -> None:
    """The last check of its world: the surviving rank gets an error, and no checkpoint appears."""
    model = sharded(mesh)
    optimizer = make("EMAAdamW", model.parameters())
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    try:
        dcp.save(state, storage_writer=Killed(folder / "unfinished"))
    except BaseException:  # what it is depends on who notices first
        return
    raise AssertionError("the checkpoint was finished without the last rank")


Check = Callable[[DeviceMesh, Path], None]

COMMON: list[Check] = [
    counting_counts, fsdp2_steps, cut_blocks_of_the_reference, fsdp2_training, ddp_steps, ema_exports, refusals,
    lazy_rows, routed_ids, grad_scaler, rounding_by_chance,
    one_process_saves,
]  # fmt: skip
LISTS = {
    2: [*COMMON, save, killed_while_saving],
    3: [*COMMON, load],
    4: [hsdp_steps, hsdp_loads, fsdp2_with_tensor_parallelism],
}


def run(rank: int, world: int, checks: list[Check], folder: str) -> None:
    """One process. A failed check ends it: the others would wait for its collectives."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    mesh = init_device_mesh("cpu", (world,))
    results = {}
    for check in checks:
        try:
            check(mesh, Path(folder))
            results[check.__name__] = "passed"
        except BaseException:
            results[check.__name__] = traceback.format_exc()
        Path(folder, f"results{world}.{rank}.json").write_text(json.dumps(results))
        if results[check.__name__] != "passed":
            os._exit(1)
    os._exit(0)  # a group that has lost a rank cannot be taken down


def launch(world: int, checks: list[Check], folder: str) -> None:
    """Forks the ranks of one world, so that torch is imported once for all of them, and waits for them."""
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            run(rank, world, checks, folder)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def finish(command: list[str]) -> str:
    """Runs a command with processes of its own, on one thread each, and leaves none of them behind. What it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "ANYFUSE_BACKEND"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(anyfuse.__file__).parents[1])}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.PIPE, text=True)
    try:
        return process.communicate(timeout=240)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    for size, checks in LISTS.items():
        launch(size, checks, sys.argv[1])
