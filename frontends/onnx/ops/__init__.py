"""Operators of ONNX as comprehensions, one file for each family; `registry` imports all of them.

The import of models, which calls them, is in `frontends.onnx.importer`.
"""
