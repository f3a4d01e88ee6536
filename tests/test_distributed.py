"""The optimizers in 2, 3 and 4 processes (gloo, CPU): FSDP2, DDP, row-sharded tables and distributed checkpoints.

Each world is started once and goes through all of its checks (tests/distributed_checks.py); the tests here say how
each one ended. The worlds of 3 and 4 load what the world of 2 saved, and so does this process alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import distributed_checks as checks
import pytest
import torch
from optimizers import same
from torch.distributed.checkpoint import CheckpointException


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both worlds have left their results and checkpoints."""
    path = tmp_path_factory.mktemp("distributed")
    checks.finish([sys.executable, "-W", "ignore", checks.__file__, str(path)])
    return path


@pytest.mark.parametrize(("world", "name"), [(w, c.__name__) for w, all in checks.LISTS.items() for c in all])
def test_every_rank_passes(folder: Path, world: int, name: str) -> None:
    last = world - 1
    for rank in range(world):
        results = json.loads((folder / f"results{world}.{rank}.json").read_text())
        if name == "killed_while_saving" and rank == last:
            assert name not in results, "the last rank was to be killed"
        else:
            assert results.get(name, "not reached") == "passed", results.get(name, "not reached")


@pytest.mark.parametrize("key", checks.SAVED)
def test_one_process_loads_what_two_ranks_saved(folder: Path, key: str) -> None:
    model = checks.new_model()
    optimizer = checks.optimizer_to_save(key, model.parameters())
    optimizer.checkpoint_form = optimizer.checkpoint_form or "rows"
    checks.load_and_compare(key, model, optimizer, folder, 1)


def test_a_killed_rank_leaves_the_previous_checkpoint(folder: Path) -> None:
    assert (folder / "unfinished").exists() and not (folder / "unfinished" / ".metadata").exists()
    model = checks.new_model()
    optimizer: Any = checks.optimizer_to_save("EMAAdamW", model.parameters())
    with pytest.raises(CheckpointException, match="metadata"):
        checks.load_and_compare("unfinished", model, optimizer, folder, 1)
    checks.load_and_compare("EMAAdamW", model, optimizer, folder, 1)


def test_example_under_torchrun() -> None:
    example = Path(__file__).parents[1] / "examples" / "distributed_embedding.py"
    printed = checks.finish(
        [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2", str(example)]
    )
    losses = [float(line.split()[3]) for line in printed.splitlines() if "loss" in line]
    assert len(losses) == 5 and losses[-1] < 0.5 * losses[0], printed


def test_rows_of_plain_tensors_go_there_and_back() -> None:
    """The table by rows of one process gives the same codes and scales back, for odd and for aligned rows."""
    for shape in ((65, 100), (5000,), (20, 256), (16, 700), (3, 70, 40)):
        weight = torch.nn.Parameter(torch.randn(shape))
        optimizer, other = (checks.AdamW8bit([weight], min_8bit_size=0) for _ in range(2))
        weight.grad = torch.randn(shape)
        optimizer.step()
        optimizer.checkpoint_form = "rows"
        saved = optimizer.state_dict()
        assert saved["state"][0]["absmax_exp_avg"].dim() == 2
        other.load_state_dict(saved)
        assert same(dict(optimizer.state[weight]), dict(other.state[weight])), shape
    optimizer.checkpoint_form = "columns"
    with pytest.raises(ValueError, match="checkpoint_form"):
        optimizer.state_dict()
