"""Loops as C: expressions, vectors, whole functions, kernels and networks.

The dialects for GPUs build on this, in `codegen.gpu`.
"""
