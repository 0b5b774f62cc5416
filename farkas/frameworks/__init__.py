"""Kernels as operators of other frameworks: of torch and JAX.

Neither is imported before an operator is made.
"""
