"""Shared by the whole ONNX front end: nodes, the operator registry, types, sizes and text.

Nothing here reads a file or knows a particular operator.
"""
