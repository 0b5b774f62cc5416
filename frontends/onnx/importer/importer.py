"""Import of ONNX models: nodes in order become calls of programs, views and constants.

Shapes are static here.  Operators (`frontends.onnx.ops.registry`) infer shapes as they go: the
outputs of a node have the shapes of its program's outputs, and these are checked against what
the model claims.  Where shapes or elements are not known yet, the import stops and continues in
another stage (`frontends.onnx.core.stages`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from frontends.onnx.bodies.inline import function_body
from frontends.onnx.core.graph_names import used_names
from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.limits import MAX_DEPTH, MAX_FOLDED, MAX_GENERATED_BYTES, MAX_NODES
from frontends.onnx.core.narrow_types import CARRIERS
from frontends.onnx.core.node import (
    Compute,
    Expanded,
    InC,
    Known,
    Node,
    NotKnownError,
    Opaque,
    Operand,
    Operator,
    Reshaped,
    Result,
    Same,
    Scope,
    Unsupported,
    Value,
    find_operator,
)
from frontends.onnx.core.stages import NO_TENSOR, TEXT, Given, OpaqueCall, Pending, Routines, Stage
from frontends.onnx.core.symbolic_dims import CURRENT, Dim, concrete, holds_sizes
from frontends.onnx.core.value_types import (
    Shapes,
)
from frontends.onnx.importer.environment import CloseError, Environment
from frontends.onnx.importer.folding import fold, foldable
from frontends.onnx.importer.narrow_tensors import is_narrow, on_narrow
from frontends.onnx.importer.routines import routine
from frontends.onnx.importer.string_tensors import on_strings
from frontends.onnx.model.attributes import check_operands, decode_attributes, schema_of
from frontends.onnx.model.functions import function_of, has_function, key_of, own_functions
from frontends.onnx.model.loading import (
    describe,
    domain_of,
    opsets_of,
    shown_name,
    shown_operator,
)
from frontends.onnx.model.source import (
    Source,
    given_inputs,
    infer_types,
    open_model,
    reported,
    why_no_schema,
    withdrawn,
)
from poly.errors import (
    LanguageError,
    ModelError,
    ProgramError,
    UnsupportedModelError,
    UnsupportedNode,
)
from poly.ir.dtypes import DType
from poly.ir.expr import sizes_of
from poly.ir.graph import Call, Graph, View

__all__ = ["import_model", "import_stage"]

#: The outputs of programs that a node calls before others.
_Before = dict[Compute, Sequence[Value | np.ndarray]]


@reported
def import_stage(
    source: Source,
    given: Mapping[str, Given],
    pending: Sequence[Pending] | None = None,
    routines: Routines = Routines.NONE,
) -> Stage:
    """Import as much as can be compiled of a model, or of the nodes that an earlier stage left.

    Parameters
    ----------
    given : the values to start from: inputs, and results of earlier stages
    routines : which operators without comprehensions become routines of the graph

    Raises
    ------
    ModelError : an inconsistent model.
    UnsupportedModelError : a valid model with nodes that cannot be compiled; it names them all.
    """
    while True:
        try:
            return Importer(source, given, pending, routines).stage()
        except CloseError as error:
            given = {n: g.closed(error.names) for n, g in given.items()}


@reported
def import_model(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    shapes: Shapes | None = None,
) -> Graph:
    """The graph of a whole model, every value of which has a concrete shape.

    Parameters
    ----------
    source : a path, the bytes of a file, or a message (which is not changed)
    shapes : sizes of dynamic dimensions: the shape of an input by the input's name, or the
        size of a dimension by the dimension's name

    Raises
    ------
    ModelError : a file that is broken, hostile or inconsistent, or a dynamic dimension that
        `shapes` does not give.
    UnsupportedModelError : a valid model with nodes that cannot be compiled; it names them all.
    ArgumentError : `shapes` that do not fit the model.
    """
    opened = open_model(source)
    return Importer(opened, given_inputs(opened, shapes)).graph()


def _elements(value: Value) -> np.ndarray:
    """The elements of a known value, with open sizes as they are in the arrays at hand."""
    assert value.array is not None
    return value.array if value.dtype == TEXT else concrete(value.array, value.dtype.numpy)


class Importer(Environment):
    """One import: nodes in order become calls, as far as enough is known."""

    def __init__(
        self,
        source: Source,
        given: Mapping[str, Given],
        pending: Sequence[Pending] | None = None,
        routines: Routines = Routines.NONE,
    ) -> None:
        super().__init__(source, given, is_first=pending is None)
        self.routines = routines
        self.work = deque(source.nodes if pending is None else pending)
        self.functions = own_functions(self.model)
        self.opaque: list[OpaqueCall] = []
        self.rest: list[Pending] = []
        self.demands: dict[str, None] = {}
        self.postponed: list[UnsupportedNode] = []  # nodes that only a later stage can import
        self.inferred: dict[str, tuple[DType, tuple[int, ...]]] | None = None
        self.generated = self.expanded = 0

    def graph(self) -> Graph:
        """The whole model as one graph."""
        self._run()
        if self.unsupported or self.postponed:
            raise UnsupportedModelError(tuple(self.unsupported + self.postponed))
        return self._graph(
            self.inputs, [self._output(name) for name in self.source.outputs], keep=True
        )

    def stage(self) -> Stage:
        """As much as can be compiled now."""
        self._run()
        if self.unsupported:
            raise UnsupportedModelError(tuple(self.unsupported))
        strings = any(self._is_text(name) for name in self.source.outputs)
        if self.is_first and not (self.rest or self.opaque or strings):
            outputs_ = [self._output(name) for name in self.source.outputs]
            graph = self._graph(self.inputs, outputs_, keep=True)
            self.used.update(self.given)  # the graph has all inputs, and checks their shapes
            return Stage(graph, {}, {}, is_whole=True, **self._validity(graph))
        needs = set(self.source.outputs) | self.demands.keys()
        needs |= {name for p in self.rest for name in used_names(p.node)}
        needs |= {name for call in self.opaque for name in call.inputs if name}
        results: dict[str, str] = {}
        known: dict[str, np.ndarray] = {}
        outputs: dict[str, None] = {}
        for name in sorted(needs):
            if name in self.tainted or (name not in self.env and not self._is_stored(name)):
                continue  # what is defined later, or captured and not used here
            value = self._value(name)
            if isinstance(value, str):
                continue
            if value.dtype in CARRIERS and self._is_stored(name):
                continue  # it is read again
            if value.array is not None:
                # Values that depend on open sizes are computed, and known again in the next stage.
                if not holds_sizes(value.array):
                    known[name] = value.array
                    continue
                self._operand(value, name)
            results[name] = self.labels[value.name]
            if value.name not in self.inputs and value.dtype != TEXT:
                outputs[value.name] = None
        part: Graph | None = None
        if outputs:
            part = self._graph(self.inputs, list(outputs), keep=False)
        return Stage(
            part,
            results,
            known,
            tuple(self.opaque),
            frozenset(self.demands),
            tuple(self.rest),
            frozenset(needs),
            **self._validity(part),
        )

    def _graph_of(self, body: ModelProto, given: Mapping[str, Given]) -> Graph:
        """The graph of a body, whose open sizes are those of this import."""
        inner = Importer(open_model(body), given)
        inner.sizes, inner.size_origins = self.sizes, self.size_origins
        graph = inner.graph()
        return replace(graph, sizes=self.sizes.names, derived=self.sizes.derived())

    def _run(self) -> None:
        """Import every node for which enough is known."""
        token = CURRENT.set(self.sizes)
        try:
            self._declare_inputs()
            while self.work:
                self._import_node(self.work.popleft())
        finally:
            CURRENT.reset(token)
        for name in self.source.outputs:
            if name in self.tainted or name in self.hosted or self.unsupported:
                continue
            value = self._value(name)
            if isinstance(value, str):
                raise ModelError(f"output '{printable(name)}' {value}")
            if value.dtype in CARRIERS:
                raise ModelError(
                    f"output '{printable(name)}' is a tensor of {value.dtype}, which cannot be "
                    "returned; cast it to a wider type"
                )

    # --- nodes ---

    def _import_node(self, pending: Pending) -> None:
        """Import a node; if it has to wait, still find out whether it can be compiled."""
        proto = pending.node
        unverified = any(n in self.tainted for n in used_names(proto))
        before = len(self.nodes), len(self.opaque)
        try:
            self._import_known(pending, unverified)
        except NotKnownError as reason:
            if not unverified:
                self.demands[self.labels[reason.value.name]] = None
                self.postponed.append(self._reported(pending, str(reason)))
            unverified = True
            self._skip(proto)
        except Unsupported as reason:
            self.unsupported.append(self._reported(pending, str(reason)))
            self._skip(proto)
        except ModelError:
            if not unverified:
                raise
            self._skip(proto)  # its operands may not have these types
        if unverified:
            self._undo(*before)
            self.rest.append(pending)
            self.tainted.update(filter(None, proto.output))

    def _undo(self, nodes: int, opaque: int) -> None:
        """Forget what a node that has to wait has added.

        Extents that only it has asked for so far are values of the graph no more.
        """
        for node in self.nodes[nodes:]:
            for name in node.outputs:
                self.values.pop(name, None)
        del self.nodes[nodes:], self.opaque[opaque:]

    def _import_known(self, pending: Pending, unverified: bool) -> None:
        proto, domain = pending.node, domain_of(pending.node.domain)
        own = self.functions.get(key_of(proto))
        if own is not None:
            versions = opsets_of(own)
            if not unverified:
                body = function_body(own, proto, self._prefix(pending))
                self._expand(pending, Expanded(tuple(body), versions))
            else:
                self._skip(proto)
            return
        node, schema = self._node(pending)
        if node is None:
            self._skip(proto)
            return
        function = find_operator(proto.op_type, node.opset, domain)
        results: Sequence[Result]
        asked = self.sizes.asked
        try:
            if function is None:
                raise Unsupported("there is no comprehension for this operator yet")
            results = self._results(node, function)
        except NotKnownError:
            raise
        except (LanguageError, ProgramError, TypeError, ValueError, AttributeError) as error:
            names = self._open_names(node)
            if not names:
                raise
            raise CloseError(names, proto) from error
        except ModelError as error:
            # What is refused for open sizes may be sound for those of the arrays.
            names = frozenset() if unverified else self._open_names(node)
            if not names:
                raise
            refused = "" if self.sizes.asked > asked else self.by_origin(str(error))
            raise CloseError(names, proto, refused) from error
        except Unsupported as reason:
            found = function_of(node, schema)
            if found is None:
                raise reason
            body = function_body(found, proto, self._prefix(pending))
            results = [Expanded(tuple(body), {**pending.versions, **opsets_of(found)})]
        for result in results:
            if isinstance(result, Expanded) and not unverified:
                self._expand(pending, result)
            elif isinstance(result, Opaque):
                self._call_opaque(pending, node, result, unverified)
            if isinstance(result, (Expanded, Opaque)):
                if unverified:
                    self._skip(proto)
                return
        self._define(proto, node, results)

    def _results(self, node: Node, function: Operator) -> Sequence[Result]:
        """What an operator makes of a node, whose operands may be of types of few operators."""
        if any(v is not None and v.dtype == TEXT for v in node.inputs):
            return on_strings(node, function)
        return on_narrow(node, function) if is_narrow(node) else function(node)

    def _open_names(self, node: Node) -> frozenset[str]:
        """The names of the axes whose open sizes appear in the operands of a node."""
        extents = [e for v in node.inputs if v is not None for e in v.shape]
        for value in node.inputs:
            if value is not None and value.array is not None and holds_sizes(value.array):
                extents += list(value.array.reshape(-1))
        sizes = {s for e in extents if isinstance(e, Dim) for s in sizes_of(e.full)}
        return frozenset(self.size_origins[s] for s in sizes)

    def _prefix(self, pending: Pending) -> str:
        """A prefix that no other name of the model has, because names of outputs are distinct."""
        return next(filter(None, pending.node.output), "") + self.source.separator

    def _expand(self, pending: Pending, result: Expanded) -> None:
        """Import the nodes of a body next."""
        self.expanded += len(result.nodes)
        if pending.depth >= MAX_DEPTH or self.expanded > MAX_NODES:
            where = describe(pending.node)
            raise ModelError(f"{where}: functions are nested too deeply, or call themselves")
        versions = pending.versions if result.versions is None else result.versions
        self.work.extendleft(
            Pending(n, versions, pending.depth + 1) for n in reversed(result.nodes)
        )

    def _call_opaque(self, pending: Pending, node: Node, result: Opaque, unverified: bool) -> None:
        """Run an opaque operator after what was imported, or now if its operands are known."""
        names = pending.node.output
        inputs = tuple("" if v is None else self.labels[v.name] for v in result.inputs)
        call = OpaqueCall(
            node.operator, node.origin, inputs, tuple(names), result.run, result.bodies
        )
        if not result.bodies and all(
            v is None or (v.array is not None and v.size <= MAX_FOLDED) for v in result.inputs
        ):
            arrays = [None if v is None else _elements(v) for v in result.inputs]
            for name, array in zip(names, call(arrays), strict=False):
                if name:
                    self._bind(name, self._known(name, array), unverified=False)
            return
        if self.routines != Routines.NONE and not unverified:
            if result.decides is not None and self.routines == Routines.ALL:
                raise NotKnownError("it decides about shapes", result.decides)
            in_c = result.in_c
            if in_c is not None and not (in_c.is_slow and self.routines == Routines.FAST):
                self._call_routine(node, result, in_c, names)
                return
        for v in result.inputs:
            if v is not None and v.array is not None:
                _elements(v)  # the function may have taken open sizes from it
        reason = "it has no comprehension, and so cannot be part of a single graph"
        self.postponed.append(self._reported(pending, reason))
        self.opaque.append(call)
        self._skip(pending.node)
        for name, dtype in zip(names, result.types, strict=False):
            if name in self.source.claims:
                self.source.claims[name].check_type(dtype, f"value '{printable(name)}'")
            if name and dtype == NO_TENSOR:
                self._host(name)

    def _call_routine(self, node: Node, result: Opaque, in_c: InC, names: Sequence[str]) -> None:
        """Call the form in C of an opaque operator."""
        name = self._node_name(node)
        operands: list[Value | np.ndarray] = [
            v for v in result.inputs[: in_c.operands] if v is not None
        ]
        operands += in_c.tables
        inputs = tuple(self._operand(o, f"{name}_{n}") for n, o in enumerate(operands))
        outputs = []
        labels = chain(names, repeat(""))
        for label, dtype, shape in zip(labels, result.types, in_c.shapes, strict=False):
            own = self._name(label) if label else self.mangle.fresh(f"{name}_output")
            outputs.append(own)
            value = self._declare(Value(own, dtype, tuple(shape)))
            if label:
                self._bind(label, value, unverified=False)
        self.nodes.append(routine(name, in_c, inputs, outputs, node.origin))

    def _reported(self, pending: Pending, reason: str) -> UnsupportedNode:
        proto = pending.node
        opset = pending.versions.get(domain_of(proto.domain), 0)
        name, operator = shown_name(proto), shown_operator(proto)
        return UnsupportedNode(printable(name), printable(operator), opset, reason)

    def _node(self, pending: Pending) -> tuple[Node | None, onnx.defs.OpSchema]:
        """The node as operators see it; None if an operand has no value because of an error."""
        proto, domain = pending.node, domain_of(pending.node.domain)
        if not domain and domain not in pending.versions:
            raise ModelError("the model imports no opset of the default domain")
        opset = pending.versions.get(domain, 0)
        schema = schema_of(proto.op_type, opset, domain) if opset else None
        if schema is None:
            raise Unsupported(why_no_schema(proto.op_type, opset, domain))
        if schema.deprecated and withdrawn(proto.op_type, domain):
            raise Unsupported(f"the operator was withdrawn by opset {schema.since_version}")
        if find_operator(proto.op_type, opset, domain) is None and not has_function(schema):
            raise Unsupported("there is no comprehension for this operator yet")
        attributes = decode_attributes(proto, schema, self.folder)
        operands: list[Value | None] = []
        missing = False
        for name in proto.input:
            value = self._value(name) if name else None
            if isinstance(value, str):
                if name not in self.tainted:
                    raise Unsupported(f"input '{printable(name)}' {value}")
                missing = True
                value = None
            operands.append(value)
        if missing:
            return None, schema
        while operands and operands[-1] is None:
            operands.pop()
        outputs = [bool(name) for name in proto.output]
        while outputs and not outputs[-1]:
            outputs.pop()
        shown = shown_name(proto)
        scope = Scope(
            proto,
            self.model,
            pending.versions,
            self._prefix(pending),
            self.folder,
            self._lookup,
            self._graph_of,
        )
        node = Node(
            proto.op_type, shown, opset, tuple(operands), tuple(outputs), attributes, scope, domain
        )
        check_operands(node, schema)
        return node, schema

    def _skip(self, proto: NodeProto) -> None:
        """Define the outputs of a node that was not imported, as far as their types are known."""
        if self.inferred is None:
            self.inferred = infer_types(self.model) if self.is_first else {}
        for name in filter(None, proto.output):
            self.tainted.add(name)
            known = self.inferred.get(name)
            if known is None:
                self.env[name] = "has an unknown type"
            else:
                self.env[name] = self._declare(Value(self._name(name), *known))

    def _define(self, proto: NodeProto, node: Node, results: Sequence[Result]) -> None:
        """Define the outputs of a node from the results of its operator."""
        names = iter(proto.output)
        unverified = any(n in self.tainted for n in proto.input)
        for result in results:
            if isinstance(result, Compute):
                self._compute(node, result, names, unverified)
                continue
            assert not isinstance(result, (Opaque, Expanded)), "these define all outputs at once"
            name = next(names, "")
            if name:
                self._bind(name, self._plain(node, result, name), unverified)
        for name in names:
            if name:
                raise Unsupported(f"its output '{printable(name)}' is not computed")

    def _bind(self, name: str, value: Value, unverified: bool) -> None:
        claim = self.source.claims.get(name)
        if claim is not None and not unverified:
            claim.check(value.dtype, value.shape, f"value '{printable(name)}'")
        if unverified:
            self.tainted.add(name)
        self.env[name] = value

    def _plain(self, node: Node, result: Reshaped | Same | Known, name: str) -> Value:
        """The value of a result that computes nothing."""
        if isinstance(result, Known):
            self._count(node, result.array)
            return self._known(name, result.array, result.dtype)
        source = result.value
        if isinstance(result, Same):
            if name not in self.source.outputs or source.dtype == TEXT:
                return source
            shape = source.shape
        else:
            shape = result.shape
        if source.array is not None:
            return self._known(name, source.array.reshape(shape), source.dtype)
        return self._view(node, source, self._name(name), shape)

    def _view(self, node: Node, source: Value, name: str, shape: tuple[int, ...]) -> Value:
        """A value under another shape, with an identifier for that."""
        value = self._declare(Value(name, source.dtype, shape))
        self.nodes.append(View(self._node_name(node), source.name, name, node.origin))
        return value

    def _compute(self, node: Node, result: Compute, names: Iterator[str], unverified: bool) -> None:
        labels = [next(names, "") for _ in result.program.outputs]
        values = self._call(node, result, labels, {})
        for label, value, t in zip(labels, values, result.program.outputs, strict=True):
            if label and isinstance(value, np.ndarray):
                value = self._known(label, value, t.dtype)
            if label and isinstance(value, Value):
                self._bind(label, value, unverified)

    def _call(
        self, node: Node, result: Compute, labels: Sequence[str], before: _Before
    ) -> Sequence[Value | np.ndarray]:
        """The outputs of a program, which is called after those that it needs, or folded.

        labels : the names of the outputs in the model, "" for what has none
        before : the outputs of programs that were called
        """
        program = result.program
        operands = [self._given(node, operand, before) for operand in result.inputs]
        arrays = [o if isinstance(o, np.ndarray) else o.array for o in operands]
        if foldable(program, arrays):
            return fold(program, [a for a in arrays if a is not None])
        call_name = self._node_name(node)
        inputs = tuple(
            self._operand(operand, f"{call_name}_{tensor.name}")
            for operand, tensor in zip(operands, program.inputs, strict=True)
        )
        outputs: list[Value] = []
        for label, tensor in zip(labels, program.outputs, strict=True):
            name = self._name(label) if label else self.mangle.fresh(f"{call_name}_{tensor.name}")
            shape = tuple(map(self.sizes.extent, tensor.shape))
            outputs.append(self._declare(Value(name, tensor.dtype, shape)))
        made = tuple(v.name for v in outputs)
        self.nodes.append(Call(call_name, program, inputs, made, node.origin))
        return outputs

    def _given(self, node: Node, operand: Operand, before: _Before) -> Value | np.ndarray:
        """The value or the array that a program is called on."""
        if isinstance(operand, (Value, np.ndarray)):
            return operand
        if isinstance(operand, Reshaped):
            source: Value | np.ndarray = operand.value
        else:
            if operand.made not in before:
                unnamed = [""] * len(operand.made.program.outputs)
                before[operand.made] = self._call(node, operand.made, unnamed, before)
            source = before[operand.made][operand.output]
        array = source.array if isinstance(source, Value) else source
        if array is not None:
            return array.reshape(operand.shape)
        assert isinstance(source, Value)
        return self._view(node, source, self.mangle.fresh(f"{source.name}_view"), operand.shape)

    def _node_name(self, node: Node) -> str:
        return self.mangle_node.fresh(node.name or node.operator)

    def _count(self, node: Node, array: np.ndarray) -> None:
        """Count the bytes of constants that the file describes without storing them."""
        self.generated += array.nbytes
        if self.generated > MAX_GENERATED_BYTES:
            raise node.fail(
                f"the model generates more than {MAX_GENERATED_BYTES >> 30} GiB of constants"
            )
