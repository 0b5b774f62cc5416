"""ONNX networks as torch modules and jax functions, for peers that do not read ONNX."""
