"""What a wheel must do where nothing can be compiled: every operator, the optimizers, the command. Prints one line."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import torch

import anyfuse

COMMAND = [sys.executable, "-m", "anyfuse"]


def main() -> None:
    verified = subprocess.run([*COMMAND, "verify", "--samples", "40", "--json"], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    rows = json.loads(verified.stdout)["rows"]
    assert {row["operator"] for row in rows} == set(json.loads(run("info", "--json"))["operators"])

    for make in (anyfuse.optim.AdamW8bit, anyfuse.optim.EMAAdamW, anyfuse.optim.LazyAdam):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 80)
        optimizer = make(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.ones(8, 64)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0], (make, losses)
    checks = sum(row["samples"] for row in rows)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}: {checks} calls verified, 3 optimizers stepped"
    )


def run(*arguments: str) -> str:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
