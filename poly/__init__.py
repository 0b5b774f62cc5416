"""Programs, their dependences and their schedules: everything decided before code is generated.

Only `errors` is directly in this folder; each subfolder describes its contents.  No C, CUDA or
OpenCL text is made here, and nothing is compiled or run.
"""
