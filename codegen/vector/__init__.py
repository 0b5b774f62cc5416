"""Loops in vector lanes: vectorised, masked, transposed, and what stays in registers.

How vectors are spelt is in `codegen.c`.
"""
