"""The formats that the operators read and write: codebooks, packed integers, 8-bit floats, blocked weights, scales."""

from .blocked import nd_to_nz as nd_to_nz
from .blocked import nz_to_nd as nz_to_nd
from .blocked import pack_scale_int64 as pack_scale_int64
from .blocked import unpack_scale_int64 as unpack_scale_int64
from .lowbits import cast_float8 as cast_float8
from .lowbits import decode_hifloat8 as decode_hifloat8
from .lowbits import encode_hifloat8 as encode_hifloat8
from .lowbits import pack_int4 as pack_int4
from .lowbits import unpack_int4 as unpack_int4
