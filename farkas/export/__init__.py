"""Export of networks as C that needs nothing of Farkas: files with their header and weights.

The text is made by `codegen.c.module_text`; the command is in `farkas.cli`.
"""
