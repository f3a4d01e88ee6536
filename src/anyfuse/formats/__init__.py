"""The formats that the operators read and write: codebooks, packed integers, 8-bit floats, blocked weights, scales."""

from .blocked import nd_to_nz as nd_to_nz
from .blocked import nz_to_nd as nz_to_nd
from .blocked import pack_scale_int64 as pack_scale_int64
from .blocked import unpack_scale_int64 as unpack_scale_int64
