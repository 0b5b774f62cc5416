"""Tensors of strings: only opaque operators produce them and pass them on.

Labels of classes are often strings.  While a model runs they are arrays of objects, as in ONNX
Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from frontends.onnx.core.node import Node, Opaque, Operator, Reshaped, Result, Same, Unsupported
from frontends.onnx.core.stages import TEXT, Array, Body

#: Operators of the default domain that copy strings, maybe to another shape.
_PASSED_ON = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
#: Those that make numbers of strings.
_COMPUTED = frozenset({"TfIdfVectorizer"})


def on_strings(node: Node, function: Operator) -> Sequence[Result]:
    """The results of an operator with operands that are strings.

    Raises
    ------
    Unsupported : if it does more than copy them.
    """
    if node.domain or node.operator in _COMPUTED:
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
