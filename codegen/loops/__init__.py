"""The loop IR, and the passes over it that apply to every target.

Vectors are in `codegen.vector`; GPU-only passes are in `codegen.gpu`.
"""
