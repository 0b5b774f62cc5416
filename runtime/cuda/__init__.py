"""CUDA devices: finding the driver, compiling, launching, by either of two packages.

What all devices share is in `runtime.gpu`.
"""
