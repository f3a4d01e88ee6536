"""A training loop with MindSpeed's FusedEmaAdamW: a small regression, validated with the averaged weights.

On an NPU: python mindspeed_training.py. Without one: anyfuse run mindspeed_training.py
"""

import torch
import torch_npu
from mindspeed.core.optimizer.fused_ema_adamw.fused_ema_adamw import FusedEmaAdamW

torch.manual_seed(0)
device = torch.device("npu:0")
torch_npu.npu.set_device(device)

inputs = torch.randn(512, 16)
targets = torch.tanh(inputs @ torch.randn(16, 1) / 4)
train_x, train_y = inputs[:448].npu(), targets[:448].npu()
valid_x, valid_y = inputs[448:].to(device), targets[448:].to(device)

model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(device)
optimizer = FusedEmaAdamW(model.parameters(), lr=3e-3, weight_decay=1e-2, ema_decay=0.99)
loss_function = torch.nn.MSELoss()

losses = []
for _ in range(60):
    for batch in torch.randperm(448, device=device).split(64):
        optimizer.zero_grad()
        loss = loss_function(model(train_x[batch]), train_y[batch])
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
torch.npu.synchronize()

optimizer.store(optimizer.param_groups)
optimizer.copy_to()
with torch.no_grad():
    averaged = loss_function(model(valid_x), valid_y).item()
optimizer.restore(optimizer.param_groups)
with torch.no_grad():
    current = loss_function(model(valid_x), valid_y).item()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; validation {current:.3f}, with averaged weights {averaged:.3f}")
