r"""Rows in groups: each group quantized to int8, times the int8 weights of its own, back to float, in one call
(torch_npu's operator for mixtures of experts, `npu_quant_grouped_matmul_dequant`; in C aclnnQuantGroupedMatmulDequant).

The rows of x are sorted by group (expert), and `group_list` holds the row at which each group ends. For every group i,
with begin = group_list[i-1] (0 for the first) and end = group_list[i],

    out[begin:end] = quant_matmul_dequant(x[begin:end], W[i], weight_scale[i], ...)

bit for bit: the mathematics is that of `quant_matmul_dequant`, with bias[i], and with smooth_scale[i] where each group
has factors of its own. A group may be empty. Rows from the last end on belong to no group: nothing of them is read, and
their outputs are +0. (The document is silent about them; the NPU's kernel leaves their outputs as they were, and
`jax.lax.ragged_dot` gives 0. Batches that are padded to one size end in such rows.)

A worked example, k = 4, two groups and a row of padding. The first row has the scale 2/127 and the codes
64, -127, 32, 16 (63.5, -127, 31.75 and 15.875 rounded half to even), the second one 1/127 and 127, 0, 0, 0:

    x = [1, -2, .5, .25], [1, 0, 0, 0], [9, 9, 9, 9]        group_list = [1, 2]
    W[0] = [1, 1, 1, 1]       acc = -15         out = -15·.5·2/127 = -.11811
    W[1] = [2, 0, 0, 0]       acc = 254         out = 254·.25·1/127 = .5
                                                out = 0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .._opspec import OpSpec, register
from .._settings import convention_or_default, use_reference
from .._soc import Profiles
from ..packed import PackedWeight
from . import _checks as checks
from . import quant_matmul_dequant as plain
from ._record import Convention
from ._register import define

RETURNS = "Tensor"

QuantMode = Literal["pertoken", "pertensor"]


class Call(NamedTuple):
    """The schema's arguments."""

    x: Tensor
    weight: Tensor
    weight_scale: Tensor
    group_list: Tensor
    bias: Tensor | None
    x_scale: Tensor | None
    smooth_scale: Tensor | None
    quant_mode: QuantMode
    transpose_weight: bool
    packed: list[int]
    out_dtype: torch.dtype | None
    convention: Convention


PROFILES = Profiles("quant_grouped_matmul_dequant")


def quant_grouped_matmul_dequant(
    x: Tensor,
    weight: Tensor | PackedWeight,
    weight_scale: Tensor | None = None,
    group_list: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
    x_offset: None = None,
    smooth_scale: Tensor | None = None,
    quant_mode: str = "pertoken",
    transpose_weight: bool = True,
    out_dtype: torch.dtype | None = None,
    convention: str | None = None,
) -> Tensor:
    """`quant_matmul_dequant` of groups of rows, each with int8 weights of its own (a mixture of experts).

    The mathematics, and a worked example, is in this module's docstring.

    Args:
        x: (..., k), at least 2 dimensions; m is the number of its rows, sorted by group. float32, float16, bfloat16; or
            int8: rows that are quantized already, whose scales are in x_scale.
        weight: a `PackedWeight` of G groups (fastest: see `pack_weight`), or an int8 tensor: (G, n, k), or FRACTAL_NZ
            (G, ceil(k/32), ceil(n/16), 16, 32); with `transpose_weight=False` (G, k, n), or (G, ceil(n/32), ceil(k/16),
            16, 32). k up to 131071.
        weight_scale: (G, n), float32; or int64, holding weight_scale·x_scale (`formats.pack_scale_int64`), which needs
            a float16 x_scale and `quant_mode="pertensor"`. Left out where a PackedWeight brings it along.
        group_list: (G,) int64, the end of each group's rows: ascending (equal ends: an empty group), from 0 to m.
            Always required; by name where weight_scale is left out.
        bias: (G, n) int32, added to the sums before they are scaled.
        x_scale: the scale of x: per token (m,), (m, 1), or x's leading dimensions; per tensor (1,) or 0-dim.
            float32, or float16 beside an int64 weight_scale. None: from each row (dynamic; per token only). With int8
            x it is required, per token, and taken as it is: a NaN makes its row NaN.
        x_offset: must be None; there is no asymmetric quantization.
        smooth_scale: (k,) factors of x's columns, or (G, k), other ones for each group; float32, float16 or bfloat16;
            not with int8 x.
        quant_mode: "pertoken" or "pertensor": whether x_scale is one number a row, or one in all.
        transpose_weight: True when a weight tensor has its n output columns before k. A PackedWeight knows by itself.
        out_dtype: float32, float16 or bfloat16; default x's dtype, required with int8 x.
        convention: "formula" (the document) or "device" (the order of the NPU's kernel); default `ANYFUSE_CONVENTION`.

    Returns:
        (..., n): x's leading dimensions, then the output columns; 0 in rows from group_list's last end on.

        Gradients: none reaches x, as it is quantized; a layer below does not learn through the product, and torch warns
        of it in a backward.

    Raises:
        TypeError: a dtype or a kind of argument that is not accepted.
        ValueError: shapes that do not fit together, a group_list that descends or ends beyond m, k > 131071, an unknown
            mode, scales that are NaN in the rows of a group, x_offset given. On a GPU values are not looked at: ends
            are brought into [0, m], and a group that descends is empty.

    Example:
        >>> import torch, anyfuse
        >>> x = torch.tensor([[1.0, -2.0, 0.5, 0.25], [1.0, 0.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]])
        >>> weight = torch.tensor([[[1, 1, 1, 1]], [[2, 0, 0, 0]]], dtype=torch.int8)
        >>> anyfuse.quant_grouped_matmul_dequant(x, weight, torch.tensor([[0.5], [0.25]]), torch.tensor([1, 2]))
        tensor([[-0.1181],
                [ 0.5000],
                [ 0.0000]])
    """
    weight, weight_scale, packed = plain.taken_apart(weight, weight_scale, x_offset)
    return _op(
        x, weight, weight_scale, group_list, bias, x_scale, smooth_scale, quant_mode, transpose_weight, packed,
        out_dtype, convention_or_default(convention),
    )  # fmt: skip


# ---- checks ----


def check(call: Call) -> torch.dtype:
    """Refuses what the docstring does not list, values excepted. Returns the output's dtype."""
    checks.require_tensor("group_list", call.group_list, (torch.int64,))
    shape = tuple(call.group_list.shape)
    checks.require(len(shape) == 1, f"group_list has shape {shape}; accepted: (G,), one end for a group")
    return plain.check_product(call, shape, PROFILES)


def row_ends(group_list: Tensor, m: int) -> list[int]:
    """The ends of the groups, refused where they descend or leave [0, m]."""
    ends: list[int] = group_list.tolist()
    if ends and (ends[0] < 0 or ends[-1] > m or sorted(ends) != ends):
        lowest = [0, *ends]
        wrong = next(i for i, end in enumerate(ends) if not lowest[i] <= end <= m)
        raise ValueError(
            f"group_list[{wrong}] is {ends[wrong]}; accepted: ends from {lowest[wrong]}, where the group begins, "
            f"to {m}, the rows of x"
        )
    return ends


# ---- reference ----


def reference(call: Call, ends: list[int]) -> Tensor:
    """Each group by the plain operator's reference."""
    k = call.x.shape[-1]
    out = plain.result(call, call.x.dtype if call.out_dtype is None else call.out_dtype).zero_()
    x, rows = call.x.reshape(call.x.shape[:-1].numel(), k), out.view(-1, out.shape[-1]) if out.numel() else out
    own_smooth = call.smooth_scale is not None and call.smooth_scale.dim() == 2
    for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        x_scale, smooth_scale = call.x_scale, call.smooth_scale
        if x_scale is not None and call.quant_mode == "pertoken":
            x_scale = x_scale.reshape(-1)[begin:end]
        group = plain.Call(
            x[begin:end],
            call.weight[i],
            call.weight_scale[i],
            None if call.bias is None else call.bias[i],
            x_scale,
            smooth_scale[i] if smooth_scale is not None and own_smooth else smooth_scale,
            call.quant_mode,
            call.transpose_weight,
            call.packed[1:],
            call.out_dtype,
            call.convention,
        )
        if out.numel():
            rows[begin:end] = plain.reference(group)
    return out


# ---- what is not plain ----


def _general(call: Call) -> Tensor:
    check(call)
    x, x_scale = call.x, call.x_scale
    ends = row_ends(call.group_list, x.shape[:-1].numel())
    if x_scale is not None and call.quant_mode == "pertoken":  # rows that are in no group are not read
        x_scale = x_scale.reshape(-1)[: ends[-1] if ends else 0]
    plain.check_values(x, x_scale)
    return reference(call, ends) if use_reference() else _native(*plain.with_plain_weight(call))


_op: Callable[..., Tensor]
_op, _ = define("quant_grouped_matmul_dequant", Call, _general, lambda call: plain.result(call, check(call)))
_native = torch.ops.anyfuse.quant_grouped_matmul_dequant.default


register(
    OpSpec(
        name="quant_grouped_matmul_dequant",
        function=quant_grouped_matmul_dequant,
        document="npu_quant_grouped_matmul_dequant",
        summary="groups of rows quantized to int8, each times int8 weights of its own, back to float",
        outputs=("out",),
        profiles=PROFILES,
    )
)
