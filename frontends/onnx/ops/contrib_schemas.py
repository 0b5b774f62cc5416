"""Operators of ONNX Runtime's own domain, declared with their schemas, and their expansion.

Types, operands and attributes are those that ONNX Runtime documents (``ContribOperators.md`` in its
repository).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, defs, helper

from frontends.onnx.bodies.inline import constant_node, handed_on
from frontends.onnx.core.node import Expanded, Node, Operator, operator
from frontends.onnx.core.schemas import add_schema

DOMAIN = "com.microsoft"

_Kind = defs.OpSchema.AttrType
_Option = defs.OpSchema.FormalParameterOption
_KINDS = {
    "int": _Kind.INT,
    "float": _Kind.FLOAT,
    "string": _Kind.STRING,
    "ints": _Kind.INTS,
    "floats": _Kind.FLOATS,
    "strings": _Kind.STRINGS,
}


def contrib(
    name: str,
    inputs: str,
    outputs: str,
    types: Mapping[str, str],
    *,
    domain: str = DOMAIN,
    **attributes: str,
) -> Callable[[Operator], Operator]:
    """Register the function for an operator, and its schema.

    inputs, outputs : as ``X:T bias:T?``, where ``?`` is for what may be omitted, ``*`` for one or
    more operands of several types, and ``*?`` for any number of them
    types : for each type parameter, the element types, as ``int8 uint8``
    domain : "" for an operator that ONNX Runtime adds to the default domain
    attributes : their types, as ``ints``, with ``!`` for those that are required
    """
    schema = defs.OpSchema(
        name,
        domain,
        1,
        inputs=[_parameter(text) for text in inputs.split()],
        outputs=[_parameter(text) for text in outputs.split()],
        type_constraints=[
            (parameter, [f"tensor({t})" for t in elements.split()], "")
            for parameter, elements in types.items()
        ],
        attributes=[
            defs.OpSchema.Attribute(key, _KINDS[kind.rstrip("!")], "", required=kind.endswith("!"))
            for key, kind in attributes.items()
        ],
    )
    add_schema(schema)
    return operator(name, domain=domain)


def _parameter(text: str) -> defs.OpSchema.FormalParameter:
    name, type_ = text.split(":")
    several, may_miss = "*" in type_, type_.endswith("?")
    option = _Option.Variadic if several else _Option.Optional if may_miss else _Option.Single
    return defs.OpSchema.FormalParameter(
        name, type_.rstrip("?*"), "", param_option=option, is_homogeneous=not several,
        min_arity=0 if several and may_miss else 1,
    )  # fmt: skip


class Body:
    """The nodes that take the place of a node, as they are written.

    They have its name, so that messages tell it.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.inputs = tuple(node.surroundings.proto.input)
        self.nodes: list[NodeProto] = []

    def input(self, position: int) -> str:
        """The name of an input, "" if it is omitted."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def add(
        self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> str:
        """Add a node; returns the name of its first output, to which the others append numbers.

        Attributes that are empty lists, which ONNX cannot tell the type of, are omitted.
        """
        name = self._fresh()
        attributes = {key: value for key, value in attributes.items() if value != ()}
        names = [name, *(f"{name}_{n}" for n in range(1, outputs))]
        made = helper.make_node(
            kind, list(inputs), names, name=self.node.name, domain=domain, **attributes
        )
        self.nodes.append(made)
        return name

    def constant(self, array: np.ndarray) -> str:
        """Add an array."""
        name = self._fresh()
        self.nodes.append(constant_node(name, array))
        return name

    def expanded(self, opset: int, *results: str) -> Expanded:
        """All nodes, of an opset, with names of the values that are the node's outputs."""
        scope = self.node.surroundings
        nodes = (*self.nodes, *handed_on(results, scope.proto.output))
        return Expanded(nodes, {**scope.versions, "": opset})

    def _fresh(self) -> str:
        return f"{self.node.surroundings.prefix}{len(self.nodes)}"
