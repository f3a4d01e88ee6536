"""A layer on torch.ops.npu, compiled as one graph."""

import torch
import torch_npu

torch.npu.set_device(0)
torch.npu.set_compile_mode(jit_compile=False)
torch.manual_seed(20260907)
hidden = 64
gamma = torch.nn.Parameter(torch.ones(hidden, dtype=torch.bfloat16, device="npu"))
weight = torch_npu.npu_format_cast(torch.randint(-127, 128, (32, hidden), dtype=torch.int8).npu(), 29)
scale = torch.rand(32).npu() / 100


def forward(x1, x2, gamma, beta):
    out = torch.ops.npu.npu_add_rms_norm_dynamic_quant(
        x1=x1, x2=x2, gamma=gamma, beta=beta, epsilon=1e-6, output_mask=[True, False]
    )
    projected = torch.ops.npu.npu_quant_matmul_dequant(out[2], weight, scale, quant_mode="pertoken")
    return out[0], out[3], out[2], torch.ops.npu.npu_swiglu(projected)


compiled = torch.compile(forward, fullgraph=True, dynamic=True)
with torch.inference_mode():
    for rows in (48, 7):
        x1 = torch.randn(rows, hidden, dtype=torch.bfloat16, device="npu")
        x2, beta = torch.randn_like(x1), torch.zeros_like(gamma)
        for one, other in zip(compiled(x1, x2, gamma, beta), forward(x1, x2, gamma, beta), strict=True):
            assert one.shape[0] == rows and torch.equal(one, other)
torch.npu.synchronize()
print("done")
