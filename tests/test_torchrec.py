"""TorchRec's tables stepped by LazyAdam (examples/torchrec_row_wise.py), where TorchRec is installed:

    pip install -c constraints.txt tensordict torchmetrics tqdm pyre-extensions
    pip install -c constraints.txt --no-deps torchrec fbgemm-gpu-cpu

(torchrec asks for fbgemm-gpu, which is CUDA's; the release for the CPU has the same modules.)
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import distributed_checks as checks
import pytest
import torchrec_checks

if importlib.util.find_spec("torchrec"):

    @pytest.fixture(scope="module")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("torchrec")
        checks.finish([sys.executable, "-W", "ignore", torchrec_checks.__file__, str(path)])
        return path

    @pytest.mark.parametrize(
        ("world", "name"), [(w, c.__name__) for w, some in torchrec_checks.LISTS.items() for c in some]
    )
    def test_every_rank_passes(folder: Path, world: int, name: str) -> None:
        for rank in range(world):
            results = json.loads((folder / f"results{world}.{rank}.json").read_text())
            assert results.get(name, "not reached") == "passed", results.get(name, "not reached")

    def test_example() -> None:
        example = Path(__file__).parents[1] / "examples" / "torchrec_row_wise.py"
        printed = checks.finish(
            [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2", str(example)]
        )
        losses = [float(line.split()[3]) for line in printed.splitlines() if "loss" in line]
        assert len(losses) == 4 and losses[-1] < 0.1 * losses[0], printed
