"""Codes of 4 and 8 bits: every code, every midpoint, both ends, against ml_dtypes where it knows the format."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from anyfuse.formats import cast_float8, decode_hifloat8, encode_hifloat8, pack_int4, unpack_int4

ALL_CODES = torch.arange(256, dtype=torch.uint8)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
NUMPY = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}
FORMATS = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=["e4m3fn", "e5m2"])


def floats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def neighbours(values: Tensor) -> Tensor:
    """Each value with the fp32 numbers just below and above it."""
    up, down = floats(float("inf")), floats(float("-inf"))
    return torch.cat([values, torch.nextafter(values, up), torch.nextafter(values, down)])


# ---- int4 ----


def test_int4_word_order() -> None:
    values = torch.tensor([1, -2, 3, -4, 5, -6, 7, -8])
    assert pack_int4(values).tolist() == [0xE1, 0xC3, 0xA5, 0x87]
    assert pack_int4(values, torch.int32).tolist() == [-2019179551]


@pytest.mark.parametrize("carrier", [torch.uint8, torch.int32])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.int32])
def test_int4_round_trip_of_every_value_in_every_place(carrier: torch.dtype, dtype: torch.dtype) -> None:
    values = torch.stack([torch.arange(-8, 8).roll(k) for k in range(16)]).to(dtype).view(2, 8, 16)
    packed = pack_int4(values, carrier)
    assert packed.dtype == carrier
    assert packed.shape == (2, 8, 8 if carrier == torch.uint8 else 2)
    assert torch.equal(unpack_int4(packed), values.to(torch.int8))


def test_int4_words_are_the_bytes() -> None:
    values = torch.arange(64).view(4, 16) % 16 - 8
    assert torch.equal(pack_int4(values).view(torch.int32), pack_int4(values, torch.int32))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 8)])
def test_int4_of_nothing(shape: tuple[int, ...]) -> None:
    packed = pack_int4(torch.zeros(shape, dtype=torch.int8), torch.int32)
    assert packed.shape == (*shape[:-1], shape[-1] // 8)
    assert unpack_int4(packed).shape == shape


def test_int4_refuses() -> None:
    zeros = torch.zeros(3, 12, dtype=torch.int8)
    with pytest.raises(ValueError, match="multiple of 8"):
        pack_int4(zeros, torch.int32)
    with pytest.raises(ValueError, match="multiple of 2"):
        pack_int4(zeros[:, :7])
    with pytest.raises(ValueError, match="-8 to 7"):
        pack_int4(torch.tensor([8, 0]))
    with pytest.raises(ValueError, match="-8 to 7"):
        pack_int4(torch.tensor([0, -9]))
    with pytest.raises(TypeError, match="values"):
        pack_int4(torch.zeros(2))
    with pytest.raises(TypeError, match="carrier"):
        pack_int4(zeros, torch.int16)
    with pytest.raises(TypeError, match="packed"):
        unpack_int4(torch.zeros(2, dtype=torch.int64))


# ---- 8-bit floats ----


@FORMATS
def test_float8_round_trip_of_all_codes(dtype: torch.dtype) -> None:
    values = ALL_CODES.view(dtype).float()
    finite = values.isfinite()
    codes = cast_float8(values, dtype).view(torch.uint8)
    assert torch.equal(codes[finite], ALL_CODES[finite])
    assert (codes[values.isnan()] == 0x7F).all()


@FORMATS
def test_float8_ties_go_to_even(dtype: torch.dtype) -> None:
    values = ALL_CODES[:128].view(dtype).float()
    values = values[values.isfinite()]
    middle = (values[1:] + values[:-1]) / 2
    codes = torch.arange(len(values))
    even = torch.where(codes[:-1] % 2 == 0, codes[:-1], codes[1:])
    for sign, offset in ((1, 0), (-1, 128)):
        got = cast_float8(sign * middle, dtype).view(torch.uint8).long()
        assert torch.equal(got, even + offset)
        beyond = torch.nextafter(middle, floats(float("inf")))
        assert torch.equal(cast_float8(sign * beyond, dtype).view(torch.uint8).long(), codes[1:] + offset)


@FORMATS
def test_float8_saturates(dtype: torch.dtype) -> None:
    largest = LARGEST[dtype]
    given = floats(largest, largest * 1.03, largest * 1.0625, 61440.0, 1e30, float("inf"))
    assert (cast_float8(given, dtype).float() == largest).all()
    assert (cast_float8(-given, dtype).float() == -largest).all()


@FORMATS
@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_float8_equals_ml_dtypes(dtype: torch.dtype, source: torch.dtype) -> None:
    """Within the range where no saturation is asked of it."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=generator, dtype=torch.int64).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.randn(100_000, generator=generator) * 50]).to(source)
    x = x[x.float().abs() <= LARGEST[dtype]]
    expected = torch.from_numpy(x.float().numpy().astype(NUMPY[dtype]).view(np.uint8))
    assert torch.equal(cast_float8(x, dtype).view(torch.uint8), expected)


def test_float8_keeps_shape_and_strides_do_not_matter() -> None:
    x = torch.randn(4, 5, 6).transpose(0, 2)
    assert cast_float8(x, E4M3).shape == x.shape
    assert torch.equal(cast_float8(x, E4M3).float(), cast_float8(x.contiguous(), E4M3).float())


def test_float8_refuses() -> None:
    with pytest.raises(TypeError, match="dtype"):
        cast_float8(floats(1.0), torch.int8)
    with pytest.raises(TypeError, match="float64"):
        cast_float8(torch.zeros(2, dtype=torch.float64), E4M3)


# ---- HiFloat8 ----

VALUES = {
    0x00: 0.0,
    0x01: 2.0**-22,
    0x07: 2.0**-16,
    0x7E: 2.0**-15,
    0x7F: 2.0**-15 * 1.5,
    0x08: 1.0,
    0x0F: 1.875,
    0x10: 2.0,
    0x18: 0.5,
    0x20: 4.0,
    0x30: 0.25,
    0x40: 16.0,
    0x60: 256.0,
    0x6E: 32768.0,
    0x6F: float("inf"),
    0xEF: float("-inf"),
    0x88: -1.0,
    0xEE: -32768.0,
}


def test_hifloat8_known_values() -> None:
    codes = torch.tensor(list(VALUES), dtype=torch.uint8)
    assert decode_hifloat8(codes).tolist() == list(VALUES.values())
    assert decode_hifloat8(ALL_CODES).isnan().nonzero().flatten().tolist() == [0x80]


def test_hifloat8_round_trip_of_all_codes() -> None:
    """Infinities saturate to the largest finite values; all others come back, NaN as 0x80."""
    expected = ALL_CODES.clone()
    expected[0x6F], expected[0xEF] = 0x6E, 0xEE
    assert torch.equal(encode_hifloat8(decode_hifloat8(ALL_CODES)), expected)


def test_hifloat8_ties_go_away_from_zero_and_their_neighbours_to_the_nearest() -> None:
    values = decode_hifloat8(ALL_CODES[:128])
    values = values[values.isfinite()].sort().values
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    below = torch.nextafter(middle, floats(0.0))
    for sign in (1, -1):
        assert torch.equal(decode_hifloat8(encode_hifloat8(sign * middle)), sign * high)
        assert torch.equal(decode_hifloat8(encode_hifloat8(sign * below)), sign * low)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(1.0625, 1.125), (15.5, 16.0), (18.0, 20.0), (320.0, 384.0), (3.5762787e-7, 2.0**-21), (2.0**-23, 2.0**-22)],
)
def test_hifloat8_ties_of_the_format_description(given: float, expected: float) -> None:
    assert decode_hifloat8(encode_hifloat8(floats(given, -given))).tolist() == [expected, -expected]


def test_hifloat8_saturates_and_has_no_negative_zero() -> None:
    given = floats(40959.0, 40960.0, 1e30, float("inf"))
    assert encode_hifloat8(given).tolist() == [0x6E] * 4
    assert encode_hifloat8(-given).tolist() == [0xEE] * 4
    tiny = floats(0.0, -0.0, 1e-45, -1e-45, -(2.0**-23) * 0.999)
    assert encode_hifloat8(tiny).tolist() == [0] * 5
    assert encode_hifloat8(floats(float("nan"))).tolist() == [0x80]


def test_hifloat8_is_the_nearest_value_everywhere() -> None:
    """Against a search over all codes in double, on values of every exponent."""
    generator = torch.Generator().manual_seed(2)
    exponent = torch.randint(-26, 17, (20_000,), generator=generator)
    x = torch.ldexp(1 + torch.rand(20_000, generator=generator), exponent) * torch.sign(
        torch.randn(20_000, generator=generator)
    )
    x = torch.cat([x, neighbours(decode_hifloat8(ALL_CODES[:0x6F]))])
    values = decode_hifloat8(ALL_CODES).double()
    values = values[values.isfinite()]
    distance = (x.double().unsqueeze(1) - values).abs()
    got = decode_hifloat8(encode_hifloat8(x)).double()
    assert torch.equal((x.double() - got).abs(), distance.amin(1))


def test_hifloat8_refuses() -> None:
    with pytest.raises(TypeError, match="codes"):
        decode_hifloat8(torch.zeros(2, dtype=torch.int8))
    with pytest.raises(TypeError, match="x is"):
        encode_hifloat8(torch.zeros(2, dtype=torch.int32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_codes_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    types = (torch.float8_e4m3fn, torch.float8_e5m2)

    def all_of_it() -> list[torch.Tensor]:
        codes = encode_hifloat8(x)
        return [codes, decode_hifloat8(codes), *(cast_float8(x, float8).view(torch.uint8) for float8 in types)]

    expected = all_of_it()
    torch.set_default_dtype(dtype)
    try:
        found = all_of_it()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, expected, strict=True))
