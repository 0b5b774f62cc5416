"""Compiled networks: built from graphs, their memory planned, stored, run and profiled.

They run on CPUs and on devices; single kernels are in `runtime.cpu` and `runtime.gpu`.
"""
