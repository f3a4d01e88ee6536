"""What only a real MindSpeed has: its other operators and the wrapper that sets the decay."""

import torch
import torch_npu  # noqa: F401
from mindspeed.core.optimizer.fused_ema_adamw.adaptor import optimizer_wrapper
from mindspeed.core.optimizer.fused_ema_adamw.fused_ema_adamw import FusedEmaAdamW
from mindspeed.ops.npu_swiglu import npu_swiglu

param = torch.nn.Parameter(torch.zeros(4).npu())
optimizer = optimizer_wrapper(FusedEmaAdamW, 0.0)([param], lr=1.0, use_num_updates=False)
param.grad = torch.ones(4).npu()
optimizer.step()
assert torch.equal(optimizer.state[param]["ema_params"], param.detach()), "with a decay of 0 the average is the weight"
assert npu_swiglu(torch.ones(1, 4).npu()).shape == (1, 2)
print("done")
