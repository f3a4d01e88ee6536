"""FRACTAL_NZ and int64 scales: the places of elements, padding, round trips, errors."""

from __future__ import annotations

import pytest
import torch

from anyfuse.formats import nd_to_nz, nz_to_nd, pack_scale_int64, unpack_scale_int64
from anyfuse.ops.quant_matmul_dequant import MAX_K


def numbers(rows: int, columns: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    return torch.randint(-128, 128, (rows, columns), generator=torch.Generator().manual_seed(rows)).to(dtype)


def test_e7_element_19_37_of_32_by_64_is_at_1637() -> None:
    matrix = torch.zeros(32, 64, dtype=torch.int8)
    matrix[19, 37] = 7
    blocked = nd_to_nz(matrix)
    assert blocked.shape == (2, 2, 16, 32)
    assert blocked.flatten().nonzero().tolist() == [[1637]]


def test_every_element_is_where_the_format_says_in_both_orientations() -> None:
    n, k = 40, 48
    weight = numbers(n, k)
    transposed, plain = nd_to_nz(weight), nd_to_nz(weight.t())
    assert transposed.shape == (2, 3, 16, 32)  # (k1, n1, 16, 32)
    assert plain.shape == (2, 3, 16, 32)  # (n1, k1, 16, 32)
    for i in range(n):
        for j in range(k):
            assert transposed[j // 32, i // 16, i % 16, j % 32] == weight[i, j]
            assert plain[i // 32, j // 16, j % 16, i % 32] == weight[i, j]


@pytest.mark.parametrize("dtype, c0", [(torch.int8, 32), (torch.float16, 16), (torch.bfloat16, 16), (torch.int32, 8)])
@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (17, 33), (15, 31), (40, 48), (0, 5), (5, 0), (0, 0)])
def test_round_trip_with_zero_padding(shape: tuple[int, int], dtype: torch.dtype, c0: int) -> None:
    matrix = numbers(*shape, dtype)
    blocked = nd_to_nz(matrix)
    assert blocked.is_contiguous() and blocked.dtype == dtype
    assert blocked.shape == (-(-shape[1] // c0), -(-shape[0] // 16), 16, c0)
    assert blocked.float().abs().sum() == matrix.float().abs().sum(), "padding is 0"
    back = nz_to_nd(blocked, shape)
    assert back.is_contiguous() and torch.equal(back, matrix)


def test_strided_matrices_are_taken() -> None:
    wide = numbers(64, 90)
    assert torch.equal(nd_to_nz(wide[::2, 1::3]), nd_to_nz(wide[::2, 1::3].contiguous()))
    blocked = nd_to_nz(wide)
    strided = blocked.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(nz_to_nd(strided, (64, 90)), wide)


def test_case_q34_what_is_blocked_already_is_refused() -> None:
    with pytest.raises(ValueError, match=r"matrix has shape \(2, 2, 16, 32\); accepted: 2 dimensions"):
        nd_to_nz(nd_to_nz(numbers(32, 64)))


def test_blocked_errors() -> None:
    with pytest.raises(TypeError, match="matrix is a list"):
        nd_to_nz([[1]])
    with pytest.raises(TypeError, match=r"float64; accepted: dtypes of 1, 2 or 4 bytes"):
        nd_to_nz(numbers(2, 2).double())
    with pytest.raises(ValueError, match=r"blocked has shape \(2, 2, 16, 32\); accepted: \(3, 2, 16, 32\)"):
        nz_to_nd(nd_to_nz(numbers(32, 64)), (32, 65))


def test_e4_int64_scales() -> None:
    packed = pack_scale_int64(torch.tensor([0.25, -0.25, 0.0, 1.0]))
    assert packed.tolist() == [1048576000, -1098907648, 0, 1065353216]
    assert unpack_scale_int64(packed).tolist() == [0.25, -0.25, 0.0, 1.0]


def test_int64_scales_hold_the_fp32_product() -> None:
    scale, x_scale = torch.tensor([0.1, 3e-5, 7.0]), torch.tensor([0.3], dtype=torch.float16)
    assert torch.equal(unpack_scale_int64(pack_scale_int64(scale, x_scale)), scale * x_scale.float())
    assert torch.equal(pack_scale_int64(scale, 0.5), pack_scale_int64(scale * 0.5))


def test_only_the_low_32_bits_count() -> None:
    high = torch.tensor([(7 << 32) + 1048576000, -(1 << 40) + 1048576000])
    assert unpack_scale_int64(high).tolist() == [0.25, 0.25]


def test_int64_scale_errors() -> None:
    with pytest.raises(TypeError, match=r"weight_scale is a tensor of float16; accepted: a float32 tensor"):
        pack_scale_int64(torch.ones(2, dtype=torch.float16))
    with pytest.raises(TypeError, match=r"packed is a tensor of float32; accepted: an int64 tensor"):
        unpack_scale_int64(torch.ones(2))


def test_the_longest_row_still_fits_32_bits() -> None:
    assert MAX_K * 128 * 128 < 2**31 <= (MAX_K + 1) * 128 * 128
