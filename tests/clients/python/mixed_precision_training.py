"""What stands around the call: device properties, options, memory figures, random states, streams, events, amp."""

import torch
import torch_npu
from mindspeed.optimizer.ema_adamw import FusedEmaAdamW
from torch_npu.npu.amp import GradScaler, autocast

option = {"ACL_OP_COMPILER_CACHE_MODE": "enable", "ACL_OP_COMPILER_CACHE_DIR": "./cache"}
torch_npu.npu.set_option(option)
torch.npu.set_compile_mode(jit_compile=False)
torch.npu.config.allow_internal_format = False
torch.npu.matmul.allow_hf32 = False
device = torch.device(f"npu:{torch.npu.current_device()}")
print(torch.npu.get_device_name(0), torch.npu.get_device_properties(device).total_memory // 2**30, "GiB")

torch.npu.manual_seed_all(1)
state = torch.npu.get_rng_state()
model = torch.nn.Linear(16, 1).to(device)
optimizer = FusedEmaAdamW(model.parameters(), lr=3e-2)
scaler = GradScaler(init_scale=128.0)
stream, begin, end = torch.npu.Stream(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
x = torch.randn(32, 16, device=device)
losses = []
torch.npu.reset_peak_memory_stats()
with torch.npu.stream(stream):
    begin.record()
    for _ in range(20):
        optimizer.zero_grad()
        with autocast(dtype=torch.bfloat16):
            loss = (model(x) - 1.0).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    end.record()
stream.synchronize()
torch.npu.set_rng_state(state)
assert losses[-1] < 0.8 * losses[0], losses
assert begin.elapsed_time(end) > 0.0
peak, now = torch.npu.max_memory_allocated(device) / 2**20, torch.npu.memory_allocated() / 2**20
print(f"peak {peak:.1f} MiB, now {now:.1f} MiB, reserved {torch.npu.memory_reserved() / 2**20:.1f} MiB")
torch.npu.empty_cache()
capture = torch.npu.NPUGraph if hasattr(torch.npu, "NPUGraph") else None
assert capture is None
print("done")
