"""The automatic schedule for CPUs: register tiles, stencils, caches, and memory-bound groups.

`auto_schedule` is the entry point.
"""
