"""GPU kernels in Triton, one module per operator, imported when an operator first runs on a GPU.

Importing this package does not import Triton. What the kernels promise about bits is in docs/design/gpu.md.
"""

from functools import lru_cache

import torch


@lru_cache
def check_device(device: torch.device) -> None:
    """RuntimeError on an NVIDIA GPU before compute capability 8.0, for which Triton compiles nothing."""
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
        name, (major, minor) = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        raise RuntimeError(f"{device} is a {name}, compute capability {major}.{minor}; accepted: 8.0 and above, or AMD")
