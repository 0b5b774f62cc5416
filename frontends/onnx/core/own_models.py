"""Models that Farkas makes itself, of what is not ONNX, for its own importer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import helper

from frontends.onnx.core.tensors import ELEMENT_TYPES

#: The domain of operators that are Farkas's own.
DOMAIN = "farkas"
#: The version of ONNX's operators in these models, and of their files.
_OPSET, _FILE = 21, 10
#: The number of an element type in the file format, by its name.
NUMBERS = {dtype.name: number for number, dtype in ELEMENT_TYPES.items()}

#: The name of a value, its element type, and its shape; None where that is not declared.
Declared = tuple[str, str, Sequence[Any] | None]


def model_bytes(
    name: str,
    nodes: Sequence[Any],
    inputs: Sequence[Declared],
    outputs: Sequence[Declared],
    constants: Sequence[Any],
) -> bytes:
    """The bytes of a model; the same for the same parts, so that the cache finds it.

    nodes : ONNX nodes in order; constants : tensors with names
    """
    begins, ends = (
        [helper.make_tensor_value_info(n, NUMBERS[dtype], shape) for n, dtype, shape in values]
        for values in (inputs, outputs)
    )
    graph = helper.make_graph(nodes, name, begins, ends, constants)
    versions = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=_FILE)
    data: bytes = model.SerializeToString(deterministic=True)
    return data
