"""Graphs to equivalent graphs: calls are fused, constants folded, layouts chosen.

`pipeline` has them in order.  What happens to a single program is in `poly.rewrites`.
"""
