"""Farkas in torch; see `farkas.frameworks.torch_op` and `farkas.frameworks.torch_backend`.

>>> faster = torch.compile(model, backend="farkas")

>>> import farkas as fk
>>> matmul = fk.torch.op("C[i,j] +=! A[i,k] * B[k,j]", name="mine::matmul")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farkas.frameworks.torch_backend import backend
    from farkas.frameworks.torch_graph import Report, reports
    from farkas.frameworks.torch_op import TorchOperator, op

__all__ = ["Report", "TorchOperator", "backend", "op", "reports"]

#: The modules of the names: a process that runs what is cached loads no compiler.
_HOMES = {
    "Report": "torch_graph",
    "TorchOperator": "torch_op",
    "backend": "torch_backend",
    "op": "torch_op",
    "reports": "torch_graph",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'farkas.torch' has no attribute {name!r}")
    value = getattr(import_module(f"farkas.frameworks.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
