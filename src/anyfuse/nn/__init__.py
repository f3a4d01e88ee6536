"""Modules of quantized inference (W8A8): linears with int8 weights, and norms whose output is int8 rows.

A quantized activation travels as `QuantizedRows`, codes with a scale for each row. A norm makes them once, and every
linear that reads the same activation (q, k, v; gate, up) multiplies them as they are.
"""

from .linear import QuantLinear as QuantLinear
from .linear import QuantLinearPart as QuantLinearPart
from .norm import AddRMSNormQuant as AddRMSNormQuant
from .norm import RMSNormQuant as RMSNormQuant
from .rows import QuantizedRows as QuantizedRows
