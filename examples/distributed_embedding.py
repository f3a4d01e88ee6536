"""An embedding table sharded by rows over the ranks, with ids and rows routed by all-to-all.

    torchrun --nproc-per-node 2 examples/distributed_embedding.py

Each rank reads its own batch of ids. They go to the ranks that hold their rows, the rows come back, and after the
backward pass the gradients take the same way to their rows, which LazyAdam steps where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from anyfuse.optim import LazyAdam, rows_held


@dataclass(frozen=True)
class Route:
    """Where the ids of one batch go: how many to and from each rank, in which order, and what arrived here."""

    order: Tensor
    sent: list[int]
    received: list[int]
    ids: Tensor

    @classmethod
    def of(cls, ids: Tensor, table: DTensor) -> Route:
        """Exchanges ids (n,), rows of the whole table, so that each rank has those of its own rows, counted from 0."""
        world = dist.get_world_size()
        rows_a_rank = -(-table.shape[0] // world)  # Shard(0) gives every rank but the last ones as many
        owner = ids // rows_a_rank
        order = owner.argsort(stable=True)
        sent = torch.bincount(owner, minlength=world)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        splits = received.tolist(), sent.tolist()
        mine = torch.empty(sum(splits[0]), dtype=ids.dtype)
        dist.all_to_all_single(mine, ids[order].contiguous(), *splits)
        return cls(order, sent.tolist(), received.tolist(), mine - rows_held(table).first)

    def rows(self, table: DTensor) -> Tensor:
        """The rows (n, dim) of the batch's ids, in their order."""
        found = table.to_local().detach()[self.ids]
        back = found.new_empty(len(self.order), found.shape[1])
        dist.all_to_all_single(back, found, self.sent, self.received)
        return torch.empty_like(back).index_copy_(0, self.order, back)

    def gradients(self, of_rows: Tensor) -> Tensor:
        """Gradients (n, dim) of those rows, on the ranks that hold them: one for each of `ids`."""
        arrived = of_rows.new_empty(len(self.ids), of_rows.shape[1])
        dist.all_to_all_single(arrived, of_rows[self.order].contiguous(), self.received, self.sent)
        return arrived


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    table = nn.Parameter(distribute_tensor(torch.randn(1001, 16), mesh, [Shard(0)]))
    optimizer = LazyAdam([table], lr=0.05, bias_correction="row")
    torch.manual_seed(1 + dist.get_rank())
    for step in range(100):
        ids = torch.randint(0, 50, (256,))
        route = Route.of(ids, table)
        rows = route.rows(table).requires_grad_()
        loss = (rows - (ids % 7)[:, None]).square().mean()
        loss.backward()
        optimizer.step(rows={table: (route.ids, route.gradients(rows.grad))})
        if dist.get_rank() == 0 and step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.4f} on rank 0")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
