"""Operators that the onnx package defines as functions of other operators.

Schemas are `onnx.defs.OpSchema`, whose type stubs lack the functions.
"""

from __future__ import annotations

from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, helper

from frontends.onnx.core.node import Node, Value
from frontends.onnx.core.symbolic_dims import Dim
from frontends.onnx.core.value_types import TYPE_NUMBERS
from frontends.onnx.model.loading import domain_of


def own_functions(model: ModelProto) -> dict[tuple[str, str, str], FunctionProto]:
    """The functions of a model, by domain, name and overload."""
    return {(domain_of(f.domain), f.name, f.overload): f for f in model.functions}


def key_of(node: NodeProto) -> tuple[str, str, str]:
    """What calls a function of a model."""
    return domain_of(node.domain), node.op_type, node.overload


def has_function(schema: Any) -> bool:
    """Whether the operator has a function body."""
    return bool(schema.has_function or schema.has_context_dependent_function)


def function_of(node: Node, schema: Any) -> FunctionProto | None:
    """The function body of a node at its opset, None if it has none."""
    data = b""
    version = _newest(schema.function_opset_versions, node.opset)
    if version:
        data = schema.get_function_with_opset_version(version)
    else:
        version = _newest(schema.context_dependent_function_opset_versions, node.opset)
        if version:
            types = [_type_of(v) for v in node.inputs]
            data = schema.get_context_dependent_function_with_opset_version(
                version,
                node.surroundings.proto.SerializeToString(),
                [t.SerializeToString() for t in types],
            )
    if not data:
        return None
    function = FunctionProto()
    function.ParseFromString(data)
    # Attributes that the node omits have the defaults of the schema.
    given = {a.name for a in function.attribute_proto}
    for name, declared in schema.attributes.items():
        if name not in given and declared.default_value.name:
            function.attribute_proto.append(declared.default_value)
    return function


def _newest(versions: list[int], opset: int) -> int:
    """The newest of the versions that are not newer than the opset; 0 if there is none."""
    return max((v for v in versions if v <= opset), default=0)


def _type_of(value: Value | None) -> TypeProto:
    if value is None:
        return TypeProto()
    shape = [None if isinstance(e, Dim) else e for e in value.shape]
    made: TypeProto = helper.make_tensor_type_proto(TYPE_NUMBERS[value.dtype], shape)
    return made
