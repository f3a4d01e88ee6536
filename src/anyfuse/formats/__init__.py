"""The formats that the operators read and write: codebooks, packed integers, 8-bit floats, blocked weights, packed scales."""

from .lowbits import cast_float8 as cast_float8
from .lowbits import decode_hifloat8 as decode_hifloat8
from .lowbits import encode_hifloat8 as encode_hifloat8
from .lowbits import pack_int4 as pack_int4
from .lowbits import unpack_int4 as unpack_int4
