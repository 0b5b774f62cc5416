"""Tensor comprehensions and einsum strings: grammar, names, ranges, types.

`parse_program` is the entry point.  Networks are in `frontends.onnx`.
"""
