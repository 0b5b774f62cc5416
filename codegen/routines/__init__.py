"""Functions in C, written by hand, for operators that are not comprehensions.

C that is exported calls them (`poly.ir.graph.Routine`); Farkas itself computes these with numpy.
"""
