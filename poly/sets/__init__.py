"""Expressions as isl's sets and maps and back, and what is proved with them alone.

That includes the proof that every access stays in bounds.  What is about the instances of a whole
program is in `poly.deps`.
"""
