"""The loop IR, and passes over it that hold for every target.

Vectors are in `codegen.vector`; what only GPUs have, in `codegen.gpu`.
"""
