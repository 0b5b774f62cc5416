"""Functions in C, written by hand, for operators that are not comprehensions.

Nodes of a graph for a processor call them (`poly.ir.graph.Routine`).
"""
