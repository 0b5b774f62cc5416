"""The values that the pipeline passes on: element types, expressions, programs, graphs, layouts.

All of them are frozen, and none of them knows isl: that begins with `poly.sets`.
"""
