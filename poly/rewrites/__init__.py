"""Rewrites of programs to equivalent programs, before they are scheduled.

Each module is one rewrite.  Those that need a whole network are in `poly.graph_passes`.
"""
