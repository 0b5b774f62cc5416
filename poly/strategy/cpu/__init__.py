"""The automatic schedule for CPUs: register tiles, stencils, caches, and what is bound by memory.

`auto_schedule` is the entry.
"""
