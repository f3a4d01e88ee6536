"""The formats that the operators read and write: codebooks, packed integers, 8-bit floats, blocked weights, scales."""

from .blocked import nd_to_nz, nz_to_nd, pack_scale_int64, unpack_scale_int64
from .codebook import create_codebook, dequantize_blockwise, quantize_blockwise
from .lowbits import cast_float8, decode_hifloat8, encode_hifloat8, pack_int4, unpack_int4

__all__ = [
    "cast_float8",
    "create_codebook",
    "decode_hifloat8",
    "dequantize_blockwise",
    "encode_hifloat8",
    "nd_to_nz",
    "nz_to_nd",
    "pack_int4",
    "pack_scale_int64",
    "quantize_blockwise",
    "unpack_int4",
    "unpack_scale_int64",
]
