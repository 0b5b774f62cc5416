"""Tensors of strings: only opaque operators produce them and pass them on.

Labels of classes are often strings.  While a model runs they are arrays of objects, as in ONNX
Runtime.
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

#: Operators of the default domain that copy strings, maybe to another shape.
_PASSED_ON = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})


def string_array(tensor: TensorProto, what: str) -> np.ndarray:
    """The elements of a tensor of strings.

    Raises
    ------
    ModelError : if their number does not match the shape.
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
    """The results of an operator with operands that are strings.

    Raises
    ------
    Unsupported : if it does more than copy them.
    """
    if node.domain:
        return function(node)
    if node.operator == "Cast" and node.integer("to", 0) == TensorProto.STRING:
        return [Same(node.required(0))]
    if node.operator not in _PASSED_ON:
        raise Unsupported("the operator cannot process tensors of strings yet")
    (result,) = function(node)
    if not isinstance(result, Reshaped):
        return [result]
    shape = result.shape

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Array]:
        assert arrays[0] is not None
        return [arrays[0].reshape(shape)]

    return [Opaque((result.value,), run, (TEXT,))]
