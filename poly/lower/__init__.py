"""Schedule trees on their way to loops: launches of a GPU, barriers, and isl's own trees.

The loops themselves are made by `codegen.loops`.
"""
