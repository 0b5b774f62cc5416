"""Copies of tensors near their uses: the elements copied, their layout, and padding.

Fragments of tensor instructions are such copies, too.  The primitives that create them are in
`poly.schedule`.
"""
