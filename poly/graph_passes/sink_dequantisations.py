"""Dequantisations move behind what only moves values, or takes the greatest of some.

    Y[i,j] = D[j,i]        D[i,j] = (X[i,j] - z) * s

is ``(X[j,i] - z) * s``: the 8-bit values are moved instead, a quarter of the bytes, and a product
that reads Y finds them.  With a positive scale, the greatest value is that of the greatest X.
Where the result is quantised again with the same scale and zero point, nothing is left of both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from poly.graph_passes.simplify_graph import eliminate_dead_calls
from poly.ir.dtypes import FLOAT32, DType
from poly.ir.expr import Cast, Const, Expr, Index, Read, reads_of, rewrite, sizes_of
from poly.ir.graph import Call, Graph, GraphNode, View
from poly.ir.program import Program, Range, Statement, Tensor, fresh_name, verify_program
from poly.ir.quantisation import Dequantisation, dequantisation_of, is_quantisation


@dataclass(frozen=True)
class _Source:
    """What a value is dequantised from: the call that does it, and its parts."""

    call: Call
    parts: Dequantisation

    def bound(self, tensor: str) -> str:
        names = [t.name for t in self.call.program.inputs]
        return self.call.inputs[names.index(tensor)]

    @property
    def value(self) -> str:
        return self.bound(self.parts.source)


def sink_dequantisations(graph: Graph) -> Graph:
    """Move dequantisations behind copies and maxima, and drop those that are undone."""
    return _Sinking(graph).graph()


class _Sinking:
    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.values = dict(graph.values)
        self.nodes: list[GraphNode] = []
        self.sources: dict[str, _Source] = {}

    def graph(self) -> Graph:
        for node in self.old.nodes:
            self._add(node)
        made = replace(self.old, nodes=tuple(self.nodes), values=self.values)
        return eliminate_dead_calls(made)

    def _add(self, node: GraphNode) -> None:
        source = next((s for v in node.inputs if (s := self.sources.get(v))), None)
        if source is None or not self._is_uniform(source):
            self._keep(node)
        elif isinstance(node, View):
            moved = self._declare(f"{node.output}_q", self.values[source.value].dtype, node.output)
            self.nodes.append(replace(node, input=source.value, output=moved))
            self._dequantise(source, moved, node.output, node.origin)
        elif not isinstance(node, Call):
            self._keep(node)
        elif is_quantisation(node.program) and self._undoes(node, source):
            self.nodes.append(View(node.name, source.value, node.outputs[0], node.origin))
        elif moves_only(node.program, self._is_positive(source)):
            moved = self._declare(
                f"{node.outputs[0]}_q", self.values[source.value].dtype, node.outputs[0]
            )
            program = retyped(node.program, self.values[source.value].dtype)
            self.nodes.append(
                replace(node, program=program, inputs=(source.value,), outputs=(moved,))
            )
            self._dequantise(source, moved, node.outputs[0], node.origin)
        else:
            self._keep(node)

    def _keep(self, node: GraphNode) -> None:
        self.nodes.append(node)
        if isinstance(node, Call):
            parts = dequantisation_of(node.program)
            if parts is not None and self.values[node.outputs[0]].dtype == FLOAT32:
                source = _Source(node, parts)
                if self.values[source.value].dtype.bits == 8:
                    self.sources[node.outputs[0]] = source

    def _declare(self, name: str, dtype: DType, like: str) -> str:
        """A new value, of the shape of another."""
        unique = fresh_name(name, set(self.values))
        self.values[unique] = replace(self.old.values[like], name=unique, dtype=dtype)
        return unique

    def _dequantise(self, source: _Source, value: str, output: str, origin: str) -> None:
        """Dequantise a value as another was, into an output of the old graph."""
        call, shape = source.call, self.values[value].shape
        (s,), old = call.program.statements, call.program.tensors[source.parts.source]
        names = [f"i{d}" for d in range(len(shape))]
        at = tuple(map(Index, names))

        def visit(e: Expr) -> Expr:
            return replace(e, indices=at) if isinstance(e, Read) and e.tensor == old.name else e

        def changed(t: Tensor) -> Tensor:
            return replace(t, shape=shape) if t.name in (old.name, s.target.tensor) else t

        statement = replace(
            s,
            target=Read(s.target.tensor, at),
            value=rewrite(s.value, visit),
            ranges=tuple(Range(n, Const(0), e) for n, e in zip(names, shape, strict=True)),
        )
        used = {n for e in shape for n in sizes_of(e)}
        program = replace(
            call.program,
            sizes=tuple(n for n in (*self.old.sizes, *self.old.derived) if n in used),
            constraints=(),
            inputs=tuple(map(changed, call.program.inputs)),
            outputs=tuple(map(changed, call.program.outputs)),
            statements=(statement,),
            text=None,
        )
        inputs = tuple(value if v == source.value else v for v in call.inputs)
        self._keep(
            Call(f"{call.name}_{output}", verify_program(program), inputs, (output,), origin)
        )

    def _is_uniform(self, source: _Source) -> bool:
        """Whether one scale and one zero point are for all elements."""
        parts = source.parts
        return all(d is None for d in (*parts.scale_along, *parts.zero_along))

    def _is_positive(self, source: _Source) -> bool:
        scale = self.old.constants.get(source.bound(source.parts.scale))
        return scale is not None and bool((scale > 0).all())

    def _undoes(self, node: Call, source: _Source) -> bool:
        """Whether a quantisation gives the values again that were dequantised."""
        own, parts = self.values, source.parts
        target = own[node.outputs[0]]
        if target.dtype != own[source.value].dtype or not parts.zero:
            return False
        constants = self.old.constants
        zero = next((v for v in node.inputs if own[v].dtype == target.dtype), "")
        scale = next((v for v in node.inputs[1:] if own[v].dtype.is_float), "")
        pairs = ((zero, source.bound(parts.zero)), (scale, source.bound(parts.scale)))
        for mine, theirs in pairs:
            a, b = constants.get(mine), constants.get(theirs)
            if a is None or b is None or a.size != 1 or not np.array_equal(a.ravel(), b.ravel()):
                return False
        return len(node.inputs) == 3


def moves_only(program: Program, greatest: bool) -> bool:
    """Whether a program of one input only places its elements elsewhere.

    greatest : it may also take the greatest or the least of some
    """
    if len(program.inputs) != 1 or len(program.outputs) != 1 or program.updated:
        return False
    tensors = (*program.inputs, *program.outputs, *program.temps)
    if any(t.dtype != FLOAT32 for t in tensors) or program.has_blocks:
        return False
    return all(_places(s, greatest) for s in program.statements)


def _places(s: Statement, greatest: bool) -> bool:
    own = s.value.arg if isinstance(s.value, Cast) and s.value.dtype == FLOAT32 else s.value
    if not isinstance(own, Read) or any(reads_of(i) for i in own.indices):
        return False
    return s.op == "=" or (greatest and s.op in ("max=", "min=") and s.init)


def retyped(program: Program, dtype: DType) -> Program:
    """A program that `moves_only` for elements of another type."""

    def plain(s: Statement) -> Statement:
        return replace(s, value=s.value.arg) if isinstance(s.value, Cast) else s

    made = program.with_tensors(
        lambda t: replace(t, dtype=dtype), [plain(s) for s in program.statements]
    )
    return verify_program(made)
