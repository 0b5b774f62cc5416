"""`compile_onnx` and its result: networks of fixed or open sizes, on CPUs and GPUs.

Single comprehensions are in `farkas.kernels`.
"""
