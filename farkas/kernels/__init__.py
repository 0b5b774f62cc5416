"""`compile` and `Kernel`: a comprehension as a function of arrays.

Networks are in `farkas.networks`.
"""
