"""Operators of the domain ai.onnx.ml as comprehensions: trees, linear models, labels.

Those of the main domain are in `frontends.onnx.ops`.
"""
