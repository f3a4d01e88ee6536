"""What a bug report, a result file or a report needs to know of this machine and installation."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import torch

import anyfuse

from . import _core
from ._opspec import REGISTRY


def machine() -> dict[str, Any]:
    return {
        "anyfuse": anyfuse.__version__,
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "thread_pool": _core.thread_pool(),
        "target": _core.current_target(),
        "matmul_target": _core.operator_target("quant_matmul_dequant"),
        "targets_available": _core.available_targets(),
        "targets_compiled": _core.targets(),
        "backends": ["native", "reference"],
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "operators": sorted(REGISTRY),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
