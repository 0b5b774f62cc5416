"""Bodies of functions, branches and loops: inlined, or as blocks of comprehensions.

The operators that have such bodies are in `frontends.onnx.ops`.
"""
