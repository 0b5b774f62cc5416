"""Operators of ONNX as comprehensions, one family a file; `registry` imports all of them.

How a model is walked and its names are kept is in `frontends.onnx.importer`.
"""
