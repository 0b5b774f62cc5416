"""Stands in for pycuda, which cannot be installed without CUDA's headers and driver."""
