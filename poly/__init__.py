"""Programs, their dependences and their schedules: everything that is decided before code is
generated.

Only `errors` lies here itself; each folder says what it has.  No text of C, CUDA or OpenCL is made
here, and nothing is compiled or run.
"""
