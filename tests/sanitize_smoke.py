"""Every operator's edge cases and random calls, and optimizers' steps, on a library built with a sanitizer:
`sanitize.sh` runs it.

python tests/sanitize_smoke.py LIBRARY_DIR SANITIZER RANDOM_CALLS
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

import anyfuse
from anyfuse import _core
from anyfuse.samples.draw import Draw


def exact(value: object) -> object:
    """Tensors in memory of exactly their size, which the sanitizer's allocator puts between poisoned bytes."""
    if isinstance(value, (list, tuple)):
        return [exact(item) for item in value]
    return value.clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value


def train() -> None:
    """Plans that hold, and plans that are made anew for another parameter's address or gradient."""
    for cls in (anyfuse.optim.AdamW8bit, anyfuse.optim.EMAAdamW, anyfuse.optim.LazyAdam):
        params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((70, 70), (5,), (), (0, 3))]
        params.append(torch.nn.Parameter(torch.ones(9, 4).t()))
        optimizer = cls(params)
        for step in range(5):
            for param in params:
                param.grad = torch.ones_like(param)
            if step == 2:
                params[0].data, params[1].grad = params[0].data.clone(), None
            optimizer.step()


def main(library: str, sanitizer: str, draws: int) -> None:
    count = 0
    for target in _core.available_targets():
        for threads in (1, 3):
            torch.set_num_threads(threads)
            with _core.target(target):
                train()
                for spec in anyfuse._REGISTRY.values():
                    samples = [*spec.samples.edges(), *(spec.samples.draw(Draw(seed)) for seed in range(draws))]
                    for sample in samples:
                        spec.function(**{name: exact(value) for name, value in sample.arguments.items()})
                        count += 1
    mapped = Path("/proc/self/maps").read_text()
    assert sanitizer in mapped and str(Path(library).resolve()) in mapped, "not the sanitized library"
    print(f"{count} calls on {', '.join(_core.available_targets())}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
