import numpy as np
import torch
import torch_npu
from torch_npu.testing.common_utils import SupportedDevices, create_common_tensor
from torch_npu.testing.testcase import TestCase, run_tests


class TestQuantMatmulDequant(TestCase):
    def golden(self, codes, weight, weight_scale, x_scale):
        return (torch.matmul(codes.float(), weight.float().t()) * weight_scale * x_scale).half()

    def inputs(self, M=64, K=256, N=512):
        x = torch.randn(M, K).half().npu()
        weight = torch.randint(-127, 128, (N, K)).char().npu()
        return x, weight, torch.rand(N).float().npu() / 100

    @SupportedDevices(["Ascend310P"])
    def test_dynamic_pertoken(self):
        torch_npu.npu.set_compile_mode(jit_compile=False)
        x, weight, weight_scale = self.inputs()
        x_scale = (torch.max(torch.abs(x), 1)[0].float() / 127.0).npu()
        codes = torch_npu.npu_quantize(x.transpose(0, 1).float(), x_scale, None, torch.qint8, axis=-1)
        golden = self.golden(codes.transpose(0, 1), weight, weight_scale, x_scale.reshape(-1, 1))
        for given in (weight, torch_npu.npu_format_cast(weight, 29)):
            y = torch_npu.npu_quant_matmul_dequant(x, given, weight_scale, quant_mode="pertoken")
            self.assertRtolEqual(golden, y)

    @SupportedDevices(["Ascend310P"])
    def test_static_pertensor_with_smooth_scale(self):
        torch_npu.npu.config.allow_internal_format = True
        x, weight, weight_scale = self.inputs()
        smooth, x_scale = torch.randn(x.size(1)).half().npu(), (-torch.rand(1).float() / 50).npu()
        codes = torch_npu.npu_quantize(
            x.float() * smooth.float(), x_scale.repeat(x.size(1)), None, torch.qint8, axis=-1
        )
        y = torch_npu.npu_quant_matmul_dequant(
            x, weight, weight_scale, x_scale=x_scale, smooth_scale=smooth, quant_mode="pertensor"
        )
        self.assertRtolEqual(self.golden(codes, weight, weight_scale, x_scale), y)

    @SupportedDevices(["Ascend310P"])
    def test_grouped(self):
        x, weight, weight_scale = self.inputs(M=12, K=32, N=16)
        weights = torch_npu.npu_format_cast(torch.stack([weight, -weight]), 29)
        self.assertEqual(torch_npu.get_npu_format(weights), 29)
        ends = torch.tensor([5, 12]).npu()
        y = torch_npu.npu_quant_grouped_matmul_dequant(x, weights, torch.stack([weight_scale] * 2), ends)
        one = torch_npu.npu_quant_matmul_dequant(x[:5], weight, weight_scale)
        other = torch_npu.npu_quant_matmul_dequant(x[5:], -weight, weight_scale)
        self.assertEqual(y, torch.cat([one, other]), 0.0)

    @SupportedDevices(["Ascend910B"])
    def test_for_another_product(self):
        cpu_input, npu_input = create_common_tensor([np.float16, 2, (4, 16)], -1, 1)
        self.assertRtolEqual(cpu_input, npu_input.cpu())

    def test_errors_of_runtime(self):
        x, weight, weight_scale = self.inputs(M=2, K=32, N=16)
        with self.assertRaisesRegex(RuntimeError, "x_offset is given"):
            torch_npu.npu_quant_matmul_dequant(x, weight, weight_scale, x_offset=weight_scale)


if __name__ == "__main__":
    run_tests()
