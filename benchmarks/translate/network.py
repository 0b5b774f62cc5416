"""`Network`: an ONNX file as a list of steps with their constants, easy to interpret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.kernel import Array, Shape


@dataclass(frozen=True)
class Step:
    """One node: its operator, attributes, and names of values (empty for absent inputs).

    opset : the version of the operators of the file
    known : constant inputs, by position
    shapes : shapes of the inputs, by position
    """

    op: str
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    known: dict[int, Array]
    shapes: dict[int, Shape]

    def get(self, name: str, default: Any) -> Any:
        """An attribute; bytes as text."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def ints(self, position: int, name: str) -> list[int]:
        """Integers that are an attribute in old opsets and an input in new ones."""
        if position in self.known:
            return [int(x) for x in self.known[position].reshape(-1)]
        return [int(x) for x in self.attributes[name]]


@dataclass(frozen=True)
class Network:
    """Steps in order; `constants` are the weights that steps read."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    constants: dict[str, Array]


class UnsupportedError(Exception):
    """The translator does not know an operator, or not in this form."""


#: The inputs that configure an operator, rather than being its operands.
_SETTINGS = {"Reshape": (1,), "Unsqueeze": (1,), "Squeeze": (1,), "ConstantOfShape": (0,),
             "Clip": (1, 2), "ReduceMean": (1,), "Dropout": (1, 2)}  # fmt: skip


def read_network(path: Path) -> Network:
    """Read a file, and fold what depends on constants only.

    Raises
    ------
    UnsupportedError : subgraphs, or an unknown operator on constants.
    """
    model = onnx.load(path)
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    graph = model.graph
    shapes = value_shapes(model)
    constants = {t.name: np.array(numpy_helper.to_array(t)) for t in graph.initializer}
    steps = []
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        step = Step(
            node.op_type,
            attributes,
            tuple(node.input),
            tuple(node.output),
            opset,
            {p: constants[n] for p, n in enumerate(node.input) if n in constants},
            {p: shapes[n] for p, n in enumerate(node.input) if n in shapes},
        )
        if all(n in constants for n in node.input if n) and node.op_type in _FOLDED:
            constants[node.output[0]] = _FOLDED[node.op_type](step)
        else:
            steps.append(step)
    read = {n for s in steps for p, n in enumerate(s.inputs) if p not in _SETTINGS.get(s.op, ())}
    return Network(
        tuple(i.name for i in graph.input if i.name not in constants),
        tuple(o.name for o in graph.output),
        tuple(steps),
        {n: a for n, a in constants.items() if n in read or n in {o.name for o in graph.output}},
    )


def value_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Shapes of all values for which they can be inferred."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.ir_version = max(bare.ir_version, 8)  # older versions require weights among the inputs
    for tensor in bare.graph.initializer:
        # Inference reads small integers only; without the weights it is quick.
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.ClearField("raw_data")
            tensor.ClearField("float_data")
    inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    found = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        dims = info.type.tensor_type.shape.dim
        if info.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found[info.name] = tuple(d.dim_value for d in dims)
    return found


def _fill(step: Step) -> Array:
    value = step.attributes.get("value")
    filler = numpy_helper.to_array(value) if value is not None else np.zeros(1, np.float32)
    return np.full([int(n) for n in step.known[0]], filler.reshape(-1)[0], filler.dtype)


def _unsqueeze(step: Step) -> Array:
    array = step.known[0]
    for axis in sorted(step.ints(1, "axes")):
        array = np.expand_dims(array, axis)
    return array


_FOLDED: dict[str, Callable[[Step], Array]] = {
    "Constant": lambda step: np.array(numpy_helper.to_array(step.attributes["value"])),
    "ConstantOfShape": _fill,
    "Unsqueeze": _unsqueeze,
    "Reshape": lambda step: step.known[0].reshape([int(n) for n in step.known[1]]),
}


def pool_padding(step: Step, rank: int) -> list[tuple[int, int]]:
    """Begin and end padding of each spatial dimension.

    Raises
    ------
    UnsupportedError : automatic padding.
    """
    if step.get("auto_pad", "NOTSET") != "NOTSET":
        raise UnsupportedError(f"{step.op} with automatic padding")
    pads = step.get("pads", [0] * 2 * rank)
    return list(zip(pads[:rank], pads[rank:], strict=True))
