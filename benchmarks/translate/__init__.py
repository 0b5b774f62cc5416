"""ONNX networks as torch modules and jax functions, for peers that read no ONNX."""
