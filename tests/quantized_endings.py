"""A check of a quantized model on disk whose writer is ended, as a program of its own:

    python tests/quantized_endings.py FOLDER SIGNAL

Saving uses torch's operators, which hang in a child that is forked after their thread pool was used: here the forking
process has one thread.
"""

from __future__ import annotations

import itertools
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from endings import delays, end_while
from fuzz.readers import SIZES

import anyfuse


def model_of(number: int) -> Any:
    """A tiny quantized model whose config and weights both tell the number."""
    config = transformers.LlamaConfig(**SIZES, rms_norm_eps=number / 1024)
    model = transformers.LlamaForCausalLM(config).eval()
    model.model.norm.weight.data.fill_(number)
    anyfuse.quantize_(model, calibration=None)
    return model


def number_of(folder: Path) -> int | None:
    """The number of the model in a folder, which is of one piece; None where loading is refused."""
    try:
        model = anyfuse.load_quantized(folder)
    except OSError:
        return None
    number = int(model.config.rms_norm_eps * 1024)
    assert torch.equal(model.model.norm.weight, torch.full_like(model.model.norm.weight, number)), "two models in one"
    return number


def check(folder: Path, number: int) -> None:
    torch.set_num_threads(1)
    models = [model_of(i) for i in (1, 2)]
    anyfuse.save_quantized(models[0], folder)
    assert number_of(folder) == 1
    turns = itertools.cycle(reversed(models))
    for delay in delays(10, 0.01, 0.06):
        end_while(lambda: anyfuse.save_quantized(next(turns), folder), number, delay)
        number_of(folder)  # how often it finds a model is chance
    if number == signal.SIGINT:  # one may come between the making of a folder and the line that removes it
        assert len(list(folder.glob(".saving-*"))) <= 1, "temporary folders stay"
    anyfuse.save_quantized(models[1], folder)
    assert number_of(folder) == 2


if __name__ == "__main__":
    check(Path(sys.argv[1]), int(sys.argv[2]))
