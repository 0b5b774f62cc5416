"""Machine parameters of schedules: vectors, registers, caches, warps.

Those of this processor are read from the system; compilers and devices are found by
`runtime`.
"""
