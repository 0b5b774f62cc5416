"""Farkas in JAX; see `farkas.frameworks.jax_op`.

>>> import farkas as fk
>>> matmul = fk.jax.op("C[i,j] +=! A[i,k] * B[k,j]")
"""

from farkas.frameworks.jax_op import JaxOperator, op

__all__ = ["JaxOperator", "op"]
