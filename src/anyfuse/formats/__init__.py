"""The formats that the operators read and write: codebooks, packed integers, 8-bit floats, blocked weights, scales."""
