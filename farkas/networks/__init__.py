"""`compile_onnx` and what it gives: networks of fixed or open sizes, on CPUs and GPUs.

Single comprehensions are in `farkas.kernels`.
"""
