"""Print loops as C: expressions, vectors, functions, kernels and networks.

The GPU dialects in `codegen.gpu` build on this.
"""
