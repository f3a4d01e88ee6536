"""A plain training loop with 8-bit AdamW: a schedule, clipped gradients, and a checkpoint to go on from.

python examples/optim_plain_loop.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import anyfuse

STEPS = 60


def make() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = anyfuse.optim.AdamW8bit(model.parameters(), lr=3e-3)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: object, steps: range) -> float:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(32, 64, generator=generator)
        loss = nn.functional.mse_loss(model(x), x[:, :8].sum(dim=1, keepdim=True))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return float(loss.detach())


def main() -> None:
    whole = make()
    train(*whole, range(STEPS // 2))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "checkpoint.pt"
        torch.save([part.state_dict() for part in whole], file)
        loss = train(*whole, range(STEPS // 2, STEPS))

        resumed = make()
        for part, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)
    train(*resumed, range(STEPS // 2, STEPS))
    same = all(map(torch.equal, whole[0].parameters(), resumed[0].parameters()))
    state_bytes = sum(
        value.nbytes for state in whole[1].state.values() for value in state.values() if isinstance(value, torch.Tensor)
    )
    count = sum(param.numel() for param in whole[0].parameters())
    print(f"loss after {STEPS} steps: {loss:.3f}")
    print(f"optimizer state: {state_bytes / count:.2f} bytes a parameter (float32 moments: 8)")
    print(f"the resumed run ends with the same weights, bit for bit: {same}")


if __name__ == "__main__":
    main()
