"""`anyfuse quantize` and `anyfuse eval`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .console import Json, print_json, progress, show, table

FIGURES = {  # what people read in place of a field's name
    "tokens": "tokens judged",
    "prefill": "prefill, tokens a second",
    "decode": "decoded tokens a second, at batch 1",
    "prompt": "tokens of the prefill",
    "linear_bytes": "bytes of the linears",
    "bytes": "bytes of the model",
}
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a Hugging Face model, or a .gguf file.")]


def quantize(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the quantized model and its tokenizer.")],
    calibrate: Annotated[
        Path | None, typer.Option(metavar="TEXT", help="Text like what the model will read; default: random tokens.")
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(help="A linear to keep in float, by name or pattern.")] = None,
    head: Annotated[bool, typer.Option(help="Quantize lm_head, too.")] = False,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of TEXT that are read, at most.")] = 2048,
    json_: Json = False,
) -> None:
    """Put a language model into W8A8: int8 weights, int8 activations.

    Llama, Mistral, Qwen2, Qwen3 and SmolLM models, by transformers (extra hf). Nothing is downloaded.

    \b
    Examples:
    $ anyfuse quantize MODEL_DIR OUT --calibrate text.txt
    $ anyfuse quantize model.gguf OUT --skip 'model.layers.0.*'
    $ anyfuse quantize MODEL_DIR OUT --head --json

    Exit status: 0 done, 2 an error or wrong usage.
    """
    from anyfuse.models import quantize_, save_quantized
    from anyfuse.models.command import open_model, read_ids

    kept = [*(skip or ()), *(() if head else ("lm_head",))]
    with progress({"load": None}, hidden=json_) as advance:
        float_model, tokenizer = open_model(model)
        batches = None
        if calibrate is not None:
            batches = [part[None] for part in read_ids(tokenizer, calibrate, tokens).split(512)]
        advance("calibrate and quantize", done=0)
        report = quantize_(
            float_model, calibration=batches, skip=kept,
            advance=lambda done, total: advance("calibrate and quantize", done=0, words=f"{done} of {total} linears"),
        )  # fmt: skip
        advance("write", done=0)
        save_quantized(float_model, out, tokenizer=tokenizer)
    if json_:
        print_json({**asdict(report), "out": str(out)})
        return
    Console().print(f"{len(report.replaced)} modules replaced; their {report.float_bytes} bytes are {report.bytes} now")
    for name, reason in report.kept.items():
        Console().print(f"kept {name}: {reason}", highlight=False, markup=False)
    Console().print(f"Written: {out}", highlight=False, markup=False)


def eval_(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Folder that quantize wrote or of a Hugging Face model, or a .gguf file."),
    ],
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A text file to judge the model on.")],
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of TEXT that are read, at most.")] = 1024,
    json_: Json = False,
) -> None:
    """Measure a model's perplexity on a text, its tokens per second and its bytes, float or quantized.

    \b
    Examples:
    $ anyfuse eval MODEL_DIR text.txt
    $ anyfuse eval OUT text.txt --tokens 4096 --json

    Exit status: 0 done, 2 an error or wrong usage.
    """
    from anyfuse.models.command import open_model, read_ids
    from anyfuse.models.evaluate import WINDOW, evaluate

    with progress({"load": None}, hidden=json_):
        opened, tokenizer = open_model(model)
        ids = read_ids(tokenizer, text, tokens)
    with progress({"evaluate": -(-ids.shape[0] // WINDOW)}, hidden=json_) as advance:
        result = asdict(evaluate(opened, ids, advance=lambda: advance("evaluate")))
    if json_:
        print_json(result)
        return
    lines = table(str(model), "figure", "value", numbers=("value",))
    for name, value in result.items():
        lines.add_row(FIGURES.get(name, name), f"{value:.2f}" if isinstance(value, float) else f"{value}")
    show(lines)
