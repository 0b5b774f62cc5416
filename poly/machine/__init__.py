"""What schedules need to know of processors and GPUs: vectors, registers, caches, warps.

Those of the processor at hand are read from the system; compilers and devices are found by
`runtime`.
"""
