"""Loops in vector lanes: vectorisation, masking, transposition, and register allocation.

The C text of vectors is in `codegen.c`.
"""
