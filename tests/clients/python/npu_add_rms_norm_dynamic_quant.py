import unittest

import numpy as np
import torch
import torch_npu
from torch_npu.testing.common_utils import SupportedDevices, create_common_tensor, get_npu_device
from torch_npu.testing.decorator import Dtypes, Formats, instantiate_tests
from torch_npu.testing.testcase import TestCase, run_tests


@instantiate_tests
class TestAddRmsNormDynamicQuant(TestCase):
    def supported_op_exec(self, x1, x2, gamma, smooth=None, beta=None, epsilon=1e-6):
        x = x1.astype(np.float32) + x2.astype(np.float32)
        y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * gamma.astype(np.float32)
        y = y if beta is None else y + beta.astype(np.float32)
        y = y if smooth is None else y * smooth.astype(np.float32)
        scale = np.max(np.abs(y), axis=-1, keepdims=True) / 127.0
        return np.round(y / scale).astype(np.int8), x.astype(x1.dtype), scale.squeeze(-1)

    def check(self, results, golden):
        codes = np.abs(results[0].cpu().numpy().astype(np.int32) - golden[0].astype(np.int32))
        self.assertTrue(codes.max() <= 1)
        self.assertRtolEqual(golden[1], results[2].cpu().numpy())
        self.assertRtolEqual(golden[2], results[3].cpu().numpy())

    def inputs(self, shape=(16, 256)):
        pairs = [create_common_tensor([np.float16, 2, size], -2, 2) for size in (shape, shape, shape[-1:], shape[-1:])]
        return [cpu.numpy() for cpu, _ in pairs], [npu for _, npu in pairs]

    @SupportedDevices(["Ascend910B", "Ascend910_93"])
    def test_one_output(self, device=None):
        device = get_npu_device() if device is None else device
        cpu, npu = self.inputs()
        self.assertTrue(all(x.is_npu for x in npu))
        results = torch_npu.npu_add_rms_norm_dynamic_quant(*npu[:3], epsilon=1e-6)
        self.check(results, self.supported_op_exec(*cpu[:3]))
        self.assertEqual(results[1].numel(), 1)

    @SupportedDevices(["Ascend910B", "Ascend910_93"])
    def test_two_outputs_and_beta(self):
        cpu, npu = self.inputs((4, 3, 64))
        results = torch_npu.npu_add_rms_norm_dynamic_quant(
            *npu[:3], smooth_scale1=npu[3], smooth_scale2=npu[3], beta=npu[3], output_mask=[1, 1]
        )
        self.check(results, self.supported_op_exec(*cpu[:3], smooth=cpu[3], beta=cpu[3]))
        self.assertEqual(results[0], results[1])

    @Dtypes(torch.float16, torch.bfloat16)
    @Formats(2, -1)
    def test_dtypes(self, dtype, npu_format, device=None):
        x = torch.randn(4, 32, dtype=dtype, device=device)
        x = x if npu_format == -1 else torch_npu.npu_format_cast(x, npu_format)
        y, _, x_out, scale, _ = torch_npu.npu_add_rms_norm_dynamic_quant(x, x, torch.ones(32, dtype=dtype).npu())
        norm, _, total = torch_npu.npu_add_rms_norm(x, x, torch.ones(32, dtype=dtype).npu())
        self.assertEqual(x_out.float(), total.float(), 0.0)
        self.assertEqual((y * scale.unsqueeze(-1)).float(), norm.float(), 0.05)

    @unittest.skip("for a later version")
    def test_for_a_later_version(self):
        self.fail("runs")

    def test_errors_of_runtime(self):
        _, npu = self.inputs()
        with self.assertRaisesRegex(RuntimeError, "output_mask"):
            torch_npu.npu_add_rms_norm_dynamic_quant(*npu[:3], output_mask=[False, False])


if __name__ == "__main__":
    run_tests()
