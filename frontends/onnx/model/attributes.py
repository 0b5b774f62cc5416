"""Attributes and operands of nodes, checked against the operator's schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.narrow_types import NARROW_TYPES, narrow_array
from frontends.onnx.core.node import Known, Node, Unsupported, Value
from frontends.onnx.core.schemas import added_schema
from frontends.onnx.core.tensors import (
    ELEMENT_TYPES,
    SCHEMA_TYPES,
    string_array,
    tensor_array,
    type_name,
)
from frontends.onnx.model.loading import describe
from poly.errors import ModelError

_A = AttributeProto
_T = onnx.defs.OpSchema.AttrType
_DECLARED = {
    _T.INT: _A.INT,
    _T.FLOAT: _A.FLOAT,
    _T.STRING: _A.STRING,
    _T.TENSOR: _A.TENSOR,
    _T.GRAPH: _A.GRAPH,
    _T.SPARSE_TENSOR: _A.SPARSE_TENSOR,
    _T.TYPE_PROTO: _A.TYPE_PROTO,
    _T.INTS: _A.INTS,
    _T.FLOATS: _A.FLOATS,
    _T.STRINGS: _A.STRINGS,
    _T.TENSORS: _A.TENSORS,
    _T.GRAPHS: _A.GRAPHS,
    _T.SPARSE_TENSORS: _A.SPARSE_TENSORS,
    _T.TYPE_PROTOS: _A.TYPE_PROTOS,
}
_SCALARS = {_A.INT: "i", _A.FLOAT: "f"}
_LISTS = {_A.INTS: "ints", _A.FLOATS: "floats"}


def schema_of(operator: str, opset: int, domain: str = "") -> onnx.defs.OpSchema | None:
    """The schema of an operator at an opset of its domain, None if it has none."""
    try:
        return onnx.defs.get_schema(operator, opset, domain)
    except onnx.defs.SchemaError:
        return added_schema(operator, domain)


def decode_attributes(
    node: NodeProto, schema: onnx.defs.OpSchema, folder: Path | None
) -> dict[str, object]:
    """Attributes as integers, floats, text, arrays and tuples of them.

    Raises
    ------
    ModelError : for attributes that the operator does not have, twice, or of the wrong type.
    Unsupported : for element types that programs cannot compute with.
    """
    result: dict[str, object] = {}
    for attribute in node.attribute:
        name = attribute.name
        where = f"{describe(node)}: attribute '{printable(name)}'"
        if name in result:
            raise ModelError(f"{where} is given twice")
        if attribute.ref_attr_name:
            raise ModelError(f"{where} refers to an attribute of a function, outside of any")
        declared = schema.attributes.get(name)
        if declared is None:
            raise ModelError(f"{where} does not exist in this opset")
        kind = attribute.type
        if _DECLARED.get(declared.type) != kind:
            raise ModelError(f"{where} has the wrong type")
        if kind in _SCALARS:
            result[name] = getattr(attribute, _SCALARS[kind])
        elif kind in _LISTS:
            result[name] = tuple(getattr(attribute, _LISTS[kind]))
        elif kind == _A.STRING:
            result[name] = attribute.s.decode("utf-8", "replace")
        elif kind == _A.STRINGS:
            result[name] = tuple(s.decode("utf-8", "replace") for s in attribute.strings)
        elif kind == _A.TENSOR:
            result[name] = _tensor(attribute.t, where, folder)
        elif kind == _A.GRAPH:
            result[name] = attribute.g
        else:
            result[name] = None  # types and sparse tensors, which no operator here uses
    for name, declared in schema.attributes.items():
        if declared.required and name not in result:
            raise ModelError(f"{describe(node)}: attribute '{name}' is missing")
    return result


def check_operands(node: Node, schema: onnx.defs.OpSchema) -> None:
    """Check the count and the element types of a node's inputs against the schema.

    Raises
    ------
    ModelError : if they do not fit.
    """
    count = len(node.inputs)
    if not schema.min_input <= count <= schema.max_input:
        wanted = (
            f"{schema.min_input}"
            if schema.min_input == schema.max_input
            else f"{schema.min_input} to {schema.max_input}"
        )
        raise node.fail(f"{count} inputs, but the operator takes {wanted}")
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        wanted = f"{schema.min_output} to {schema.max_output}"
        raise node.fail(f"{len(node.outputs)} outputs, but the operator has {wanted}")
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    bound: dict[str, Value] = {}
    for position, value in enumerate(node.inputs):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        variadic = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        if value is None:
            if formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
                raise node.fail(f"input '{formal.name}' is missing")
            continue
        _check_type(node, formal.type_str, formal.name, value, allowed)
        if variadic and not formal.is_homogeneous:
            continue
        first = bound.setdefault(formal.type_str, value)
        if first.dtype != value.dtype:
            raise node.fail(
                f"input '{formal.name}' is {value.dtype}, but another one is {first.dtype}"
            )


def _tensor(tensor: TensorProto, where: str, folder: Path | None) -> np.ndarray | Known:
    """The elements of an attribute; those of types of few bits are in a wider one."""
    if tensor.data_type in NARROW_TYPES:
        return Known(narrow_array(tensor, where, folder), NARROW_TYPES[tensor.data_type])
    if tensor.data_type == TensorProto.STRING:
        return string_array(tensor, where)
    if tensor.data_type not in ELEMENT_TYPES:
        raise Unsupported(f"a constant of type {type_name(tensor.data_type)}")
    return tensor_array(tensor, where, folder)


def _check_type(
    node: Node, type_str: str, formal: str, value: Value, allowed: Mapping[str, set[str]]
) -> None:
    name = f"tensor({SCHEMA_TYPES.get(value.dtype.name, value.dtype.name)})"
    types = allowed.get(type_str, {type_str})
    if name not in types:
        raise node.fail(f"input '{formal}' is {value.dtype}, which the operator does not accept")
