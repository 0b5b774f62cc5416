"""Tensors of strings: no program computes with them, but opaque operators make and pass them on.

Labels of classes are often strings.  They are arrays of objects while a model runs, as ONNX
Runtime gives them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from frontends.onnx.core.limits import MAX_RANK
from frontends.onnx.core.node import Node, Opaque, Operator, Reshaped, Result, Same, Unsupported
from frontends.onnx.core.stages import TEXT, Array, Body
from poly.errors import ModelError

#: Operators of the default domain that give strings another shape, or none.
_PASSED_ON = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def string_array(tensor: TensorProto, what: str) -> np.ndarray:
    """The strings of a tensor of them.

    Raises
    ------
    ModelError : if there are not as many as the shape says.
    """
    shape = tuple(tensor.dims)
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        raise ModelError(f"{what} has the impossible shape {list(shape)[:MAX_RANK]}")
    if tensor.data_location == TensorProto.EXTERNAL or math.prod(shape) != len(tensor.string_data):
        raise ModelError(
            f"{what} of shape {list(shape)} needs {math.prod(shape)} strings, "
            f"but has {len(tensor.string_data)}"
        )
    array = np.empty(len(tensor.string_data), object)
    array[:] = [s.decode("utf-8", "replace") for s in tensor.string_data]
    return array.reshape(shape)


def on_strings(node: Node, function: Operator) -> Sequence[Result]:
    """What an operator makes of operands some of which are strings.

    Raises
    ------
    Unsupported : if it does more than pass them on.
    """
    if node.domain:
        return function(node)
    if node.operator == "Cast" and node.integer("to", 0) == TensorProto.STRING:
        return [Same(node.required(0))]
    if node.operator not in _PASSED_ON:
        raise Unsupported("an operand is a tensor of strings")
    (result,) = function(node)
    if not isinstance(result, Reshaped):
        return [result]
    shape = result.shape

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Array]:
        assert arrays[0] is not None
        return [arrays[0].reshape(shape)]

    return [Opaque((result.value,), run, (TEXT,))]
