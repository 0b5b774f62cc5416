"""Farkas in JAX; see `farkas.frameworks.jax_op`.

>>> import farkas as fk
>>> matmul = fk.jax.op("C[i,j] +=! A[i,k] * B[k,j]")

`register` is for processes that only run what `jax.export` has stored.
"""

from farkas.frameworks.jax_op import JaxOperator, op
from farkas.frameworks.xla_kernels import register

__all__ = ["JaxOperator", "op", "register"]
