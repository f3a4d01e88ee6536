import torch_npu


def npu_swiglu(x, dim=-1):
    return torch_npu.npu_swiglu(x, dim=dim)
