"""If, Loop and Scan: known branches are inlined, and loops of few trips are unrolled.

Longer loops of a known number of trips, which may be an open size, become blocks of the language if
their bodies are comprehensions (`frontends.onnx.bodies.loop_blocks`).  All others run trip by
trip: the body is a model of its own, compiled for the shapes of its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    shape_inference,
)
from onnx import numpy_helper as nh

from frontends.onnx.bodies.inline import (
    body_model,
    constant_node,
    distinct_results,
    graph_body,
    handed_on,
)
from frontends.onnx.bodies.loop_blocks import loop_block, scan_block
from frontends.onnx.bodies.loop_bodies import Sequenced
from frontends.onnx.core.graph_names import captured_names
from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.narrow_types import load_external
from frontends.onnx.core.node import (
    Expanded,
    Node,
    Opaque,
    Result,
    Scope,
    Unsupported,
    Value,
    operator,
)
from frontends.onnx.core.stages import Array, Body, OpaqueFunction
from frontends.onnx.core.symbolic_dims import Dim, Extent, hint_of, holds_sizes
from frontends.onnx.core.tensors import ELEMENT_TYPES
from poly.errors import ModelError
from poly.ir.dtypes import BOOL, INT64, DType

#: The most nodes of an unrolled loop that cannot be a block …
MAX_UNROLLED = 512
#: … and of one that is unrolled without trying a block, because its steps can be merged.
MAX_SHORT = 64
#: The most bytes of a stored tensor that can be a shape or the like.
MAX_SHAPE_BYTES = 4096


@operator("If")
def branch(node: Node) -> Sequence[Result]:
    """The nodes of the branch that is taken; the import waits for the condition."""
    condition = node.known(0, "the condition")
    if condition is None or condition.size != 1 or condition.dtype != np.bool_:
        raise node.fail("the condition must be one bool")
    graph = node.subgraph("then_branch" if condition.reshape(-1)[0] else "else_branch")
    scope = node.surroundings
    return [Expanded(tuple(graph_body(graph, (), scope.proto.output, scope.prefix)))]


def _stacked(node: Node, parts: Sequence[str], axis: int, output: str) -> list[NodeProto]:
    """Nodes that join tensors along a new axis."""
    prefix, made = output + node.surroundings.prefix, []
    rows = [f"{prefix}row{n}" for n in range(len(parts))]
    if node.opset >= 13:
        made.append(constant_node(f"{prefix}axis", np.array([axis], np.int64)))
    for part, row in zip(parts, rows, strict=True):
        if node.opset >= 13:
            made.append(helper.make_node("Unsqueeze", [part, f"{prefix}axis"], [row]))
        else:
            made.append(helper.make_node("Unsqueeze", [part], [row], axes=[axis]))
    return [*made, helper.make_node("Concat", rows, [output], axis=axis)]


@operator("Loop")
def loop(node: Node) -> Sequence[Result]:
    """`body(trip, condition, state…) -> condition, state…, rows…` until the condition fails."""
    body, scope = distinct_results(node.subgraph("body")), node.surroundings
    state = list(scope.proto.input[2:])
    if len(body.input) != len(state) + 2 or len(body.output) < len(state) + 1:
        raise node.fail("the body does not fit the operands")
    if any(not name for name in state):
        raise Unsupported("omitted states of a loop")
    steady = _condition_stays(body, scope.folder)
    trips = _trips(node.optional(0), node.optional(1)) if steady else None
    if trips is not None and _is_long(trips, body):
        made = loop_block(node, body, trips, [scope.lookup(n) for n in state])
        if made is not None:
            return [made]
        few = hint_of(trips) * _cost(body) <= MAX_UNROLLED
        trips = int(trips) if few else None  # trip by trip, any number will do
    rows = len(body.output) - 1 - len(state)
    if trips is not None and (trips > 0 or not rows) and trips * _cost(body) <= MAX_UNROLLED:
        return [_unrolled_loop(node, body, state, trips)]
    return [_loop_trip_by_trip(node, body, state)]


def _prefix_of(scope: Scope, step: int) -> str:
    """The prefix of what one step of an unrolled body defines: what is beside it has a letter."""
    return f"{scope.prefix}{step}:"


def _unrolled_loop(node: Node, body: GraphProto, given: Sequence[str], trips: int) -> Expanded:
    """The nodes of all trips, from the initial states `given`."""
    scope, states = node.surroundings, len(given)
    nodes: list[NodeProto] = []
    condition = (*scope.proto.input, "", "")[1]
    if not condition:
        condition = f"{scope.prefix}condition"
        nodes.append(constant_node(condition, np.array(True)))
    state = list(given)
    collected: list[list[str]] = [[] for _ in body.output[1 + states :]]
    for trip in range(trips):
        number = f"{scope.prefix}trip{trip}"
        nodes.append(constant_node(number, np.array(trip, np.int64)))
        outputs = [f"{scope.prefix}out{trip}:{n}" for n in range(len(body.output))]
        prefix = _prefix_of(scope, trip)
        nodes += graph_body(body, [number, condition, *state], outputs, prefix)
        state = outputs[1 : 1 + states]
        for part, row in zip(collected, outputs[1 + states :], strict=True):
            part.append(row)
    nodes += handed_on(state, scope.proto.output[:states])
    for parts, output in zip(collected, scope.proto.output[states:], strict=False):
        if output:
            nodes += _stacked(node, parts, 0, output)
    return Expanded(tuple(nodes))


def _loop_trip_by_trip(node: Node, body: GraphProto, state: Sequence[str]) -> Opaque:
    """A loop whose body runs as a model of its own."""
    scope = node.surroundings
    values = [scope.lookup(n) for n in state]
    types = [INT64, BOOL, *(v.dtype for v in values)]
    captured, model, made_types = _body(node, body, types)
    types_out = [*types[2:], *made_types[1 + len(state) :]]
    free = [scope.lookup(n) for n in captured]
    operands = (node.optional(0), node.optional(1), *values, *free)
    run = _loop_run(body, model, len(state), captured)
    return Opaque(operands, run, tuple(types_out), (model,))


def _loop_run(
    body: GraphProto, model: ModelProto, states: int, captured: Sequence[str]
) -> OpaqueFunction:
    """The function that runs a loop on arrays: limit, condition, states, captured values."""
    inputs = [v.name for v in body.input]

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Array]:
        limit, go_on = arrays[0], arrays[1]
        most = None if limit is None else int(limit.reshape(-1)[0])
        condition = True if go_on is None else bool(go_on.reshape(-1)[0])
        values = _there(arrays[2 : 2 + states])
        outer = dict(zip(captured, _there(arrays[2 + states :]), strict=True))
        collected: list[list[Array]] = [[] for _ in body.output[1 + states :]]
        trip = 0
        while condition and (most is None or trip < most):
            own = [np.array(trip, np.int64), np.array(condition), *values]
            results = bodies[0]({**dict(zip(inputs, own, strict=True)), **outer})
            condition = bool(results[0].reshape(-1)[0])
            values = list(results[1 : 1 + states])
            for part, row in zip(collected, results[1 + states :], strict=True):
                part.append(row)
            trip += 1
        # no shapes of the states, which may change from trip to trip
        made = [
            np.stack(part) if part else _no_rows(body.output[1 + states + n], model, outer)
            for n, part in enumerate(collected)
        ]
        return [*(np.asarray(v) for v in values), *made]

    return run


def _there(arrays: Sequence[Array | None]) -> list[Array]:
    """Arrays of operands that are not omitted."""
    found = [a for a in arrays if a is not None]
    assert len(found) == len(arrays), "the operands were looked up"
    return found


def _condition_stays(body: GraphProto, folder: Path | None) -> bool:
    """Whether the body returns its condition unchanged, or a constant that is true."""
    producers = {o: n for n in body.node for o in n.output}
    stored = {t.name: t for t in body.initializer}
    name = body.output[0].name
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name == body.input[1].name:
        return True
    if name in stored:
        return _is_true(stored[name], folder)
    node = producers.get(name)
    if node is None or node.op_type != "Constant" or len(node.attribute) != 1:
        return False
    value = node.attribute[0]
    return value.name == "value" and _is_true(value.t, folder)


def _is_true(stored: TensorProto, folder: Path | None) -> bool:
    """Whether no element of a stored tensor is zero."""
    tensor = TensorProto()
    tensor.CopyFrom(stored)
    if tensor.data_location == TensorProto.EXTERNAL:
        load_external(tensor, folder)
    return bool(nh.to_array(tensor).all())


def _is_long(trips: Extent, body: GraphProto) -> bool:
    """Whether to try a block before unrolling."""
    return isinstance(trips, Dim) or trips * _cost(body) > MAX_SHORT


def _cost(body: GraphProto) -> int:
    """The nodes that a step makes at least."""
    return max(len(body.node), 1)


def _trips(count: Value | None, start: Value | None) -> Extent | None:
    """The trip count of a loop whose condition does not change, None if unknown."""
    if start is not None:
        if start.array is None:
            return None
        if not bool(start.array.reshape(-1)[0]):
            return 0
    if count is None or count.array is None or count.size != 1:
        return None
    (trips,) = count.array.reshape(-1)
    return max(trips if isinstance(trips, Dim) else int(trips), 0)


def _body(
    node: Node, body: GraphProto, types: Sequence[DType]
) -> tuple[list[str], ModelProto, list[DType]]:
    """The captured names of unknown values, the body as a model, the types of its outputs."""
    scope = node.surroundings
    captured: dict[str, DType | Array] = {}
    for name in captured_names(body):
        value = scope.lookup(name)
        array = value.array
        captured[name] = value.dtype if array is None or holds_sizes(array) else array
    model = body_model(body, types, captured, scope)
    given = [n for n, c in captured.items() if isinstance(c, DType)]
    return given, model, [_output_type(v, model) for v in body.output]


def _output_type(info: ValueInfoProto, model: ModelProto) -> DType:
    """The element type of an output of a body, declared or inferred."""
    found = ELEMENT_TYPES.get(_typed(info, model).type.tensor_type.elem_type)
    if found is None:
        inferred = shape_inference.infer_shapes(model).graph.output
        numbers = {v.name: v.type.tensor_type.elem_type for v in inferred}
        found = ELEMENT_TYPES.get(numbers.get(info.name, 0))
    if found is None:
        raise Unsupported(f"a body that does not give the type of '{printable(info.name)}'")
    return found


def _typed(info: ValueInfoProto, model: ModelProto) -> ValueInfoProto:
    """The declared type of an output; that of an input or an initializer is its own, which shape
    inference does not propagate.
    """
    for tensor in model.graph.initializer:
        if tensor.name == info.name:
            return helper.make_tensor_value_info(info.name, tensor.data_type, tensor.dims)
    return next((value for value in model.graph.input if value.name == info.name), info)


def _no_rows(output: ValueInfoProto, model: ModelProto, given: Mapping[str, Array]) -> Array:
    """The rows that a loop of no trips collects: none, of the shape of what the body computes.

    Extents that neither the body declares nor follow from the shapes of `given` are 0, as for ONNX
    Runtime; where they do follow, ONNX Runtime may still give 0.

    output : one of the body's outputs, as declared; model : the body; given : some of its inputs
    """
    known = ModelProto()
    known.CopyFrom(model)
    for value in known.graph.input:
        array = given.get(value.name)
        if isinstance(array, np.ndarray):  # and not a sequence
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    for tensor in known.graph.initializer:
        if len(tensor.raw_data) > MAX_SHAPE_BYTES:
            tensor.ClearField("raw_data")
    del known.graph.output[:]
    known.graph.output.append(_typed(output, model))
    tensor_type = shape_inference.infer_shapes(known).graph.output[0].type.tensor_type
    shape = [d.dim_value for d in tensor_type.shape.dim]
    dtype = ELEMENT_TYPES.get(tensor_type.elem_type)
    return np.zeros([0, *shape], None if dtype is None else dtype.numpy)


@dataclass(frozen=True, eq=False)
class _Scan:
    """A Scan since opset 9, whose operands have no batch axis.

    Attributes
    ----------
    given : the names of its operands, `states` initial states and then a name for each sequence
    length : the number of steps
    sequences, collected : the part of a step in each operand, and in each collected result
    """

    body: GraphProto
    given: tuple[str, ...]
    states: int
    length: Extent
    sequences: tuple[Sequenced, ...]
    collected: tuple[Sequenced, ...]

    @staticmethod
    def of(node: Node) -> _Scan:
        """The Scan of a node, checked.

        Raises
        ------
        ModelError : if its body, operands and attributes do not match.
        """
        body, given = distinct_results(node.subgraph("body")), node.surroundings.proto.input
        count = node.integer("num_scan_inputs", 0)
        states = len(given) - count
        if states < 0 or len(body.input) != len(given) or len(body.output) < states or not count:
            raise node.fail("the body does not fit the operands")
        values = [node.required(n) for n in range(states, len(given))]
        rows = len(body.output) - states
        axes = _listed(node, "scan_input_axes", count)
        axes = [node.axis(a, v.rank) for a, v in zip(axes, values, strict=True)]
        backward = _listed(node, "scan_input_directions", count)
        out_axes = _listed(node, "scan_output_axes", rows)
        out_backward = _listed(node, "scan_output_directions", rows)
        lengths = {v.shape[a] for a, v in zip(axes, values, strict=True)}
        if len(lengths) != 1:
            raise node.fail(f"sequences must be equally long, but have {sorted(lengths)} elements")
        (length,) = lengths
        sequences = [Sequenced(a, bool(b)) for a, b in zip(axes, backward, strict=True)]
        collected = [Sequenced(a, bool(b)) for a, b in zip(out_axes, out_backward, strict=True)]
        return _Scan(body, tuple(given), states, length, tuple(sequences), tuple(collected))


@operator("Scan")
def scan(node: Node) -> Sequence[Result]:
    """`body(state…, elements…) -> state…, rows…` over the elements of sequences."""
    if node.opset < 9:
        return [_scan_of_batches(node, distinct_results(node.subgraph("body")))]
    found = _Scan.of(node)
    body, length = found.body, found.length
    if _is_long(length, body):
        states = [node.surroundings.lookup(n) for n in found.given[: found.states]]
        values = [node.required(n) for n in range(found.states, len(found.given))]
        sequences = list(zip(values, found.sequences, strict=True))
        made = scan_block(node, body, length, states, sequences, found.collected)
        if made is not None:
            return [made]
        length = int(length)
    if length and length * (len(body.node) + 2 * len(found.sequences)) <= MAX_UNROLLED:
        return [_unrolled_scan(node, found, length)]
    return [_scan_step_by_step(node, found, length)]


def _unrolled_scan(node: Node, found: _Scan, length: int) -> Expanded:
    """The nodes of all steps."""
    scope, body, states = node.surroundings, found.body, found.states
    nodes: list[NodeProto] = []
    state = list(found.given[:states])
    collected: list[list[str]] = [[] for _ in found.collected]
    for step in range(length):
        elements = []
        for n, how in enumerate(found.sequences):
            position = length - 1 - step if how.backward else step
            place, element = (f"{scope.prefix}{what}{step}:{n}" for what in ("place", "in"))
            nodes.append(constant_node(place, np.array(position, np.int64)))
            part = [found.given[states + n], place]
            nodes.append(helper.make_node("Gather", part, [element], axis=how.axis))
            elements.append(element)
        outputs = [f"{scope.prefix}out{step}:{n}" for n in range(len(body.output))]
        nodes += graph_body(body, [*state, *elements], outputs, _prefix_of(scope, step))
        state = outputs[:states]
        for parts, row in zip(collected, outputs[states:], strict=True):
            parts.append(row)
    nodes += handed_on(state, scope.proto.output[:states])
    for n, output in enumerate(scope.proto.output[states:]):
        if output:
            how, parts = found.collected[n], collected[n]
            nodes += _stacked(node, parts[::-1] if how.backward else parts, how.axis, output)
    return Expanded(tuple(nodes))


def _scan_step_by_step(node: Node, found: _Scan, length: int) -> Opaque:
    """A Scan whose body runs as a model of its own."""
    scope = node.surroundings
    values = [scope.lookup(n) for n in found.given]
    types = [v.dtype for v in values]
    captured, model, made_types = _body(node, found.body, types)
    types_out = [*types[: found.states], *made_types[found.states :]]
    operands = (*values, *(scope.lookup(n) for n in captured))
    return Opaque(operands, _scan_run(found, model, length, captured), tuple(types_out), (model,))


def _scan_run(
    found: _Scan, model: ModelProto, length: int, captured: Sequence[str]
) -> OpaqueFunction:
    """The function that runs a Scan on arrays: states, sequences, captured values."""
    body, states, count = found.body, found.states, len(found.given)
    names = [v.name for v in body.input]

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Array]:
        state = _there(arrays[:states])
        outer = dict(zip(captured, _there(arrays[count:]), strict=True))
        sequences = [
            np.moveaxis(a, how.axis, 0)[:: -1 if how.backward else 1]
            for a, how in zip(_there(arrays[states:count]), found.sequences, strict=True)
        ]
        collected: list[list[Array]] = [[] for _ in found.collected]
        for step in range(length):
            own = [*state, *(np.ascontiguousarray(s[step]) for s in sequences)]
            results = bodies[0]({**dict(zip(names, own, strict=True)), **outer})
            state = list(results[:states])
            for parts, row in zip(collected, results[states:], strict=True):
                parts.append(row)
        made = []
        none = [np.empty(s.shape[1:], s.dtype) for s in sequences]
        shaped = {**dict(zip(names, [*state, *none], strict=True)), **outer}
        for n, (parts, how) in enumerate(zip(collected, found.collected, strict=True)):
            if parts:
                made.append(np.stack(parts[::-1] if how.backward else parts, how.axis))
            else:
                rows = _no_rows(body.output[states + n], model, shaped)
                made.append(np.moveaxis(rows, 0, how.axis))
        return [*(np.asarray(s) for s in state), *made]

    return run


def _listed(node: Node, name: str, count: int) -> list[int]:
    given = node.ints(name)
    if given is None:
        return [0] * count
    if len(given) != count:
        raise node.fail(f"{name} has {len(given)} entries for {count}")
    return list(given)


def _batched_block(
    node: Node, body: GraphProto, states: int, backward: Sequence[int]
) -> Result | None:
    """Scan of opset 8 as a block, if no sequence ends early."""
    operands = node.inputs[1:]
    if node.optional(0) is not None or any(v is None or v.rank < 1 for v in operands):
        return None
    values = [v for v in operands if v is not None]
    sequences = values[states:]
    if any(v.rank < 2 for v in sequences):
        return None
    (batch, *batches), (length, *lengths) = (
        [v.shape[0] for v in values], [v.shape[1] for v in sequences],
    )  # fmt: skip
    if not _is_long(length, body) or any(b != batch for b in batches) or batch == 0:
        return None
    if any(n != length for n in lengths):
        return None
    parts = [Sequenced(0, bool(b)) for b in backward]
    collected = [Sequenced(0)] * (len(body.output) - states)
    given = list(zip(sequences, parts, strict=True))
    return scan_block(node, body, length, values[:states], given, collected, batch)


def _scan_of_batches(node: Node, body: GraphProto) -> Result:
    """Scan of opset 8: every operand has a batch axis in front, and sequences end early."""
    scope = node.surroundings
    given = scope.proto.input[1:]
    count = node.integer("num_scan_inputs", 0)
    states = len(given) - count
    if states < 0 or len(body.input) != len(given) or not count:
        raise node.fail("the body does not fit the operands")
    backward = _listed(node, "directions", count)
    made = _batched_block(node, body, states, backward)
    if made is not None:
        return made
    types = [scope.lookup(n).dtype for n in given]
    captured, model, made_types = _body(node, body, types)
    names = [v.name for v in body.input]

    def run(arrays: Sequence[Array | None], bodies: Sequence[Body]) -> Sequence[Array]:
        lengths = arrays[0]
        outer = dict(zip(captured, _there(arrays[1 + len(given) :]), strict=True))
        operands = _there(arrays[1 : 1 + len(given)])
        if not len(operands[0]):
            raise ModelError(f"{node.origin}: the batch is empty")
        batches = []
        for b in range(len(operands[0])):
            state = [o[b] for o in operands[:states]]
            full = operands[states].shape[1]
            length = full if lengths is None else int(lengths[b])
            collected: list[list[Array]] = [[] for _ in range(len(body.output) - states)]
            for trip in range(length):
                own = [
                    o[b, length - 1 - trip if back else trip]
                    for o, back in zip(operands[states:], backward, strict=True)
                ]
                results = bodies[0]({**dict(zip(names, [*state, *own], strict=True)), **outer})
                state = list(results[:states])
                for parts, row in zip(collected, results[states:], strict=True):
                    parts.append(row)
            rows = []
            none = [np.empty(o.shape[2:], o.dtype) for o in operands[states:]]
            shaped = {**dict(zip(names, [*state, *none], strict=True)), **outer}
            for parts, output in zip(collected, body.output[states:], strict=True):
                found = np.stack(parts) if parts else _no_rows(output, model, shaped)
                padding = np.zeros((full - length, *found.shape[1:]), found.dtype)
                rows.append(np.concatenate([found, padding]))
            batches.append([*state, *rows])
        return [np.stack(parts) for parts in zip(*batches, strict=True)]

    types_out = [*types[:states], *made_types[states:]]
    operands = (node.optional(0), *(scope.lookup(n) for n in (*given, *captured)))
    return Opaque(operands, run, tuple(types_out), (model,))
