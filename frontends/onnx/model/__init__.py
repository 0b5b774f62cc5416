"""Reads and checks files of ONNX models, their functions, and the models that onnx ships.

Nodes are imported in `frontends.onnx.importer`.
"""
