"""Loops as kernels in CUDA C and OpenCL C, and the host's loops that launch them.

What runs them is in `runtime`.
"""
