"""A recommender with embedding tables in one optimizer with its dense layers: `anyfuse.optim.LazyAdam`.

Users and items are rows of two tables of different width, of which a batch names a few; the layers above them have
dense gradients. One optimizer steps all of it, and what it costs depends on the rows that were named.

    python examples/optim_lazy_embedding.py
"""

from __future__ import annotations

import io

import torch
from torch import Tensor, nn

import anyfuse

USERS, ITEMS, BATCH, STEPS = 20_000, 5_000, 256, 60


class Recommender(nn.Module):
    """The rating of an item by a user who is known by an id and a bag of items seen before (0: no item)."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, 16, sparse=True)
        self.seen = nn.EmbeddingBag(ITEMS, 32, mode="mean", sparse=True, padding_idx=0)
        self.rating = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, users: Tensor, seen: Tensor) -> Tensor:
        return self.rating(torch.cat([self.user(users), self.seen(seen)], dim=1)).squeeze(1)


def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Popular items more often than others; a rating that depends on the user and the items."""
    generator = torch.Generator().manual_seed(step)
    users = (torch.rand(BATCH, generator=generator) ** 3 * 500).long()
    seen = (torch.rand(BATCH, 5, generator=generator) ** 3 * ITEMS).long()
    return users, seen, (users % 7 - 3.0) / 2 + (seen[:, 0] % 2)


def new_optimizer(model: Recommender) -> anyfuse.optim.LazyAdam:
    # A row that is first seen at step 50 takes a first step, not a fiftieth: bias_correction="row". The layers above
    # decay; rows of tables do not.
    tables = [*model.user.parameters(), *model.seen.parameters()]
    groups = [{"params": tables}, {"params": model.rating.parameters(), "weight_decay": 0.01}]
    return anyfuse.optim.LazyAdam(groups, lr=0.02, bias_correction="row")


def train(model: Recommender, optimizer: anyfuse.optim.LazyAdam, steps: range) -> list[float]:
    losses = []
    for step in steps:
        users, seen, ratings = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(users, seen), ratings)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> dict[str, float]:
    torch.manual_seed(0)
    model = Recommender()
    start = model.user.weight.detach().clone()
    optimizer = new_optimizer(model)
    losses = train(model, optimizer, range(STEPS // 2))

    # Save, and go on from what was saved: the same bits.
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    losses += train(model, optimizer, range(STEPS // 2, STEPS))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = Recommender()
    resumed.load_state_dict(saved["model"])
    again = new_optimizer(resumed)
    again.load_state_dict(saved["optimizer"])
    train(resumed, again, range(STEPS // 2, STEPS))

    pairs = zip(model.parameters(), resumed.parameters(), strict=True)
    moved = (model.user.weight.detach() != start).any(1).float().mean()
    result = {
        "first loss": losses[0],
        "loss": losses[-1],
        "rows of the table moved": float(moved),
        "resumed": all(torch.equal(a, b) for a, b in pairs),
    }
    for name, value in result.items():
        print(f"{name}: {value if isinstance(value, bool) else f'{value:.4f}'}")
    return result


if __name__ == "__main__":
    main()
