"""Rewrites of graphs to equivalent graphs: calls are fused, constants folded, layouts chosen.

`pipeline` lists them in order.  Rewrites of single programs are in `poly.rewrites`.
"""
