"""Conversion of expressions to isl's sets and maps and back, and proofs with them alone.

That includes the proof that every access stays in bounds.  The instances of a whole program are in
`poly.deps`.
"""
