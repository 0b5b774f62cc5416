"""Farkas in torch; see `farkas.frameworks.torch_op` and `farkas.frameworks.torch_backend`.

>>> faster = torch.compile(model, backend="farkas")

>>> import farkas as fk
>>> matmul = fk.torch.op("C[i,j] +=! A[i,k] * B[k,j]", name="mine::matmul")
"""

from farkas.frameworks.torch_backend import backend
from farkas.frameworks.torch_graph import Report, reports
from farkas.frameworks.torch_op import TorchOperator, op

__all__ = ["Report", "TorchOperator", "backend", "op", "reports"]
