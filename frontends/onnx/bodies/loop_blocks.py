"""Loop and Scan nodes whose bodies become blocks, see `frontends.onnx.bodies.loop_bodies`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto

from frontends.onnx.bodies.inline import body_model
from frontends.onnx.bodies.loop_bodies import Body, NoBlockError, Sequenced, as_block
from frontends.onnx.core.graph_names import captured_names
from frontends.onnx.core.node import Compute, Node, Unsupported, Value
from frontends.onnx.core.stages import TEXT, Array, Given
from frontends.onnx.core.symbolic_dims import Extent
from poly.errors import LanguageError, ModelError, ProgramError
from poly.ir.dtypes import BOOL, INT64, DType


def loop_block(
    node: Node, body: GraphProto, trips: Extent, states: Sequence[Value]
) -> Compute | None:
    """A Loop of a known trip count as a block: final states and rows; None if it cannot be one."""
    inner = GraphProto()
    inner.CopyFrom(body)
    del inner.output[0]  # the condition, which stays true
    trip, condition, *names = (v.name for v in body.input)
    rows = len(inner.output) - len(states)
    return _block(
        node, inner, trips, dict(zip(names, states, strict=True)), {},
        (Sequenced(0),) * rows, trip, {condition: np.array(True)},
    )  # fmt: skip


def scan_block(
    node: Node,
    body: GraphProto,
    length: Extent,
    states: Sequence[Value],
    sequences: Sequence[tuple[Value, Sequenced]],
    collected: Sequence[Sequenced],
    batch: Extent | None = None,
) -> Compute | None:
    """A Scan as a block: final states and collected sequences; None if it cannot be one.

    batch : the first extent of all operands and results, None if they have no such axis
    """
    names = [v.name for v in body.input]
    return _block(
        node, body, length,
        dict(zip(names[: len(states)], states, strict=True)),
        dict(zip(names[len(states) :], sequences, strict=True)),
        tuple(collected), batch=batch,
    )  # fmt: skip


def _block(
    node: Node,
    body: GraphProto,
    count: Extent,
    states: Mapping[str, Value],
    sequences: Mapping[str, tuple[Value, Sequenced]],
    collected: tuple[Sequenced, ...],
    trip: str = "",
    known: Mapping[str, Array] | None = None,
    batch: Extent | None = None,
) -> Compute | None:
    scope = node.surroundings
    try:
        captured = {name: scope.lookup(name) for name in captured_names(body)}
    except Unsupported:
        return None
    lead = 0 if batch is None else 1
    given = {n: Given(v.dtype, v.shape[lead:]) for n, v in states.items()}
    given |= {n: _part(v.dtype, v.shape[lead:], how) for n, (v, how) in sequences.items()}
    given |= {n: Given(v.dtype, v.shape, v.array) for n, v in captured.items()}
    given |= {n: Given(BOOL, a.shape, a) for n, a in (known or {}).items()}
    given |= {trip: Given(INT64, ())} if trip else {}
    if any(g.dtype == TEXT for g in given.values()):
        return None
    types = [given[v.name].dtype for v in body.input]
    free = {n: v.dtype for n, v in captured.items()}
    model = body_model(body, types, free, scope)
    try:
        graph = scope.graph_of(model, given)
        made = Body(graph, count, trip, states, sequences, captured, collected, batch)
        return as_block(node.operator.lower(), made)
    except (NoBlockError, ModelError, LanguageError, ProgramError):
        return None  # errors in a body are reported when it runs


def _part(dtype: DType, shape: tuple[Extent, ...], how: Sequenced) -> Given:
    """The type of a step's part of a sequence."""
    return Given(dtype, (*shape[: how.axis], *shape[how.axis + 1 :]))
