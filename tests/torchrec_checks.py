"""What the processes of test_torchrec.py do: TorchRec's row-wise sharded tables, by the example's way, against one
process with `nn.EmbeddingBag`.

Gradients are small whole numbers, over a number of ranks that divides them, so that their sums are exact in any order.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import distributed_checks as checks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh

from anyfuse.optim import LazyAdam

FEATURES = {"user": ["user"], "item": ["item", "seen"]}
SHAPES = {"user": (11, 8), "item": (23, 4)}
OPTIONS: dict[str, dict[str, Any]] = {
    "by row": {"bias_correction": "row"},
    "catching up": {"decay_mode": "catch_up", "weight_decay": 0.1},
}


def tables() -> dict[str, Tensor]:
    torch.manual_seed(7)
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


def batch(step: int, rank: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Ids and the sizes of 5 bags for each feature; some bags are empty, and the ids of some ranks' rows are rare."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    found = {}
    for table, names in FEATURES.items():
        for name in names:
            lengths = torch.randint(0, 4, (5,), generator=generator)
            below = SHAPES[table][0] // (3 if step == 1 else 1)
            found[name] = torch.randint(0, below, (int(lengths.sum()),), generator=generator), lengths
    return found


def factors(step: int, rank: int, world: int) -> dict[str, Tensor]:
    """The gradients of the sums. TorchRec divides them by the number of ranks, as DDP does."""
    generator = torch.Generator().manual_seed(1000 + 100 * step + rank)
    return {
        name: torch.randint(-4, 5, (5, SHAPES[table][1]), generator=generator).float() * world
        for table, names in FEATURES.items()
        for name in names
    }


def sharded(mesh: DeviceMesh) -> Any:
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=rows, feature_names=FEATURES[name])
        for name, (rows, dim) in SHAPES.items()
    ]
    collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
    found = checks.example_module("torchrec_row_wise").RowWise(collection, mesh)
    for name, values in tables().items():
        part = found.tables[name].to_local()
        first = dist.get_rank() * -(-len(values) // mesh.size())
        with torch.no_grad():
            part.copy_(values[first : first + len(part)])
    return found


def jagged(given: dict[str, tuple[Tensor, Tensor]]) -> Any:
    from torchrec import KeyedJaggedTensor

    ids, lengths = (torch.cat([pair[i] for pair in given.values()]) for i in (0, 1))
    return KeyedJaggedTensor.from_lengths_sync(keys=list(given), values=ids, lengths=lengths)


def step_whole(bags: dict[str, nn.EmbeddingBag], optimizer: LazyAdam, step: int, world: int) -> list[dict[str, Tensor]]:
    """One process steps by the batches of all ranks. The sums of each."""
    outputs = []
    loss = torch.zeros(())
    for rank in range(world):
        given, by = batch(step, rank), factors(step, rank, 1)
        found = {}
        for table, names in FEATURES.items():
            for name in names:
                ids, lengths = given[name]
                found[name] = bags[table](ids, lengths.cumsum(0) - lengths)
                loss = loss + (found[name] * by[name]).sum()
        outputs.append(found)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return outputs


def steps_and_checkpoint(mesh: DeviceMesh, folder: Path) -> None:
    """Sharded = whole, bit for bit, in weights and state; no communication in `step`; TorchRec sees the new weights."""
    for key, options in OPTIONS.items():
        bags = {
            name: nn.EmbeddingBag.from_pretrained(values, freeze=False, mode="sum", sparse=True)
            for name, values in tables().items()
        }
        expected = LazyAdam([bag.weight for bag in bags.values()], lr=0.1, **options)
        model = sharded(mesh)
        optimizer = LazyAdam(model.tables.values(), lr=0.1, **options)
        rank = dist.get_rank()
        for step in range(4):
            outputs = step_whole(bags, expected, step, mesh.size())[rank]
            found = model.model(jagged(batch(step, rank))).wait().to_dict()
            by = factors(step, rank, mesh.size())
            for name, output in outputs.items():  # sums in another order: a few roundings of numbers below 16
                torch.testing.assert_close(found[name], output, rtol=0, atol=1e-5)
            sum((found[name] * by[name]).sum() for name in found).backward()
            checks.step_without_communication(optimizer, rows=model.rows())
            assert not model.rows(), "gradients are forgotten"
        mine = dict(zip(SHAPES, optimizer.state_dict()["state"].values(), strict=True))
        theirs = dict(zip(SHAPES, expected.state_dict()["state"].values(), strict=True))
        saved = model.model.state_dict()
        for name, bag in bags.items():
            checks.assert_bits(model.tables[name], bag.weight, (key, name))
            (shard,) = saved[f"embedding_bags.{name}.weight"].local_shards()
            assert torch.equal(shard.tensor, model.tables[name].to_local()), "TorchRec's own state has other weights"
            assert mine[name].keys() == theirs[name].keys() and mine[name]["step"] == theirs[name]["step"]
            for entry, value in theirs[name].items():
                if isinstance(value, Tensor):
                    checks.assert_bits(mine[name][entry], value, (key, name, entry))
        if mesh.size() == 2:
            save(key, model, optimizer, bags, theirs, folder)


def save(key: str, model: Any, optimizer: LazyAdam, bags: Any, states: Any, folder: Path) -> None:
    names = ("tables", "optimizer")
    dcp.save(dict(zip(names, get_state_dict(model.tables, optimizer), strict=True)), checkpoint_id=folder / key)
    if dist.get_rank() == 0:
        weights = {name: bag.weight.detach() for name, bag in bags.items()}
        torch.save({"weights": weights, "states": states}, folder / f"{key}.pt")


def load(mesh: DeviceMesh, folder: Path) -> None:
    """Another number of ranks loads what two have saved; each row's count comes with the row."""
    for key, options in OPTIONS.items():
        model = sharded(mesh)
        optimizer = LazyAdam(model.tables.values(), lr=0.1, **options)
        state = dict(zip(("tables", "optimizer"), get_state_dict(model.tables, optimizer), strict=True))
        dcp.load(state, checkpoint_id=folder / key)
        set_state_dict(model.tables, optimizer, model_state_dict=state["tables"], optim_state_dict=state["optimizer"])
        expected = torch.load(folder / f"{key}.pt", weights_only=True)
        found = dict(zip(SHAPES, optimizer.state_dict()["state"].values(), strict=True))
        for name in SHAPES:
            checks.assert_bits(model.tables[name], expected["weights"][name], (key, name))
            assert found[name]["step"] == expected["states"][name]["step"] == 4
            for entry in ("exp_avg", "exp_avg_sq", "row_step"):
                checks.assert_bits(found[name][entry], expected["states"][name][entry], (key, name, entry))


LISTS: dict[int, list[checks.Check]] = {2: [steps_and_checkpoint], 3: [steps_and_checkpoint, load]}

if __name__ == "__main__":
    import torchrec  # noqa: F401

    for size, some in LISTS.items():
        checks.launch(size, some, sys.argv[1])
