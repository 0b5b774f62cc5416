"""Sums of products of dequantised values become sums of integers.

    T[i,j] +=! A[i,k] * B[k,j]      A[i,k] = (X[i,k] - zx) * sx      B[k,j] = (W[k,j] - zw) * sw[j]

is

    R[i,j] +=! (X[i,k] - zx) * (W[k,j] - zw)      T[i,j] = R[i,j] * (sx * sw[j])

as long as zero points and scales do not vary along the sum.  The sum is exact; the products of
floats would each have been rounded.  A zero point that is known to be 0 is left out.

Before that, values of a type with a sign are made ones of the type without it, and their zero
points greater by 128: instructions multiply numbers without a sign by such with one, and weights
have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from poly.graph_passes.simplify_graph import eliminate_dead_calls
from poly.ir.accesses import count_of, writes_once
from poly.ir.dtypes import FLOAT32, INT8, INT32, UINT8
from poly.ir.expr import Cast, Const, Expr, Op, Read, indices_of, rewrite
from poly.ir.graph import Call, Graph
from poly.ir.program import Program, Statement, Tensor, default_name, fresh_name, verify_program
from poly.ir.quantisation import Along, Dequantisation, dequantisation_of, is_quantisation
from poly.machine.cpu import Machine
from poly.rewrites.integer_products import multiplied_types

#: So many products of two differences of 8-bit numbers fit an int32.
MOST_TERMS = (2**31 - 1) // 255**2


def unsigned_values(graph: Graph, machine: Machine) -> Graph:
    """Store quantised values without a sign, where only dequantisations read them and no
    instruction multiplies two numbers with one.
    """
    if any(m.types == (INT8, INT8) for m in multiplied_types(machine.extensions)):
        return graph
    readers: dict[str, list[Call]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)  # type: ignore[arg-type]
    flipped = {
        n.outputs[0]
        for n in graph.nodes
        if isinstance(n, Call)
        and n.outputs[0] not in graph.outputs
        and graph.values[n.outputs[0]].dtype == INT8
        and is_quantisation(n.program)
        and _zeros_known(n, graph)
        and all(_dequantises(r, n.outputs[0], graph) for r in readers.get(n.outputs[0], ()))
    }
    return _Unsigned(graph, flipped).graph() if flipped else graph


def _zeros_known(call: Call, graph: Graph) -> bool:
    return all(v in graph.constants for v in call.inputs if graph.values[v].dtype == INT8)


def _dequantises(node: object, value: str, graph: Graph) -> bool:
    parts = dequantisation_of(node.program) if isinstance(node, Call) else None
    if not isinstance(node, Call) or parts is None or not parts.zero:
        return False
    return node.inputs[0] == value and _zeros_known(
        replace(node, inputs=tuple(v for v in node.inputs if v != value)), graph
    )


class _Unsigned:
    """A graph in which some values of int8 are ones of uint8."""

    def __init__(self, graph: Graph, flipped: set[str]) -> None:
        self.old, self.flipped = graph, flipped
        self.values, self.constants = dict(graph.values), dict(graph.constants)
        self.moved: dict[str, str] = {}

    def graph(self) -> Graph:
        nodes = []
        for node in self.old.nodes:
            touched = {*node.inputs, *node.outputs} & self.flipped
            if touched and isinstance(node, Call):
                node = self._retyped(node)
            nodes.append(node)
        for v in self.flipped:
            self.values[v] = replace(self.values[v], dtype=UINT8)
        made = replace(self.old, nodes=tuple(nodes), values=self.values, constants=self.constants)
        return eliminate_dead_calls(made)

    def _retyped(self, call: Call) -> Call:
        """A call that quantises to, or dequantises from, the other type."""

        def visit(e: Expr) -> Expr:
            if isinstance(e, Cast) and e.dtype == INT8:
                return Cast(UINT8, e.arg)
            if (
                isinstance(e, Const)
                and e.value in (-128.0, 127.0)
                and call.outputs[0] in self.flipped
            ):
                return Const(float(e.value) + 128.0)
            return e

        def changed(t: Tensor) -> Tensor:
            return replace(t, dtype=UINT8) if t.dtype == INT8 else t

        p = call.program
        s = p.statements[0]
        program = replace(
            p,
            inputs=tuple(map(changed, p.inputs)),
            outputs=tuple(map(changed, p.outputs)),
            statements=(replace(s, value=rewrite(s.value, visit)),),
            text=None,
        )
        inputs = tuple(
            self._zero(v) if self.old.values[v].dtype == INT8 and v not in self.flipped else v
            for v in call.inputs
        )
        return replace(call, program=verify_program(program), inputs=inputs)

    def _zero(self, value: str) -> str:
        """A zero point that is greater by 128."""
        if value not in self.moved:
            name = value
            while name in self.values:
                name += "_u"
            array = np.asarray(self.old.constants[value].astype(np.int16) + 128, np.uint8)
            self.values[name] = replace(self.old.values[value], name=name, dtype=UINT8)
            self.constants[name] = array
            self.moved[value] = name
        return self.moved[value]


# --- products --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Quantised:
    """A factor that is dequantised: the call that does it, and its parts."""

    call: Call
    parts: Dequantisation

    def value(self, tensor: str) -> str:
        """The value bound to an input of the program."""
        names = [t.name for t in self.call.program.inputs]
        return self.call.inputs[names.index(tensor)]


def quantised_products(graph: Graph) -> Graph:
    """Sum products of quantised values as integers, and scale the sums."""
    made = {v: n for n in graph.nodes if isinstance(n, Call) for v in n.outputs}
    nodes = [_with_integers(n, graph, made) if isinstance(n, Call) else n for n in graph.nodes]
    if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
        return graph
    return eliminate_dead_calls(replace(graph, nodes=tuple(nodes)))


def _with_integers(call: Call, graph: Graph, made: Mapping[str, Call]) -> Call:
    program = call.program
    if program.has_blocks or program.updated:
        return call
    bound = dict(zip((t.name for t in program.inputs), call.inputs, strict=True))
    for s in program.statements:
        reads = _factors(program, s)
        if reads is None:
            continue
        found = [_quantised(made.get(bound.get(r.tensor, "")), graph) for r in reads]
        first, second = found
        if first is None or second is None:
            continue
        result = _Integers(call, s, graph, (reads[0], reads[1]), (first, second)).call()
        if result is not None:
            return result
    return call


def _factors(program: Program, s: Statement) -> tuple[Read, Read] | None:
    """The elements that a sum of products of floats multiplies."""
    if s.op != "+=" or not s.reductions or program.dtypes[s.target.tensor] != FLOAT32:
        return None
    if not isinstance(s.value, Op) or s.value.fn != "mul":
        return None
    if not writes_once(s) or _terms(s) > MOST_TERMS:
        return None
    a, b = s.value.args
    if not isinstance(a, Read) or not isinstance(b, Read) or a.tensor == b.tensor:
        return None
    used = [r.tensor for t in program.statements for r in t.reads]
    alone = all(used.count(r.tensor) == 1 for r in (a, b))
    return (a, b) if alone else None


def _quantised(call: Call | None, graph: Graph) -> _Quantised | None:
    if call is None:
        return None
    parts = dequantisation_of(call.program)
    if parts is None:
        return None
    found = _Quantised(call, parts)
    return found if graph.values[found.value(parts.source)].dtype in (INT8, UINT8) else None


@dataclass(frozen=True)
class _Integers:
    """A call whose sum of products becomes one of integers.

    reads : the factors; factors : where they come from
    """

    old: Call
    s: Statement
    graph: Graph
    reads: tuple[Read, Read]
    factors: tuple[_Quantised, _Quantised]

    def call(self) -> Call | None:
        """The call with the quantised values; None if zero points or scales vary along the sum."""
        program, s = self.old.program, self.s
        taken = {
            *program.tensors,
            *program.sizes,
            *(i for t in program.statements for i in t.indices),
        }
        bound = dict(zip((t.name for t in program.inputs), self.old.inputs, strict=True))
        inputs = {t.name: t for t in program.inputs}
        factors: list[Expr] = []
        scales: list[Expr] = []
        for read, own in zip(self.reads, self.factors, strict=True):
            parts, values = own.parts, own.call.program.tensors
            inputs[read.tensor] = replace(inputs[read.tensor], dtype=values[parts.source].dtype)
            bound[read.tensor] = own.value(parts.source)
            value: Expr = Cast(INT32, read)
            for name, along in ((parts.zero, parts.zero_along), (parts.scale, parts.scale_along)):
                if not name:
                    continue
                array = self.graph.constants.get(own.value(name))
                if name == parts.zero and array is not None and not array.any():
                    continue
                element = _element(read, along)
                if set(indices_of(element)) & set(s.reductions):
                    return None
                tensor = fresh_name(f"{read.tensor}_{name}", taken)
                inputs[tensor] = replace(values[name], name=tensor)
                bound[tensor] = own.value(name)
                element = Read(tensor, element.indices)
                if name == parts.zero:
                    value = Op("sub", (value, Cast(INT32, element)))
                else:
                    scales.append(
                        Cast(FLOAT32, element) if values[name].dtype != FLOAT32 else element
                    )
            factors.append(value)
        total = Tensor(
            fresh_name(f"{s.target.tensor}_sum", taken),
            INT32,
            program.tensors[s.target.tensor].shape,
        )
        raw = Read(total.name, s.target.indices)
        sums = replace(s, target=raw, value=Op("mul", tuple(factors)), init=True)
        scaled: Expr = Op("mul", (Cast(FLOAT32, raw), Op("mul", tuple(scales))))
        free = tuple(r for r in s.ranges if r.index in s.free)
        final = replace(
            s, op="=" if s.init else s.op, init=False, value=scaled, ranges=free,
            reductions=(), guards=s.free_guards,
        )  # fmt: skip
        statements = [x for t in program.statements for x in ((sums, final) if t is s else (t,))]
        made = replace(
            program,
            inputs=tuple(inputs.values()),
            temps=(*program.temps, total),
            statements=tuple(replace(t, name=default_name(n)) for n, t in enumerate(statements)),
            text=None,
        )
        return replace(self.old, program=verify_program(made), inputs=tuple(bound.values()))


def _terms(s: Statement) -> float:
    """The terms of a sum, as far as they are known: more than fit an int32 are rare."""
    counts = [count_of(r) for r in s.ranges if r.index in s.reductions]
    return prod(n for n in counts if n < inf)


def _element(read: Read, along: Along) -> Read:
    """The zero point or scale of an element."""
    return Read(read.tensor, tuple(Const(0) if d is None else read.indices[d] for d in along))
