"""GPU kernels in Triton, one module per operator, imported when an operator first runs on a GPU.

Importing this package does not import Triton. What the kernels promise about bits is in docs/design/gpu.md.
"""
