"""W8A8 linear layers, exact, beside torch's quantized and float ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._settings import backend
from ..ops.quant_matmul_dequant import quant_matmul_dequant
from ..packed import pack_weight
from ..samples.quant_matmul_dequant import int_mm
from .case import READ, Array, Case, Goal, Peer, Runner, Traffic, Work
from .overhead import tiny

SIZE = 4096
FBGEMM, FP32, BF16 = "linear_dynamic, fbgemm, reduce_range", "F.linear fp32", "F.linear bf16"
INT_MM, DIRECT, SQUARE = "torch._int_mm composition", "anyfuse, ND weight", "anyfuse, m = 16 of 4096"


def tensors(m: int, k: int, n: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(m, k, generator=generator).to(dtype),
        "weight": torch.randint(-127, 128, (n, k), generator=generator, dtype=torch.int8),
        "weight_scale": torch.rand(n, generator=generator) * 1e-3 + 1e-4,
    }


def packed(given: dict[str, Any]) -> dict[str, Any]:
    return {"x": given["x"], "weight": pack_weight(given["weight"], given["weight_scale"])}


def dequantized(given: dict[str, Any]) -> Tensor:
    weight: Tensor = given["weight"].float() * given["weight_scale"].unsqueeze(1)
    return weight


# ---- peers: each makes a function of x from a weight ----

Layer = Callable[[dict[str, Any]], Callable[[Tensor], Tensor]]


def linear_dynamic(given: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """fbgemm's dynamic linear with 7-bit activations, the form that does not saturate on AVX2.

    Its weights are the same numbers with the same scales, so that its error is that of its activations.
    """
    torch.backends.quantized.engine = "fbgemm"
    weight = torch._make_per_channel_quantized_tensor(
        given["weight"], given["weight_scale"].double(), torch.zeros(len(given["weight"]), dtype=torch.int64), 0
    )
    handle = torch.ops.quantized.linear_prepack(weight, None)
    return lambda x: torch.ops.quantized.linear_dynamic(x, handle, True)


def quantize_dynamic(engine: str, given: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """`torch.ao.quantization.quantize_dynamic` of a float layer: it quantizes the weights anew, with one scale."""
    if engine not in torch.backends.quantized.supported_engines:
        raise ImportError(f"this torch has no quantized engine {engine!r}")
    torch.backends.quantized.engine = engine
    n, k = given["weight"].shape
    layer = torch.nn.Linear(k, n, bias=False)
    layer.weight = torch.nn.Parameter(dequantized(given), requires_grad=False)
    quantized: Callable[[Tensor], Tensor] = torch.ao.quantization.quantize_dynamic(
        torch.nn.Sequential(layer), {torch.nn.Linear}, dtype=torch.qint8
    )
    return quantized


def float_linear(dtype: torch.dtype, given: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    weight = dequantized(given).to(dtype)
    return lambda x: functional.linear(x.to(dtype), weight)


def runner(layer: Layer, given: dict[str, Any]) -> Runner:
    function = layer(given)
    return Runner(partial(torch.inference_mode()(function), given["x"]))


def accuracy(layer: Layer) -> dict[str, Any]:
    """Error against our reference on random numbers, and what comes out where every code is 127, and where it is -128.

    K = 64 then gives 127·127·64 = 1 032 256 (and 127·-128·64 = -1 040 384, as x's own codes reach ±127).
    """
    given = tensors(32, 512, 64)
    with backend("reference"):
        right = quant_matmul_dequant(**given)
    with torch.inference_mode():
        error = float((layer(given)(given["x"]) - right).norm() / right.norm())
        sums = [round(_one_sum(layer, code)) for code in (127, -128)]
    return {
        "relative error": error,
        "127·127·64": sums[0],
        "127·-128·64": sums[1],
        "exact": sums == [1_032_256, -1_040_384],
    }


def _one_sum(layer: Layer, code: int) -> float:
    ones = {"weight": torch.full((32, 64), code, dtype=torch.int8), "weight_scale": torch.ones(32)}
    return float(layer(ones)(torch.full((32, 64), 127.0))[0, 0])


def peer(name: str, layer: Layer, given: dict[str, Any]) -> Peer:
    return Peer(name, partial(runner, layer, given), accuracy=partial(accuracy, layer))


# ---- cases ----


def shrink(quick: bool, m: int, k: int = SIZE, n: int = SIZE) -> tuple[int, int, int]:
    return (min(m, 16), k // 16, n // 16) if quick else (m, k, n)


def square(m: int, quick: bool, all_peers: bool = False) -> Work:
    m, k, n = shrink(quick, m)
    given = tensors(m, k, n)
    peers = [
        peer(FBGEMM, linear_dynamic, given),
        peer(FP32, partial(float_linear, torch.float32), given),
        Peer(DIRECT, lambda: Runner(partial(quant_matmul_dequant, **given)), package="anyfuse"),
    ]
    if all_peers:
        peers += [
            peer(BF16, partial(float_linear, torch.bfloat16), given),
            *(peer(f"quantize_dynamic, {e}", partial(quantize_dynamic, e), given) for e in ("fbgemm", "x86", "onednn")),
            peer(INT_MM, int_mm, given),
        ]
    return Work(
        ours=Runner(partial(quant_matmul_dequant, **packed(given))),
        units=m * k * n,
        unit="multiply-add",
        sample=packed(tensors(5, 131, 67)),
        peers=tuple(peers),
    )


def vector(quick: bool, matrices: int = 8) -> Work:
    """One row, and a new matrix for every call: weights come from memory, as in a model that generates text."""
    m, k, n = shrink(quick, 1)
    given = [
        {**tensors(m, k, n), "weight": torch.randint(-127, 128, (n, k), dtype=torch.int8)} for _ in range(matrices)
    ]

    def in_turn(functions: list[Callable[[], object]]) -> Runner:
        turn = cycle(functions)
        return Runner(lambda: next(turn)())

    def float_runner() -> Runner:
        layers = [float_linear(torch.float32, one) for one in given]
        return in_turn([partial(layer, one["x"]) for layer, one in zip(layers, given, strict=True)])

    return Work(
        ours=in_turn([partial(quant_matmul_dequant, **packed(one)) for one in given]),
        units=m * k * n,
        unit="weight",
        sample=packed(tensors(1, 131, 67)),
        traffic=Traffic((Array(1, READ),), matrices * m * k * n, calls=matrices),
        peers=(Peer(FP32, float_runner, accuracy=partial(accuracy, partial(float_linear, torch.float32))),),
    )


def odd(quick: bool) -> Work:
    m, k, n = shrink(quick, 17, 2880, 1027)

    def even() -> Runner:
        size = shrink(quick, 16)
        one = Runner(partial(quant_matmul_dequant, **packed(tensors(*size))))
        return Runner(one.run, units=size[0] * size[1] * size[2])

    given = tensors(m, k, n)
    return Work(
        ours=Runner(partial(quant_matmul_dequant, **packed(given))),
        units=m * k * n,
        unit="multiply-add",
        sample=packed(tensors(17, 131, 67)),
        peers=(
            Peer(SQUARE, even, package="anyfuse"),
            peer(FBGEMM, linear_dynamic, given),
            peer(FP32, partial(float_linear, torch.float32), given),
        ),
    )


NEAR = Goal(f"ratio {FBGEMM}", least=0.8, aim=1.0)
CASES = (
    Case("m = 16, k = n = 4096", partial(square, 16), goals=(NEAR,)),
    Case(
        "m = 256, k = n = 4096",
        partial(square, 256, all_peers=True),
        goals=(
            NEAR,
            Goal(f"ratio {FP32}", least=1.6, aim=2.0),
            Goal(f"ratio {DIRECT}", most=1.25),
            Goal("transient KiB", most=1024),
        ),
        memory=True,
    ),
    Case("m = 1024, k = n = 4096", partial(square, 1024), goals=(NEAR,)),
    Case(
        "m = 1, eight matrices of 4096 x 4096 in turn",
        vector,
        goals=(Goal("of stream", least=0.8, aim=0.9), Goal(f"ratio {FP32}", least=3.0)),
    ),
    Case("m = 17, k = 2880, n = 1027", odd, goals=(Goal(f"ratio {SQUARE}", least=0.7),)),
    tiny(quant_matmul_dequant, lambda: packed(tensors(1, 16, 16)), None, "1 x 16 x 16"),
)
