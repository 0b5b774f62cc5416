"""Mutation test of the ONNX side: real models, broken in one or two places, against ONNX Runtime."""
