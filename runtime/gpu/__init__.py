"""Programs on devices: memory, arrays of other libraries, OpenCL, and the CUDA emulator.

Access to CUDA itself is in `runtime.cuda`.
"""
