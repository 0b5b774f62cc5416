"""Routines of a graph from what operators say about their form in C."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.onnx.core.node import InC
from frontends.onnx.core.symbolic_dims import Extent, extent_expr
from poly.ir.graph import Argument, Routine


def routine(
    name: str, in_c: InC, inputs: Sequence[str], outputs: Sequence[str], origin: str
) -> Routine:
    """A call of a form in C, on values of the graph."""
    scratch = in_c.scratch and (in_c.scratch[0], tuple(map(extent_expr, in_c.scratch[1])))
    arguments = tuple(map(_argument, in_c.arguments))
    return Routine(
        name, in_c.kind, tuple(inputs), tuple(outputs), arguments, in_c.mode, scratch, origin,
        in_c.failure,
    )  # fmt: skip


def _argument(given: Extent | float | tuple[Extent, ...]) -> Argument:
    """An argument over the sizes of the graph."""
    if isinstance(given, float):
        return given
    return tuple(map(extent_expr, given)) if isinstance(given, tuple) else extent_expr(given)
