"""What schedules need to know of processors and GPUs: vectors, registers, caches, warps.

These are numbers only.  Compilers and devices are found by `runtime`.
"""
