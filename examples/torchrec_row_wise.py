"""TorchRec's EmbeddingBagCollection, sharded by rows, with its tables stepped by LazyAdam.

    torchrun --nproc-per-node 2 examples/torchrec_row_wise.py

TorchRec routes ids to the ranks that hold their rows, and the sums back. Its own kernels either step the tables inside
of the backward pass or make a gradient of a whole table; `SparseBags` takes their place and leaves gradients of the
rows that were named, so that a step's work does not grow with the table. Weights stay in TorchRec's memory, and its
state_dict and its data paths are as before.

Needs torchrec and fbgemm-gpu-cpu (or fbgemm-gpu), of versions that go with the torch that is installed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import embedding_bag
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.batched_embedding_kernel import BatchedDenseEmbeddingBag
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv

from anyfuse.optim import LazyAdam


class SparseBags:
    """The forward pass of a dense kernel of TorchRec: the sums of this rank's rows, with sparse gradients."""

    def __init__(self, kernel: BatchedDenseEmbeddingBag) -> None:
        if kernel.config.is_weighted:
            raise ValueError("a table has weighted ids; accepted: plain ones")
        self.tables = kernel.config.embedding_tables
        self.parts = [nn.Parameter(weight.detach()) for weight in kernel.split_embedding_weights()]

    def __call__(self, features: KeyedJaggedTensor) -> Tensor:
        """The sums (batch, all columns), of the table's features side by side; ids count from the rank's first row."""
        jagged = features.to_dict()
        bags = [
            embedding_bag(
                jagged[name].values(), part, jagged[name].offsets(), mode="sum", include_last_offset=True, sparse=True
            )
            for table, part in zip(self.tables, self.parts, strict=True)
            for name in table.feature_names
        ]
        return torch.cat(bags, dim=1)


class RowWise:
    """A collection sharded by rows over all ranks, and its tables as DTensors in the same memory.

    Attributes:
        model: what to call with a KeyedJaggedTensor.
        tables: the parameters for LazyAdam and for torch.distributed.checkpoint, by the names of the tables.
    """

    def __init__(self, collection: EmbeddingBagCollection, mesh: DeviceMesh) -> None:
        sharder, world = EmbeddingBagCollectionSharder(), mesh.size()
        ways = {config.name: row_wise(compute_kernel="dense") for config in collection.embedding_bag_configs()}
        plan = construct_module_sharding_plan(
            collection, ways, sharder=sharder, local_size=world, world_size=world, device_type="cpu"
        )
        environment = ShardingEnv.from_process_group(mesh.get_group())
        self.model: ShardedEmbeddingBagCollection = sharder.shard(collection, plan, environment, torch.device("cpu"))
        self.tables = nn.ParameterDict()
        self._parts: dict[str, nn.Parameter] = {}
        for lookup in self.model._lookups:
            for kernel in lookup._emb_modules:
                kernel.forward = bags = SparseBags(kernel)
                for table, part in zip(bags.tables, bags.parts, strict=True):
                    shape = torch.Size([table.num_embeddings, table.embedding_dim])
                    whole = DTensor.from_local(
                        part.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=(shape[1], 1)
                    )
                    self.tables[table.name], self._parts[table.name] = nn.Parameter(whole), part

    def rows(self) -> dict[Tensor, tuple[Tensor, Tensor]]:
        """What the backward pass left, for `LazyAdam.step(rows=...)`; it is forgotten here."""
        found = {}
        for name, part in self._parts.items():
            if part.grad is not None:
                found[self.tables[name]] = part.grad._indices()[0], part.grad._values()
                part.grad = None
        return found


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    tables = [
        EmbeddingBagConfig(name="user", embedding_dim=16, num_embeddings=1001, feature_names=["user"]),
        EmbeddingBagConfig(name="item", embedding_dim=16, num_embeddings=503, feature_names=["item"]),
    ]
    sharded = RowWise(EmbeddingBagCollection(tables=tables, device=torch.device("meta")), mesh)
    optimizer = LazyAdam(sharded.tables.values(), lr=0.05, bias_correction="row")
    torch.manual_seed(1 + dist.get_rank())
    for step in range(20):
        user, item = torch.randint(0, 40, (256,)), torch.randint(0, 30, (256,))
        liked = ((user + item) % 3 == 0).float()
        batch: Any = KeyedJaggedTensor.from_lengths_sync(
            keys=["user", "item"], values=torch.cat([user, item]), lengths=torch.ones(512, dtype=torch.int64)
        )
        found = sharded.model(batch).wait().to_dict()
        score = (found["user"] * found["item"]).sum(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, liked)
        loss.backward()
        optimizer.step(rows=sharded.rows())
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f} on rank 0")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
