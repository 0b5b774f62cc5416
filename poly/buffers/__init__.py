"""Copies of tensors near where they are used: what is copied, where it lies, how it is padded.

Fragments of tensor instructions are such copies, too.  The primitives that ask for them are in
`poly.schedule`.
"""
