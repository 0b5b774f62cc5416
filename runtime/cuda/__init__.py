"""CUDA devices: find the driver, compile, and launch through either of two packages.

What all devices share is in `runtime.gpu`.
"""
