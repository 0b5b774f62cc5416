"""The values that the pipeline passes on: element types, expressions, programs, graphs, layouts,
instructions.

All of them are frozen, and none of them knows isl: that begins with `poly.sets`.  The C text of an
instruction is a value like its meaning, which only `codegen` looks into.
"""
