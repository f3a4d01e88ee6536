"""The examples of the optimizers run. (That of the Trainer where transformers is installed.)"""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TRAINER = ["optim_hf_trainer.py"] if importlib.util.find_spec("transformers") else []


@pytest.mark.parametrize("name", ["optim_plain_loop.py", *TRAINER])
def test_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    if name == "optim_plain_loop.py":
        assert "bit for bit: True" in printed
    else:
        assert "with the EMA's weights" in printed
