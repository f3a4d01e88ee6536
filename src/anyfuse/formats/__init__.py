"""The formats that the operators read and write: codebooks, packed integers, 8-bit floats, blocked weights, scales."""

from .codebook import create_codebook, dequantize_blockwise, quantize_blockwise

__all__ = ["create_codebook", "dequantize_blockwise", "quantize_blockwise"]
