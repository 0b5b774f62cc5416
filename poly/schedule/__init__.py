"""`Schedule`: a tree with its script and its proof, and the primitives that change it.

A primitive is a function from trees to trees here; whether the result is legal is decided in
`poly.deps`.  Which primitives to apply is decided in `poly.strategy`, or by the user.
"""
