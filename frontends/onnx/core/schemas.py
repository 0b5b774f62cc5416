"""Schemas of operators that `onnx` does not know.

They are kept here and not in `onnx.defs`, where `onnx.reference` takes no two operators of a name.
A schema that is registered there comes first.
"""

from __future__ import annotations

from onnx.defs import OpSchema

_SCHEMAS: dict[tuple[str, str], OpSchema] = {}


def add_schema(schema: OpSchema) -> None:
    """Add the schema of an operator, for all opsets of its domain."""
    _SCHEMAS[schema.domain, schema.name] = schema


def added_schema(operator: str, domain: str) -> OpSchema | None:
    """The schema of an operator that was added here, None if there is none."""
    return _SCHEMAS.get((domain, operator))


def added_operators(domain: str) -> frozenset[str]:
    """Names of the operators of a domain whose schemas were added here."""
    return frozenset(name for own, name in _SCHEMAS if own == domain)
