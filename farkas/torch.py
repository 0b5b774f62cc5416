"""Farkas in torch; see `farkas.frameworks.torch_op`.

>>> import farkas as fk
>>> matmul = fk.torch.op("C[i,j] +=! A[i,k] * B[k,j]", name="mine::matmul")
"""

from farkas.frameworks.torch_op import TorchOperator, op

__all__ = ["TorchOperator", "op"]
