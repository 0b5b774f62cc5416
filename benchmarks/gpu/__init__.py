"""Kernels on a GPU compared with other libraries; see `benchmarks.gpu.__main__`."""
