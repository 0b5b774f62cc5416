"""Graphs of torch's ATen operators to ONNX models; the entry point is `convert`.

Each operator is a lowering to ONNX operators, or to comprehensions as nodes of the domain
``farkas``.  torch itself decomposes the others, and what it gives is not imported here: nodes,
shapes and types are read as they come.  Which nodes belong together is decided in
`farkas.frameworks`.
"""
