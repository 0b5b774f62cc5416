"""Programs on devices: memory, arrays of other libraries, OpenCL, and the emulator of CUDA.

How CUDA itself is reached is in `runtime.cuda`.
"""
