"""Networks and kernels as C that needs nothing of Farkas: files, their headers and weights.

The text is made by `codegen.c.module_text`; the command is in `farkas.cli`.
"""
