"""mxRec's optimizer by its class, with a learning rate of NumPy."""

import numpy as np
import torch
from mx_rec.optimizers.lazy_adam import CustomizedLazyAdam, create_hash_optimizer

tables = [torch.ones(10, 8), torch.ones(10, 8)]
optimizers = [
    CustomizedLazyAdam(np.float32(0.01), 0.9, 0.999, 1e-8, False, "LazyAdam", use_fusion_optim=True),
    create_hash_optimizer(learning_rate=np.float32(0.01), use_fusion_optim=True),
]
for table, optimizer in zip(tables, optimizers, strict=True):
    gradient = torch.sparse_coo_tensor(torch.tensor([[3, 3, 7]]), torch.full((3, 8), 15.0), (10, 8))
    optimizer.apply_gradients([(gradient, table)])
assert torch.equal(*tables) and not torch.equal(tables[0][3], torch.ones(8))
# The golden of the operator's document: 1 - beta in fp32.
one = np.float32(1)
golden = np.float32(15) * (one - np.float32(0.9)), np.float32(225) * (one - np.float32(0.999))
slots = [optimizers[0].get_slot(tables[0], name)[7, 0].item() for name in ("m", "v")]
assert slots == [float(value) for value in golden], (slots, golden)
print("done")
