"""Networks and kernels as code that needs nothing of Farkas: C, libraries, wheels, WebAssembly.

The C is made by `codegen.c.module_text`, all else from it; the command is in `farkas.cli`.
"""
