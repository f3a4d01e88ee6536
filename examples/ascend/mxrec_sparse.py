"""A sparse training loop with mxRec's lazy Adam: user and item embeddings learn who rated what.

Without an NPU: anyfuse run mxrec_sparse.py
"""

import torch
from mx_rec.optimizers.lazy_adam import create_hash_optimizer

torch.manual_seed(0)
USERS, ITEMS, DIM = 200, 100, 8

users = torch.nn.Embedding(USERS, DIM, sparse=True)
items = torch.nn.Embedding(ITEMS, DIM, sparse=True)
taste, kind = torch.randn(USERS, DIM), torch.randn(ITEMS, DIM)
sparse_optimizer = create_hash_optimizer(learning_rate=0.05, use_fusion_optim=True)

losses = []
for _ in range(300):
    user, item = torch.randint(USERS, (256,)), torch.randint(ITEMS, (256,))
    rating = ((taste[user] * kind[item]).sum(1) > 0).float()
    score = (users(user) * items(item)).sum(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(score, rating)
    loss.backward()
    tables = (users.weight, items.weight)
    sparse_optimizer.apply_gradients([(table.grad, table) for table in tables])
    for table in tables:
        table.grad = None
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
