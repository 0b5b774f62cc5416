"""Generate code from schedules: loop IR, vectors, and C, CUDA or OpenCL text.

This folder holds the pipelines and the tracing of generated text; see each subpackage for the rest.
"""
