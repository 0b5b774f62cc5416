"""Training of networks: losses and optimisers as comprehensions, and steps that are compiled.

Gradients come from `poly.gradients`.
"""
