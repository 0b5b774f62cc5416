"""C compilers, shared libraries, calls of kernels, and the threads that run them.

Networks are in `runtime.network`.
"""
