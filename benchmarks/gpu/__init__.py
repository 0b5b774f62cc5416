"""Kernels on a GPU beside other libraries; see `benchmarks.gpu.__main__`."""
