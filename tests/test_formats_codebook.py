"""The codebooks and the blockwise quantization with them."""

import pytest
import torch
from torch import Tensor

from anyfuse.formats import codebook as c
from anyfuse.formats import create_codebook, dequantize_blockwise, quantize_blockwise

ALL = [(kind, signed) for kind in c.KINDS for signed in (True, False)]


def literal_code(n: float, q: list[float], keep_sign: bool) -> int:
    """The rule for one value, in scalar steps of the kernel's document; n and q are fp32 values."""

    def distance(code: int) -> float:
        return abs(torch.tensor(n) - torch.tensor(q[code])).item()

    lower, upper = 0, 255
    pivot = 127
    for _ in range(8):
        lower, upper = (pivot, upper) if n > q[pivot] else (lower, pivot)
        pivot = (lower + upper) >> 1
    code = lower if distance(lower) <= distance(upper) else upper
    if keep_sign and n > 0 and q[code] < 0:
        code += 1
    elif keep_sign and n < 0 and q[code] > 0:
        code -= 1
    return min(max(code, 0), 255)


@pytest.mark.parametrize(("kind", "signed"), ALL)
def test_a_codebook_is_256_ascending_values_with_one_end_at_1(kind: str, signed: bool) -> None:
    values = create_codebook(kind, signed)
    assert values.shape == (256,) and values.dtype == torch.float32
    assert bool((values[1:] > values[:-1]).all())
    assert values[-1] == 1.0


def test_case_o11_the_dynamic_maps_have_the_published_values() -> None:
    signed, unsigned = create_codebook("dynamic", True), create_codebook("dynamic", False)
    assert signed[127] == 0.0 and int((signed == 0).sum()) == 1
    assert signed[0].item() == pytest.approx(-0.992968738, abs=1e-9)
    assert signed[signed != 0].abs().min().item() == pytest.approx(5.5e-7, rel=1e-6)
    assert unsigned[0] == 0.0 and unsigned[1].item() == pytest.approx(3.25e-7, rel=1e-6)
    # Below 1.0 the signed map is its own mirror image.
    assert torch.equal(signed[:127], -signed[128:255].flip(0))


def test_the_linear_maps_have_the_published_values() -> None:
    signed = create_codebook("linear", True)
    assert signed[127].item() == pytest.approx(-0.00392150972, rel=1e-8)
    assert signed[128].item() == pytest.approx(0.00392150972, rel=1e-8)
    assert create_codebook("linear", False)[[0, 255]].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("kind", "signed"), ALL)
def test_case_o11_every_code_comes_back(kind: str, signed: bool) -> None:
    book = create_codebook(kind, signed)
    codes = torch.arange(256, dtype=torch.uint8)
    values = dequantize_blockwise(codes, torch.tensor([0.75]), book)
    again, absmax = quantize_blockwise(values, book)
    assert torch.equal(again, codes) and absmax.item() == 0.75


@pytest.mark.parametrize("keep_sign", [True, False])
def test_codes_equal_the_literal_search(keep_sign: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    odd = (torch.randn(256, generator=generator).sort().values * 8).round() / 16
    for book in (*(create_codebook(*kind) for kind in ALL), odd, torch.full((256,), 0.25)):
        middles = (book[1:] + book[:-1]) / 2  # where ties and the last ulp decide
        near = [middles, torch.nextafter(middles, torch.tensor(2.0)), torch.nextafter(middles, torch.tensor(-2.0))]
        values = torch.cat([*near, book, torch.tensor([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, float("nan")])])
        expected = [literal_code(n, book.tolist(), keep_sign) for n in values.tolist()]
        assert c.encode(values, book, keep_sign=keep_sign).tolist() == expected


def test_worked_example_e3_ties_take_the_lower_code() -> None:
    book = create_codebook("linear", False)
    values = torch.tensor([1.0, 1 / 510, 1.0001 * (0.5 / 255)])
    assert quantize_blockwise(values, book)[0].tolist() == [255, 0, 1]


def test_worked_example_e4_maps_without_zero_and_the_sign() -> None:
    index = torch.arange(256)
    book = torch.where(index < 128, -(128 - index) / 128, (index - 127) / 128)
    values = torch.tensor([0, 0.001, -0.001, 1 / 256, -1 / 256, 3 / 256, -3 / 256])
    assert c.encode(values, book, keep_sign=True).tolist() == [127, 128, 127, 128, 127, 128, 126]
    lopsided = torch.cat([torch.linspace(-1, -0.001, 128), torch.linspace(0.1, 1, 128)])
    values = torch.tensor([0.01, -0.0005])
    assert c.encode(values, lopsided, keep_sign=True).tolist() == [128, 127]
    assert c.encode(values, lopsided).tolist() == [127, 127]


@pytest.mark.parametrize("block_size", c.BLOCK_SIZES)
def test_blocks_are_quantized_each_by_itself(block_size: int) -> None:
    generator = torch.Generator().manual_seed(1)
    numel = 2 * block_size + 17
    values = torch.randn(numel, generator=generator) * torch.logspace(-6, 3, numel)
    book = create_codebook()
    codes, absmax = quantize_blockwise(values.view(1, numel), book, block_size)
    assert codes.shape == (1, numel) and absmax.shape == (3,)
    for i in range(3):
        part = slice(i * block_size, (i + 1) * block_size)
        alone, scale = quantize_blockwise(values[part], book, block_size)
        assert torch.equal(codes[0, part], alone)
        assert absmax[i] == scale[0] == values[part].abs().max()
        error = (dequantize_blockwise(alone, scale, book, block_size) - values[part]).abs().max()
        # Half the widest gap, or the way from -1 to the first entry; three roundings of values below the scale.
        farthest = max(float(book.diff().max()) / 2, 1 + float(book[0]))
        assert error <= (farthest + 3 * 2**-24) * scale[0]


def test_case_o9_half_precision_ones_come_back_exactly() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        ones = torch.ones(5, 10, dtype=dtype)
        codes, absmax = quantize_blockwise(ones, create_codebook())
        assert torch.equal(dequantize_blockwise(codes, absmax, create_codebook(), dtype=dtype), ones)


def test_zero_nan_and_infinity_stay_in_their_block() -> None:
    values = torch.zeros(4, 64)
    values[1, 5], values[2, 5], values[3, 5] = float("nan"), float("-inf"), 2.0
    codes, absmax = quantize_blockwise(values, create_codebook("linear"), 64)
    assert absmax[0] == 0 and absmax[1].isnan() and absmax[2] == float("inf") and absmax[3] == 2
    assert codes[0].unique().tolist() == [127]
    assert codes[1].unique().tolist() == [0]
    assert codes[2, 5] == 0 and codes[3, 5] == 255 and codes[3, 6] == 127


def test_nonzero_gives_the_smallest_positive_entry_instead_of_0() -> None:
    book = create_codebook("dynamic", False)
    values = torch.tensor([1.0, 1e-12, 0.0])
    assert quantize_blockwise(values, book)[0].tolist() == [255, 0, 0]
    assert quantize_blockwise(values, book, nonzero=True)[0].tolist() == [255, 1, 0]
    negative = create_codebook("linear") - 1.0  # nothing positive to give
    assert quantize_blockwise(values, negative, nonzero=True)[0].tolist() == [255, 255, 255]


def test_empty_tensors() -> None:
    codes, absmax = quantize_blockwise(torch.empty(0, 3), create_codebook())
    assert codes.shape == (0, 3) and absmax.shape == (0,)
    assert dequantize_blockwise(codes, absmax, create_codebook()).shape == (0, 3)


def test_refusals_name_the_argument() -> None:
    book, values = create_codebook(), torch.ones(4)
    codes, scale = torch.zeros(4, dtype=torch.uint8), torch.ones(1)
    falling = book.flip(0)
    infinite = torch.cat([book[:-1], torch.tensor([float("inf")])])
    with pytest.raises(ValueError, match="kind is 'log'"):
        create_codebook("log")
    for size in (0, -1, 3, 2**64, "256", 256.0):
        with pytest.raises(ValueError, match="block_size"):
            quantize_blockwise(values, book, size)
        with pytest.raises(ValueError, match="block_size"):
            dequantize_blockwise(codes, scale, book, size)
    for bad, error in (
        (book[1:], ValueError),
        (falling, ValueError),
        (infinite, ValueError),
        (book.double(), TypeError),
    ):
        with pytest.raises(error, match="codebook"):
            quantize_blockwise(values, bad)
        with pytest.raises(error, match="codebook"):
            dequantize_blockwise(codes, scale, bad)
    for bad_values in (values.double(), [1.0]):
        with pytest.raises(TypeError, match="tensor"):
            quantize_blockwise(bad_values, book)
    with pytest.raises(TypeError, match="codes"):
        dequantize_blockwise(values, scale, book)
    with pytest.raises(TypeError, match="absmax"):
        dequantize_blockwise(codes, scale.half(), book)
    with pytest.raises(ValueError, match=r"absmax has shape \(2,\); accepted: \(1,\)"):
        dequantize_blockwise(codes, torch.ones(2), book)


def test_codes_of_one_sign_need_no_sign_rule() -> None:
    values = torch.rand(1000, generator=torch.Generator().manual_seed(2))
    for kind in c.KINDS:
        book: Tensor = create_codebook(kind, False)
        kept, plain = (quantize_blockwise(values, book, keep_sign=keep)[0] for keep in (True, False))
        assert torch.equal(kept, plain)


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_codebooks_do_not_depend_on_the_default_dtype(kind: str) -> None:
    expected = create_codebook(kind)
    for dtype in (torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            codebook = create_codebook(kind)
        finally:
            torch.set_default_dtype(torch.float32)
        assert codebook.dtype == torch.float32 and torch.equal(codebook, expected)
