"""C compilers, shared libraries, kernel calls, and the threads that run them.

Networks are in `runtime.network`.
"""
