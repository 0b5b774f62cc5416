"""The automatic schedule for GPUs: blocks, threads, shared memory and tensor cores.

`auto_schedule` is the entry point.
"""
