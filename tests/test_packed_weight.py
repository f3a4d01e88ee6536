"""PackedWeight: every way in, the way back, what it weighs, how it is saved, and that no target changes its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyfuse
from anyfuse import PackedWeight, _core, pack_weight
from anyfuse.formats import nd_to_nz

GENERATOR = torch.Generator().manual_seed(0)


def int8(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=GENERATOR)


SHAPES = [(1, 1), (16, 4), (17, 5), (15, 3), (40, 48), (100, 257), (0, 7), (7, 0), (0, 0)]


@pytest.mark.parametrize("n, k", SHAPES)
def test_every_way_in_and_back_to_nd(n: int, k: int) -> None:
    weight = int8(n, k)
    ways = {
        "nd": pack_weight(weight),
        "nd, strided": pack_weight(weight.repeat(2, 2)[:n, :k]),
        "nd, k first": pack_weight(weight.t().contiguous(), transpose_weight=False),
        "nz": pack_weight(nd_to_nz(weight), layout="nz", shape=(n, k)),
        "nz, k first": pack_weight(nd_to_nz(weight.t()), layout="nz", transpose_weight=False, shape=(n, k)),
    }
    for name, packed in ways.items():
        assert packed.shape == (n, k), name
        assert torch.equal(packed.data, ways["nd"].data), name
        back = packed.to_nd()
        assert torch.equal(back, weight) and back.is_contiguous(), name


@pytest.mark.parametrize("groups, n, k", [(3, 17, 5), (1, 40, 48), (2, 0, 7), (0, 7, 5)])
def test_groups_are_packed_one_after_the_other(groups: int, n: int, k: int) -> None:
    weight, scale = int8(groups, n, k), torch.rand(groups, n)
    packed = pack_weight(weight, scale)
    assert packed.shape == (groups, n, k) and torch.equal(packed.to_nd(), weight)
    for i in range(groups):
        assert torch.equal(packed.data[i], pack_weight(weight[i]).data)
    assert torch.equal(pack_weight(weight.transpose(1, 2), transpose_weight=False).data, packed.data)
    loaded = PackedWeight.from_state_tensors(packed.state_tensors())
    assert loaded.shape == packed.shape and torch.equal(loaded.scale, scale)
    assert repr(packed).startswith(f"PackedWeight(groups={groups}, n={n}, k={k}, float32 scale, ")


def test_elements_lie_as_documented() -> None:
    weight = int8(35, 10)
    data = pack_weight(weight).data
    assert data.shape == (3, 3, 16, 4)
    for i in range(35):
        for j in range(10):
            assert data[i // 16, j // 4, i % 16, j % 4] == weight[i, j]
    assert data.float().abs().sum() == weight.float().abs().sum(), "padding is 0"


def test_nz_takes_n_from_the_scales_and_k_from_the_blocks() -> None:
    weight, scale = int8(40, 64), torch.rand(40)
    packed = pack_weight(nd_to_nz(weight), scale, layout="nz")
    assert packed.shape == (40, 64) and torch.equal(packed.to_nd(), weight)
    assert pack_weight(nd_to_nz(weight), layout="nz").shape == (48, 64)


@pytest.mark.parametrize("n, k", [(4096, 4096), (1027, 2880), (576, 576)])
def test_one_byte_a_weight_and_less_than_2_percent(n: int, k: int) -> None:
    packed = pack_weight(torch.zeros(n, k, dtype=torch.int8), torch.ones(n))
    assert packed.nbytes < 1.02 * n * k
    assert packed.data.untyped_storage().nbytes() == packed.data.nbytes


def test_prints_itself() -> None:
    packed = pack_weight(torch.ones(32, 64, dtype=torch.int8), torch.ones(32))
    assert repr(packed) == "PackedWeight(n=32, k=64, float32 scale, 2176 bytes, device='cpu')"
    assert "no scale" in repr(pack_weight(torch.ones(32, 64, dtype=torch.int8)))


def test_to_the_same_device_is_itself() -> None:
    packed = pack_weight(int8(8, 8), torch.ones(8))
    assert packed.to("cpu") is packed
    moved = packed.to("meta")
    assert moved.data.device.type == moved.scale.device.type == "meta"


def test_its_scale_serves_where_none_is_given_and_gives_way_where_one_is() -> None:
    x, weight, scale = torch.randn(3, 40), int8(20, 40), torch.rand(20)
    expected = anyfuse.quant_matmul_dequant(x, weight, scale)
    assert torch.equal(anyfuse.quant_matmul_dequant(x, pack_weight(weight, scale)), expected)
    assert torch.equal(anyfuse.quant_matmul_dequant(x, pack_weight(weight, scale * 2), scale), expected)
    assert torch.equal(anyfuse.quant_matmul_dequant(x, pack_weight(weight), scale, transpose_weight=False), expected)


def test_a_weight_packed_under_one_target_is_right_under_every_other() -> None:
    x, weight, scale = torch.randn(9, 131), int8(70, 131), torch.rand(70)
    expected = anyfuse.quant_matmul_dequant(x, weight, scale)
    for packing in _core.available_targets():
        with _core.target(packing):
            packed = pack_weight(weight, scale)
        for running in _core.available_targets():
            with _core.target(running):
                assert torch.equal(anyfuse.quant_matmul_dequant(x, packed), expected), (packing, running)


def test_saved_as_plain_tensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    for scale in (torch.rand(20), torch.ones(20, dtype=torch.int64), None):
        packed = pack_weight(int8(20, 33), scale)
        safetensors.save_file(packed.state_tensors(), tmp_path / "weight.safetensors")
        loaded = PackedWeight.from_state_tensors(safetensors.load_file(tmp_path / "weight.safetensors"))
        assert loaded.shape == packed.shape and torch.equal(loaded.data, packed.data)
        assert (loaded.scale is None) if scale is None else torch.equal(loaded.scale, scale)


def test_saved_tensors_that_do_not_fit_are_refused() -> None:
    good = pack_weight(int8(20, 33), torch.rand(20)).state_tensors()
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"data": good["data"]}, ValueError, "accepted: data, shape and"),
        ({**good, "zero_point": good["scale"]}, ValueError, "accepted: data, shape and"),
        ({**good, "shape": torch.tensor([20, 37])}, ValueError, "accepted: (2, 10, 16, 4)"),
        ({**good, "shape": torch.tensor([20, -1])}, ValueError, "accepted: sizes of 0 or more"),
        ({**good, "shape": torch.tensor([20])}, ValueError, "accepted: int64 of shape (2,)"),
        ({**good, "shape": torch.tensor([20.0, 33.0])}, ValueError, "accepted: int64 of shape (2,)"),
        ({**good, "data": good["data"][:1]}, ValueError, "accepted: (2, 9, 16, 4)"),
        ({**good, "data": good["data"].to(torch.uint8)}, TypeError, "accepted: an int8 tensor"),
        ({**good, "scale": torch.ones(21)}, ValueError, "accepted: (20,)"),
        ({**good, "scale": torch.ones(20, dtype=torch.float64)}, TypeError, "accepted: a tensor of float32 or int64"),
    ]
    for tensors, error, message in bad:
        with pytest.raises(error) as caught:
            PackedWeight.from_state_tensors(tensors)
        assert message in str(caught.value)


def test_errors_of_packing() -> None:
    weight = int8(20, 33)
    bad: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        ((weight.float(),), {}, TypeError, "weight is a tensor of float32; accepted: an int8 tensor"),
        (([1],), {}, TypeError, "weight is a list"),
        ((weight[0],), {}, ValueError, "weight has shape (33,)"),
        ((weight,), {"layout": "fractal"}, ValueError, "layout is 'fractal'; accepted: 'nd', 'nz'"),
        ((weight,), {"layout": "nz"}, ValueError, "weight has shape (20, 33); accepted: (_, _, 16, 32)"),
        ((weight, torch.ones(33)), {}, ValueError, "weight_scale has shape (33,); accepted: (20,)"),
        ((weight, torch.ones(20).half()), {}, TypeError, "weight_scale is a tensor of float16"),
        ((weight, torch.ones(1, 20)), {}, ValueError, "weight_scale has shape (1, 20)"),
        ((weight,), {"shape": (33, 20)}, ValueError, "shape is (33, 20); accepted: (20, 33)"),
        ((weight[None, None],), {}, ValueError, "weight has shape (1, 1, 20, 33); accepted: 2 dimensions; for groups"),
        ((weight[None], torch.ones(20)), {}, ValueError, "weight_scale has shape (20,); accepted: (1, 20)"),
        ((nd_to_nz(weight),), {"layout": "nz", "shape": (50, 33)}, ValueError, "blocks of a 50 x 33 matrix"),
    ]
    for arguments, options, error, message in bad:
        with pytest.raises(error) as caught:
            pack_weight(*arguments, **options)
        assert message in str(caught.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whether_closed_over_or_given(dynamic: bool) -> None:
    torch._dynamo.reset()
    packed = pack_weight(int8(24, 40), torch.rand(24))

    def closed(x: Tensor) -> Tensor:
        return anyfuse.quant_matmul_dequant(x, packed) + 1

    def given(x: Tensor, weight: PackedWeight) -> Tensor:
        return anyfuse.quant_matmul_dequant(x, weight) + 1

    for m in (2, 5, 1):
        x = torch.randn(m, 40)
        for function, arguments in ((closed, (x,)), (given, (x, packed))):
            compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
            assert torch.equal(compiled(*arguments), function(*arguments))
