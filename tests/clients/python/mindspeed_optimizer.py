"""A training loop with MindSpeed's optimizer: EMA decay set afterwards, a group without parameters, a checkpoint."""

import hashlib
import io

import torch
import torch_npu
from mindspeed.core.optimizer.fused_ema_adamw.fused_ema_adamw import FusedEmaAdamW, fused_ema_adamw
from mindspeed.ops.npu_apply_fused_ema_adamw import npu_apply_fused_ema_adamw

torch_npu.npu.set_device(0)
torch.manual_seed(1234)
torch_npu.npu.manual_seed_all(1234)

net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(torch.float32).npu()
data = torch.randn(64, 8).npu()


def optimizer_of(net):
    optimizer = FusedEmaAdamW([{"params": []}, {"params": list(net.parameters())}], lr=1e-2)
    optimizer.ema_decay = 0.5
    return optimizer


optimizer = optimizer_of(net)
for iteration in range(6):
    if iteration == 3:
        file = io.BytesIO()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, map_location="npu:0")
        updates = optimizer.num_updates
        optimizer = optimizer_of(net)
        optimizer.load_state_dict(saved["optimizer"])
        optimizer.num_updates = updates
        net.load_state_dict(saved["net"])
    optimizer.zero_grad()
    net(data).square().mean().backward()
    optimizer.step()
torch.npu.synchronize()

optimizer.store(optimizer.param_groups[1:])
optimizer.copy_to()
averaged = [param.detach().clone() for param in net.parameters()]
optimizer.restore(optimizer.param_groups[1:])
trained = [param.detach().clone() for param in net.parameters()]
assert not torch.equal(averaged[0], trained[0])

lists = [[torch.full((4,), value).npu()] for value in (0.5, 1.0, 0.0, 0.0, 1.0)]
numbers = (0.1, 0.9, 0.9, 0.999, 1e-8, 1, True, 0.01)
fused_ema_adamw(*lists, torch.tensor([1]).npu(), *numbers)
alone = [torch.full((4,), value).npu() for value in (0.5, 1.0, 0.0, 0.0, 1.0)]
npu_apply_fused_ema_adamw(*alone, torch.tensor([1]).npu(), *numbers)
assert all(torch.equal(one[0], other) for one, other in zip(lists, alone, strict=True))

digest = hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in averaged + trained)).hexdigest()
print("optimizer of", FusedEmaAdamW.__module__.split(".")[0])
print("weights", digest)
