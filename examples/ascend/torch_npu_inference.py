"""A block of W8A8 inference with torch_npu's fused operators: norm and quantization, then projections.

On an NPU: python torch_npu_inference.py. Without one: anyfuse run torch_npu_inference.py
"""

import torch
import torch_npu

torch.npu.manual_seed(0)
TOKENS, HIDDEN, INNER = 24, 128, 256


def quantize(weight):
    """Symmetric int8 with a scale for each output column."""
    scale = weight.abs().amax(dim=1) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


residual = torch.randn(TOKENS, HIDDEN, dtype=torch.float16, device="npu")
attention = torch.randn(TOKENS, HIDDEN, dtype=torch.float16, device="npu")
gamma = torch.ones(HIDDEN, dtype=torch.float16, device="npu:0")
up, down = torch.randn(INNER, HIDDEN).npu() / HIDDEN**0.5, torch.randn(HIDDEN, INNER).npu() / INNER**0.5
up_codes, up_scale = quantize(up)
down_codes, down_scale = quantize(down)

codes, _, hidden, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(residual, attention, gamma, epsilon=1e-6)
normed = (codes * scale[:, None]).half()
inner = torch_npu.npu_quant_matmul_dequant(normed, up_codes, up_scale, x_scale=scale, quant_mode="pertoken")
inner = torch.nn.functional.silu(inner)
output = hidden + torch_npu.npu_quant_matmul_dequant(inner, down_codes, down_scale)
torch.npu.synchronize()

# The same block in fp32.
x = residual.float() + attention.float()
exact = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
exact = x + torch.nn.functional.silu(exact @ up.t()) @ down.t()
error = ((output.float() - exact).norm() / exact.norm()).item()
print(f"relative error of the int8 block: {error:.4f}")
