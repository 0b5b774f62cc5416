"""Derivatives of programs as programs: gradients, and directional derivatives.

What is made here is a program like any other: it is proved, printed and scheduled by others.
Losses, optimisers and training are in `farkas.training`.
"""
