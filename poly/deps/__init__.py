"""The instances and accesses of a program, its exact dependences, and whether a tree keeps them.

Nothing here changes a tree.
"""
