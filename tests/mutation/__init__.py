"""Mutation test of the ONNX side: real models, broken, and what ONNX Runtime makes of them."""
