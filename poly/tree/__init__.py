"""Schedule trees: their nodes, walks over them, and the steps of a script.

What a step does to a tree is in `poly.schedule`; whether that is legal, in `poly.deps`.
"""
