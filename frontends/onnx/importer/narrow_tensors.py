"""Operators on tensors of few bits, see `frontends.onnx.core.narrow_types`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from frontends.onnx.core.narrow_types import CARRIERS, carried
from frontends.onnx.core.node import Known, Node, Operator, Result, Same, Unsupported

#: Operators that convert such tensors, and those that change nothing but the shape.
_CONVERT = frozenset({"DequantizeLinear", "Cast", "CastLike"})
_PASSED_ON = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Operators of com.microsoft that read such tensors themselves, as they read packed ones.
_READ = frozenset({"GatherBlockQuantized"})


def is_narrow(node: Node) -> bool:
    """Whether an operand has such a type."""
    return any(v is not None and v.dtype in CARRIERS for v in node.inputs)


def on_narrow(node: Node, function: Operator) -> Sequence[Result]:
    """The results of an operator with such operands, all of which are known.

    Raises
    ------
    Unsupported : if it computes with them.
    """
    first = node.required(0)
    if not node.domain and node.operator in _PASSED_ON:
        return function(node)
    if node.domain == "com.microsoft" and node.operator in _READ:
        return function(node)
    if not node.domain and node.operator == "Transpose" and first.array is not None:
        axes = node.ints("perm") or tuple(reversed(range(first.rank)))
        return [Known(np.transpose(first.array, axes), first.dtype)]
    known = node.domain in ("", "com.microsoft") and node.operator in _CONVERT
    if known and node.operator == "CastLike" and node.required(1).dtype in CARRIERS:
        if node.required(1).dtype == first.dtype:
            return [Same(first)]
        raise Unsupported(f"nothing is converted to {node.required(1).dtype} yet")
    if not known or first.dtype not in CARRIERS:
        narrow = next(v.dtype for v in node.inputs if v is not None and v.dtype in CARRIERS)
        raise Unsupported(f"the operator cannot process tensors of {narrow} yet")
    return function(replace(node, inputs=tuple(v and carried(v) for v in node.inputs)))
