"""Lowering of schedule trees towards loops: launches of a GPU, barriers, and isl's own trees.

The loops themselves are made by `codegen.loops`.
"""
