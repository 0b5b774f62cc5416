"""Print loops as kernels in CUDA C and OpenCL C, and build the host loops that launch them.

The kernels are run by `runtime`.
"""
