"""What each Ascend product takes of each operator: the only table of it, free of torch.

Python reads it as `Profiles` (`_soc.py`), the C face as `products.inc`, which the build writes
(`python _products.py FILE`). A product that a table does not name does not have the operator.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANY = "any"

#: Every product with the name it is sold under.
PRODUCTS = {
    ANY: "no product: everything that makes mathematical sense",
    "Ascend910B": "Atlas A2",
    "Ascend910_93": "Atlas A3",
    "Ascend950": "Ascend 950PR and 950DT",
    "Ascend310P": "Atlas inference series",
    "KirinX90": "Kirin X90",
    "Kirin9030": "Kirin 9030",
}


#: What a product and its chips are called, in any case: patterns that Python and POSIX read alike.
NAMES = {
    ANY: "any",
    "Ascend910B": "ascend910b([0-9][0-9a-z_-]*)?",
    "Ascend910_93": "ascend910_93[0-9]*|ascend910c",
    "Ascend950": "ascend950((pr|dt)[0-9a-z_]*)?|ascend910_95[0-9]*",
    "Ascend310P": "ascend310p([0-9][0-9a-z_]*)?",
    "KirinX90": "kirinx90",
    "Kirin9030": "kirin9030",
}

#: Products of which no operator here is documented, so that they have no profile.
WITHOUT_PROFILE = {
    "Atlas 200I/500 A2": "ascend310b[0-9a-z_]*",
    "Atlas training series": "ascend910((a|pro|premium)[0-9a-z_]*)?",
}


def product_of(name: Any) -> str | None:
    """The product that a name means, its own or a chip's, in any case ("ascend910b", "Ascend910B3"); None otherwise."""
    return next((product for product, names in NAMES.items() if _is(name, names)), None)


def product_named(what: str, name: Any) -> str:
    """The product that a name means. ValueError for another one; `what` begins the message."""
    product = product_of(name)
    if product is not None:
        return product
    sold = [f" ({words}: no profile)" for words, names in WITHOUT_PROFILE.items() if _is(name, names)]
    raise ValueError(f"{what} is {name!r}{''.join(sold)}; accepted: {', '.join(map(repr, PRODUCTS))}")


def _is(name: Any, names: str) -> bool:
    return isinstance(name, str) and re.fullmatch(names, name, re.IGNORECASE) is not None


@dataclass(frozen=True)
class Limits:
    """What one product takes of one operator, beyond the operator's own checks. Names are those that the operator gives
    to `Profiles.check`.

    `dtypes`: accepted dtypes of a tensor, or of an option that names a dtype. `one_dtype`: tensors that must agree.
    `ranks`: smallest and largest number of dimensions. `shapes`: the exact shape. `multiples`: what a size must be a
    multiple of. `values`: accepted values of an option. `positive`: numbers that must be above 0. `absent`: arguments
    that the product's operator does not have. An argument that is None meets every rule.
    """

    dtypes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    one_dtype: Sequence[str] = ()
    ranks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    positive: Sequence[str] = ()
    absent: Sequence[str] = ()

    def describe(self) -> dict[str, str]:
        """What is accepted for each argument, in words."""
        words: dict[str, list[str]] = {}

        def say(name: str, what: str) -> None:
            words.setdefault(name, []).append(what)

        for name, dtypes in self.dtypes.items():
            say(name, ", ".join(dtypes))
        for name in self.one_dtype[1:]:
            say(name, f"the dtype of {self.one_dtype[0]}")
        for name, ranks in self.ranks.items():
            say(name, rank_words(*ranks))
        for name, shape in self.shapes.items():
            say(name, f"shape {shape}")
        for name, factor in self.multiples.items():
            say(name, f"a multiple of {factor}")
        for name, values in self.values.items():
            say(name, ", ".join(map(str, values)))
        for name in self.positive:
            say(name, "above 0")
        for name in self.absent:
            say(name, "not available")
        return {name: "; ".join(parts) for name, parts in words.items()}


def rank_words(low: int, high: int) -> str:
    return f"{low} to {high} dimensions" if low != high else f"{low} dimensions"


#: What each of some products takes.
Table = Mapping[tuple[str, ...], Limits]


@dataclass(frozen=True)
class Operator:
    """An operator's tables. `document` and `read`: what they are taken from, and the day it was read. `note`: where
    another page of the vendor says something else. `faces`: the table of each face, "python" or a C function.
    `c_names`: arguments whose name in C is not the one here; a dtype may be that of several tensors there.
    """

    document: str
    read: str
    faces: Mapping[str, Table]
    note: str = ""
    c_names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def table(self, face: str) -> dict[str, Limits]:
        return {name: limits for names, limits in self.faces[face].items() for name in names}


FLOATS = ("float32", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
A2, A3 = "Ascend910B", "Ascend910_93"


def _same(table: Table, *functions: str) -> dict[str, Table]:
    """One table for Python and for these C functions."""
    return dict.fromkeys(("python", *functions), table)


# ---- apply_adam_w_quant ----

_ADAM_W_QUANT: Table = {
    (A2, A3): Limits(
        dtypes={"m": ("uint8",)},
        one_dtype=("var", "grad"),
        ranks={"var": (1, 8)},
        shapes={"step": (1,)},
        values={"block_size": (256,), **dict.fromkeys(("skip_nonfinite", "nonzero_v", "maximize"), (False,))},
        absent=("grad_scale", "found_inf", "s", "stochastic_rounding"),
    )
}

# ---- apply_fused_ema_adamw ----

_FUSED_EMA_ADAMW: Table = {
    (A2, A3, "Ascend950"): Limits(
        dtypes={"var": FLOATS},
        one_dtype=("var", "grad", "m", "v", "s"),
        ranks={"var": (1, 8)},
        values={"maximize": (False,)},
        absent=("grad_scale", "found_inf", "stochastic_rounding"),
    )
}

# ---- quant_matmul_dequant, quant_grouped_matmul_dequant ----


def _matmul(ranks: Mapping[str, tuple[int, int]]) -> Table:
    limits = Limits(
        dtypes=dict.fromkeys(("x", "smooth_scale", "out_dtype"), ("float16",)),
        ranks={"x": (2, 2), **ranks},
        multiples={"n": 16, "k": 16},
        values={"transpose_weight": (True,)},
        absent=("bias",),
    )
    return {("Ascend310P",): limits}


_MATMUL_NAMES = {
    "smooth_scale": ("smoothScaleOptional",),
    "out_dtype": ("out",),
    "weight_scale": ("weightScale",),
    "x_scale": ("xScaleOptional",),
    "transpose_weight": ("transposeWeight",),
    "bias": ("biasOptional",),
}

# ---- add_rms_norm_dynamic_quant ----


def _norm(x_dtypes: Sequence[str], y_dtypes: Sequence[str], masks: bool = True) -> Limits:
    return Limits(
        dtypes={"x1": x_dtypes, "y_dtype": y_dtypes},
        one_dtype=("x1", "gamma", "smooth_scale1", "smooth_scale2", "beta"),
        ranks={"x1": (2, 8)},
        positive=("epsilon",),
        values={} if masks else {"output_mask": (None,)},
    )


_NORM_950: Table = {("Ascend950",): _norm(HALVES, ("int8", "hifloat8", "float8_e5m2", "float8_e4m3fn"), masks=False)}
_NORM_KIRIN: Table = {("KirinX90", "Kirin9030"): _norm(("float16",), ("int8",))}
_NORM: Table = {(A2, A3): _norm(HALVES, ("int8", "int4")), **_NORM_950, **_NORM_KIRIN}
_NORM_V1: Table = {(A2, A3): _norm(HALVES, ("int8",)), **_NORM_950, **_NORM_KIRIN}

# ---- lazy_adam ----

_LAZY_ADAM: Table = {
    (A2,): Limits(
        dtypes={"gradient": ("float32",), "var": ("float32",), "indices": ("int32",)},
        multiples={"dim": 8},
        values={
            "bias_correction": ("none",),
            "weight_decay": (0.0,),
            "maximize": (False,),
            "refuse_negative": (False,),
        },
        absent=("row_step", "grad_scale", "found_inf", "stochastic_rounding"),
    )
}

OPERATORS = {
    "apply_adam_w_quant": Operator(
        document="aclnnApplyAdamWQuant",
        read="2026-11-29",
        faces=_same(_ADAM_W_QUANT, "aclnnApplyAdamWQuant"),
        note="CANN's ops-nn names Ascend 950 too (read 2026-11-29).",
        c_names={"m": ("mRef", "vRef"), "var": ("varRef",), "block_size": ("blockSize",)},
    ),
    "apply_fused_ema_adamw": Operator(
        document="npu_apply_fused_ema_adamw",
        read="2026-11-29",
        faces=_same(_FUSED_EMA_ADAMW, "aclnnApplyFusedEmaAdam"),
        note="The document names float32 alone and no product; products, dtypes and ranks are those of "
        "aclnnApplyFusedEmaAdam in CANN's ops-nn (read 2026-11-29). step may have any shape, as its planner takes it.",
        c_names={"var": ("varRef",), "m": ("mRef",), "v": ("vRef",), "s": ("sRef",)},
    ),
    "quant_matmul_dequant": Operator(
        document="aclnnQuantMatmulDequant",
        read="2026-11-29",
        faces=_same(_matmul({"weight_scale": (1, 1), "x_scale": (0, 1)}), "aclnnQuantMatmulDequant"),
        note="The document's list of products is lost; it speaks of the Atlas inference and training series. "
        "CANN's ops-nn names the inference series alone (read 2026-11-29).",
        c_names=_MATMUL_NAMES,
    ),
    "quant_grouped_matmul_dequant": Operator(
        document="npu_quant_grouped_matmul_dequant",
        read="2026-11-29",
        faces=_same(
            _matmul({"x_scale": (1, 1), "smooth_scale": (1, 1)}),
            "aclnnQuantGroupedMatmulDequant",
            "aclnnQuantGroupedMatmulDequantWeightNZ",
        ),
        c_names=_MATMUL_NAMES,
    ),
    "add_rms_norm_dynamic_quant": Operator(
        document="AddRmsNormDynamicQuant",
        read="2026-11-29",
        faces={
            **_same(_NORM, "aclnnAddRmsNormDynamicQuantV2"),
            "aclnnAddRmsNormDynamicQuant": _NORM_V1,
        },
        note="aclnnAddRmsNormDynamicQuantV2 in CANN's ops-nn (commit 2176488, read 2026-12-01) takes INT4, words of "
        "INT32 and an outputMask on Ascend 950 too; the document refuses both there.",
        c_names={
            "y_dtype": ("y1Out", "y2Out"),
            "smooth_scale1": ("smoothScale1Optional",),
            "smooth_scale2": ("smoothScale2Optional",),
            "beta": ("betaOptional",),
            "output_mask": ("outputMaskOptional",),
        },
    ),
    "lazy_adam": Operator(
        document="LazyAdam",
        read="2026-11-29",
        faces=_same(_LAZY_ADAM, "aclnnLazyAdam"),
        note="Rec SDK's newer operator definition lists Ascend910_93 and Ascend910_95 too (read 2026-11-29).",
        c_names={"var": ("inputVarRef",)},
    ),
}

# ---- the C face's copy ----

#: The names of dtypes in C; packed int4 may come as words there.
_C_DTYPES = {
    "float32": ("ACL_FLOAT",),
    "float16": ("ACL_FLOAT16",),
    "bfloat16": ("ACL_BF16",),
    "int8": ("ACL_INT8",),
    "uint8": ("ACL_UINT8",),
    "int32": ("ACL_INT32",),
    "int4": ("ACL_INT4", "ACL_INT32"),
    "hifloat8": ("ACL_HIFLOAT8",),
    "float8_e5m2": ("ACL_FLOAT8_E5M2",),
    "float8_e4m3fn": ("ACL_FLOAT8_E4M3FN",),
}


def _c_rules(limits: Limits) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """(kind, argument, numbers) of the rules that C can ask: shapes are checked by its operators themselves."""
    for name, dtypes in limits.dtypes.items():
        yield "dtypes", name, [code for dtype in dtypes for code in _C_DTYPES[dtype]]
    for name in limits.one_dtype:
        yield "one_dtype", name, []
    for name, ranks in limits.ranks.items():
        yield "ranks", name, ranks
    for name, factor in limits.multiples.items():
        yield "multiples", name, [factor]
    for name, values in limits.values.items():
        if all(isinstance(value, int) for value in values):
            yield "values", name, [int(value) for value in values]
        elif list(values) == [None]:
            yield "absent", name, []
    for name in limits.positive:
        yield "positive", name, []
    for name in limits.absent:
        yield "absent", name, []


def c_rows() -> Iterator[str]:
    """The lines of products.inc: products, the operator of each function on each product, and its rules."""
    for name in PRODUCTS:
        yield f'PRODUCT("{name}", "{NAMES[name]}")'
    for operator in OPERATORS.values():
        for function in operator.faces:
            if function == "python":
                continue
            for product, limits in operator.table(function).items():
                yield f'OPERATOR("{function}", "{product}")'
                for kind, argument, numbers in _c_rules(limits):
                    for name in operator.c_names.get(argument, (argument,)):
                        values = ", ".join(map(str, numbers))
                        yield f'RULE("{function}", "{product}", {kind}, "{name}", {{{values}}})'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text("// Written by src/anyfuse/_products.py.\n" + "\n".join(c_rows()) + "\n")
