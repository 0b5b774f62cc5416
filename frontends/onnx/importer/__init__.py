"""Import of a model as a graph, node by node, with constant folding.

The operators are in `frontends.onnx.ops` and `ml`.
"""
