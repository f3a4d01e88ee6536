"""quant_grouped_matmul_dequant: each group is the plain operator's call, and what mixtures of experts meet."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor

import anyfuse
from anyfuse import _core, pack_weight
from anyfuse._bits import same_bits
from anyfuse.formats import nd_to_nz, pack_scale_int64
from anyfuse.packed import PackedWeight
from anyfuse.samples.draw import Draw

op = anyfuse.quant_grouped_matmul_dequant
plain = anyfuse.quant_matmul_dequant
SPEC = anyfuse._REGISTRY["quant_grouped_matmul_dequant"]
HALF, INT8 = torch.float16, torch.int8
EVERY_WAY = pytest.mark.parametrize("backend", ["native", "reference"])
ENDS = torch.tensor([0, 16, 16, 37, 38, 90])  # two empty groups, one of a single row; rows 90 and on are no group's


def problem(m: int = 97, n: int = 70, k: int = 130) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(m + n + k)
    groups = len(ENDS)
    return {
        "x": torch.randn(m, k, generator=generator),
        "weight": torch.randint(-128, 128, (groups, n, k), generator=generator, dtype=INT8),
        "weight_scale": torch.rand(groups, n, generator=generator) / 100,
        "group_list": ENDS,
    }


def loop(given: dict[str, Any]) -> Tensor:
    """The plain operator, group by group; 0 in the rows beyond."""
    given = dict(given)
    ends, x = given.pop("group_list").tolist(), given.pop("x")
    lead, m, k = x.shape[:-1], math.prod(x.shape[:-1]), x.shape[-1]
    dtype = given.get("out_dtype") or x.dtype
    weight = given.pop("weight")
    scale = (
        weight.scale if isinstance(weight, PackedWeight) and given["weight_scale"] is None else given["weight_scale"]
    )
    out = torch.zeros(m, scale.shape[-1], dtype=dtype)
    x_scale = given.get("x_scale")
    for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        one = {**given, "x": x.reshape(m, k)[begin:end], "weight_scale": scale[i]}
        one["weight"] = (
            PackedWeight(weight.data[i], weight.shape[1:]) if isinstance(weight, PackedWeight) else weight[i]
        )
        if given.get("bias") is not None:
            one["bias"] = given["bias"][i]
        if given.get("smooth_scale") is not None and given["smooth_scale"].dim() == 2:
            one["smooth_scale"] = given["smooth_scale"][i]
        if x_scale is not None and given.get("quant_mode") != "pertensor":
            one["x_scale"] = x_scale.reshape(-1)[begin:end]
        out[begin:end] = plain(**one)
    return out.reshape(*lead, scale.shape[-1])


# ---- the definition ----


@EVERY_WAY
def test_worked_example(backend: str) -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 0.25], [1.0, 0.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]])
    weight = torch.tensor([[[1, 1, 1, 1]], [[2, 0, 0, 0]]], dtype=INT8)
    with anyfuse.backend(backend):
        out = op(x, weight, torch.tensor([[0.5], [0.25]]), torch.tensor([1, 2]))
    scales = torch.tensor([2.0, 1.0]) / torch.tensor(127.0)
    assert out.flatten().tolist() == [(-7.5 * scales[0]).item(), (63.5 * scales[1]).item(), 0.0]


def test_each_group_is_the_plain_operator_on_its_rows(target: str) -> None:
    """Bit equality over everything that samples reach: layouts, dtypes, modes, options, empty groups."""
    with _core.target(target):
        for seed in range(150):
            sample = SPEC.samples.draw(Draw(seed))
            assert same_bits(op(**sample.arguments), loop(sample.arguments)), f"seed {seed}: {sample.label}"


def test_several_threads_work_on_the_groups_of_large_calls(target: str) -> None:
    given = problem(m=1100, n=260, k=515)
    before = torch.get_num_threads()
    with _core.target(target):
        for ends in ([0, 16, 16, 400, 401, 1100], [1100] * 6, [0, 0, 0, 0, 0, 1100], [183, 366, 549, 732, 915, 1098]):
            call = {**given, "group_list": torch.tensor(ends)}
            expected = loop(call)
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert same_bits(op(**call), expected)
                packed = pack_weight(call["weight"], call["weight_scale"])
                assert same_bits(op(call["x"], packed, group_list=call["group_list"]), expected)
    torch.set_num_threads(before)


def test_rows_taken_in_ranges_give_the_same(target: str) -> None:
    """64 MiB of codes are 256 rows at the largest k: groups end before, at, within and after the ranges of rows."""
    x, weight = torch.zeros(530, 131071, dtype=INT8), torch.ones(5, 1, 131071, dtype=INT8)
    x[:, 0] = torch.arange(530) % 100
    weight[:, 0, 0] = torch.arange(1, 6)
    ends = torch.tensor([100, 256, 300, 300, 520])
    arguments = {"x_scale": torch.ones(530), "out_dtype": torch.float32}
    with _core.target(target):
        out = op(x, weight, torch.ones(5, 1), ends, **arguments)
    factor = torch.bucketize(torch.arange(530), ends, right=True) + 1
    factor[520:] = 0
    assert torch.equal(out[:, 0], x[:, 0] * factor.float())


# ---- rows of no group ----


@EVERY_WAY
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_beyond_the_last_end_are_zero_and_not_looked_at(bad: float, backend: str) -> None:
    given = problem()
    scales = torch.full((97,), 0.02)
    scales[90:] = -1.0
    with anyfuse.backend(backend):
        expected = op(**given)
        given["x"][90:] = bad
        out, static = op(**given), op(**given, x_scale=scales)
    assert torch.equal(out[:90], expected[:90])
    for rest in (out[90:], static[90:]):
        assert not rest.any() and not rest.signbit().any()
    assert not static[:90].isnan().any()


@EVERY_WAY
def test_groups_without_rows_and_calls_without_groups(backend: str) -> None:
    given = problem()
    with anyfuse.backend(backend):
        assert not op(**{**given, "group_list": torch.zeros(6, dtype=torch.int64)}).any()
        nothing = op(given["x"], given["weight"][:0], given["weight_scale"][:0], ENDS[:0])
        assert nothing.shape == (97, 70) and not nothing.any()
        empty = op(given["x"][:0], given["weight"], given["weight_scale"], torch.zeros(6, dtype=torch.int64))
        assert empty.shape == (0, 70)
    given["weight"][[0, 2]] = 127  # an expert without rows is not read
    assert torch.equal(op(**given), loop(given))


@EVERY_WAY
def test_a_group_changes_no_other(backend: str) -> None:
    given = problem()
    with anyfuse.backend(backend):
        before = op(**given)
        given["x"][20] = math.nan
        given["weight"][5] = 1
        after = op(**given)
    assert torch.equal(after[:16], before[:16]) and torch.equal(after[37:38], before[37:38])
    assert after[20].isnan().all() and not torch.equal(after[38:90], before[38:90])


# ---- what is refused, by name and before anything is written ----


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([16, 0, 16, 37, 38, 90], r"group_list\[1\] is 0; accepted: ends from 16, where the group begins, to 97"),
        ([0, 16, 16, 37, 38, 98], r"group_list\[5\] is 98; accepted: ends from 38"),
        ([-1, 16, 16, 37, 38, 90], r"group_list\[0\] is -1; accepted: ends from 0"),
        ([0, 16, 99, 37, 38, 90], r"group_list\[2\] is 99"),
    ],
)
def test_ends_that_descend_or_leave_x(ends: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**{**problem(), "group_list": torch.tensor(ends)})


def test_the_c_api_refuses_bad_ends_before_it_writes() -> None:
    given = problem()
    out = torch.full((97, 70), 7.0)
    params, grouped = (
        _core.struct(f"anyfuse_quant_{name}_params") for name in ("matmul_dequant", "grouped_matmul_dequant")
    )
    matmul = params(size=_core.sizeof(params), m=97, n=70, k=130, out=out.data_ptr(), threads=1)
    for name in ("x", "weight", "weight_scale"):
        setattr(matmul, name, given[name].data_ptr())
    native = _core.function("quant_grouped_matmul_dequant", grouped)

    def call(ends: Tensor | None, groups: int = 6, matmul_at: int | None = _core.addressof(matmul)) -> None:
        address = None if ends is None else ends.data_ptr()
        native(grouped(size=_core.sizeof(grouped), matmul=matmul_at, groups=groups, group_list=address))

    for ends in ([16, 0, 16, 37, 38, 90], [0, 16, 16, 37, 38, 98], [-1, 16, 16, 37, 38, 90]):
        with pytest.raises(ValueError, match="quant_grouped_matmul_dequant"):
            call(torch.tensor(ends))
    for arguments in ((None,), (ENDS, -1), (ENDS, 6, None)):
        with pytest.raises(ValueError):
            call(*arguments)
    assert (out == 7.0).all()
    call(ENDS)
    assert torch.equal(out, loop(given))


# ---- layouts and options ----


def test_every_layout_gives_the_same(target: str) -> None:
    given = problem()
    x, weight, scale, ends = given.values()
    with _core.target(target):
        expected = op(x, weight, scale, ends)
        k_first = weight.transpose(1, 2)
        assert torch.equal(op(x, k_first, scale, ends, transpose_weight=False), expected)
        assert torch.equal(op(x, k_first.contiguous(), scale, ends, transpose_weight=False), expected)
        assert torch.equal(op(x, k_first.contiguous().transpose(1, 2), scale, ends), expected)
        blocks = torch.stack([nd_to_nz(one) for one in weight])
        assert torch.equal(op(x, blocks, scale, ends), expected)
        k_blocks = torch.stack([nd_to_nz(one) for one in k_first])
        assert torch.equal(op(x, k_blocks, scale, ends, transpose_weight=False), expected)
        for packed in (
            pack_weight(weight, scale),
            pack_weight(k_first, scale, transpose_weight=False),
            pack_weight(blocks, scale, layout="nz", shape=(70, 130)),
            pack_weight(k_blocks, scale, layout="nz", transpose_weight=False, shape=(70, 130)),
        ):
            assert torch.equal(op(x, packed, group_list=ends), expected)


def test_a_packed_weight_brings_its_scales_along() -> None:
    """They may be left out, as in the plain operator, and give way to others that are given. The ends are required."""
    given = problem()
    x, weight, scale, ends = (given[name] for name in ("x", "weight", "weight_scale", "group_list"))
    packed = pack_weight(weight, scale)
    expected = op(x, weight, scale, ends)
    for same in (op(x, packed, group_list=ends), op(x, packed, None, ends), op(x, packed, scale, ends)):
        assert torch.equal(same, expected)
    assert torch.equal(op(x, packed, scale * 2, ends), op(x, weight, scale * 2, ends))
    with pytest.raises(TypeError, match="group_list is a NoneType; accepted: a tensor"):
        op(x, packed)
    with pytest.raises(TypeError, match="weight_scale is a NoneType"):
        op(x, weight, group_list=ends)
    with pytest.raises(TypeError, match="weight_scale is a NoneType"):
        op(x, pack_weight(weight), group_list=ends)


def test_smooth_scales_of_all_groups_or_of_each() -> None:
    given = problem()
    smooth = torch.rand(6, 130) + 0.5
    expected = torch.cat([plain(given["x"][:16], given["weight"][1], given["weight_scale"][1], smooth_scale=smooth[1])])
    assert torch.equal(op(**given, smooth_scale=smooth)[:16], expected)
    same = smooth[1].expand(6, 130)
    assert torch.equal(op(**given, smooth_scale=same), op(**given, smooth_scale=smooth[1]))


def test_int64_scales_hold_the_product_of_each_group() -> None:
    given = problem()
    x_scale = torch.tensor([0.03], dtype=HALF)
    packed = pack_scale_int64(given["weight_scale"], x_scale)
    options = {"x_scale": x_scale, "quant_mode": "pertensor"}
    assert torch.equal(
        op(**{**given, "weight_scale": packed}, **options), loop({**given, "weight_scale": packed, **options})
    )


def test_leading_dimensions_are_rows() -> None:
    given = problem(m=96)
    expected = op(**given)
    for lead in ((2, 48), (4, 3, 8), (96, 1)):
        assert torch.equal(op(**{**given, "x": given["x"].reshape(*lead, 130)}), expected.reshape(*lead, 70))


# ---- a mixture of experts ----


def test_a_mixture_of_experts_layer() -> None:
    """Rows sorted by expert, two products with an activation between, back in their order: against float64."""
    tokens, experts, hidden, inner, top = 50, 8, 64, 96, 2
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, hidden, generator=generator)
    shapes = ((experts, inner, hidden), (experts, hidden, inner))
    up, down = (torch.randn(shape, generator=generator) / math.sqrt(shape[-1]) for shape in shapes)
    gates, chosen = torch.randn(tokens, experts, generator=generator).softmax(-1).topk(top)

    def quantized(weight: Tensor) -> PackedWeight:
        scale = weight.abs().amax(-1) / 127
        return pack_weight((weight / scale[..., None]).round().to(INT8), scale)

    order = chosen.flatten().argsort(stable=True)
    ends = torch.bincount(chosen.flatten(), minlength=experts).cumsum(0)
    rows = op(x[order // top], quantized(up), group_list=ends)
    rows = op(torch.nn.functional.silu(rows), quantized(down), group_list=ends)
    weighted = torch.zeros(tokens, hidden).index_add(0, order // top, rows * gates.flatten()[order, None])
    exact = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        for gate, expert in zip(gates[token].double(), chosen[token], strict=True):
            inside = torch.nn.functional.silu(up[expert].double() @ x[token].double())
            exact[token] += gate * (down[expert].double() @ inside)
    assert torch.nn.functional.cosine_similarity(weighted.double(), exact, dim=1).min() > 0.999


def test_one_graph_for_every_routing() -> None:
    """Neither the ends nor their order are part of a compiled graph."""
    torch._dynamo.reset()
    given = problem()
    packed = pack_weight(given["weight"], given["weight_scale"])
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, ends: op(x, packed, group_list=ends), fullgraph=True, backend=counter)
    for ends in (ENDS, torch.tensor([97] * 6), torch.tensor([0, 0, 0, 0, 0, 5])):
        assert torch.equal(compiled(given["x"], ends), op(given["x"], packed, group_list=ends))
    assert counter.frame_count == 1
