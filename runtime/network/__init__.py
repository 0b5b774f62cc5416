"""Compiled networks: built from graphs, their memory planned, stored, run and profiled.

On CPUs and on devices; single kernels are in `runtime.cpu` and `runtime.gpu`.
"""
