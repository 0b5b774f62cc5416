"""From a model to a graph: node by node, with what names have become, constants folded.

What a node means is in `frontends.onnx.ops` and `ml`.
"""
