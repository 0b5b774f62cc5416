"""Functions of one 8-bit value become tables of all their values.

    Y[i] = quantise(f(dequantise(X[i])))        is        Y[i] = T[X[i]]

for any f, such as a sigmoid, and whatever is computed of it: X has 256 values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from poly.graph_passes.fold_calls import Evaluate
from poly.graph_passes.simplify_graph import eliminate_dead_calls
from poly.ir.dtypes import INT8, UINT8
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, reads_of, rewrite, sizes_of, walk
from poly.ir.graph import Call, Graph, GraphNode
from poly.ir.program import (
    Program,
    Range,
    Statement,
    Tensor,
    default_name,
    fresh_name,
    verify_program,
)

#: The number of values of 8 bits.
VALUES = 256
#: A table pays for functions of at least so many operators.
OPERATORS = 4


def tabulate(graph: Graph, evaluate: Evaluate) -> Graph:
    """Look results up in a table where they depend on a single 8-bit value."""
    values, constants = dict(graph.values), dict(graph.constants)
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        source = _source(node, graph) if isinstance(node, Call) else None
        if source is None or not isinstance(node, Call):
            nodes.append(node)
            continue
        name = fresh_name(f"{node.name}_table", set(values))
        constants[name] = _table(node, source, graph, evaluate)
        dtype = node.program.outputs[0].dtype
        values[name] = Tensor(name, dtype, (Const(VALUES),))
        (value,) = (
            v for t, v in zip(node.program.inputs, node.inputs, strict=True) if t.name == source
        )
        program = _lookup(node.program, source)
        nodes.append(replace(node, program=program, inputs=(value, name)))
    made = replace(graph, nodes=tuple(nodes), values=values, constants=constants)
    return eliminate_dead_calls(made)


def _source(call: Call, graph: Graph) -> str | None:
    """The input of 8 bits that a program computes each element from; None if there is another."""
    program = call.program
    if len(program.statements) != 1 or len(program.outputs) != 1 or program.has_blocks:
        return None
    (s,) = program.statements
    (output,) = program.outputs
    if s.op != "=" or s.guards or output.dtype not in (INT8, UINT8):
        return None
    bound = dict(zip((t.name for t in program.inputs), call.inputs, strict=True))
    moving = {r for r in reads_of(s.value) if any(i != Const(0) for i in r.indices)}
    if len(moving) != 1 or any(
        bound.get(r.tensor) not in graph.constants for r in reads_of(s.value) if r not in moving
    ):
        return None
    (read,) = moving
    # A table has to be the same for all sizes, which the shapes of X and Y may depend on.
    fixed = (t for t in program.inputs if t.name != read.tensor)
    if any(sizes_of(e) for e in (s.value, *(n for t in fixed for n in t.shape))):
        return None
    own = program.tensors[read.tensor].dtype
    plain = read.indices == s.target.indices and all(isinstance(i, Index) for i in read.indices)
    operators = sum(isinstance(e, Op) for e in walk(s.value))
    indices = any(isinstance(e, Index) for e in _values(s.value))
    if own not in (INT8, UINT8) or not plain or indices or operators < OPERATORS:
        return None
    return None if bound[read.tensor] in graph.constants else read.tensor


def _values(e: Expr) -> list[Expr]:
    """An expression and the parts that it computes with, without indices of elements."""
    inner: Sequence[Expr] = ()
    if isinstance(e, Op):
        inner = e.args
    elif isinstance(e, Cast):
        inner = (e.arg,)
    return [e, *(x for a in inner for x in _values(a))]


def _table(call: Call, source: str, graph: Graph, evaluate: Evaluate) -> np.ndarray:
    """The results for all values, in the order of their bits without a sign."""
    program, at = call.program, Index("i")
    (s,) = program.statements

    def visit(e: Expr) -> Expr:
        return Read(e.tensor, (at,)) if isinstance(e, Read) and e.tensor == source else e

    def changed(t: Tensor) -> Tensor:
        return replace(t, shape=(Const(VALUES),)) if t.name in (source, s.target.tensor) else t

    statement = Statement(
        default_name(0), Read(s.target.tensor, (at,)), "=", False, rewrite(s.value, visit),
        (Range("i", Const(0), Const(VALUES)),),
    )  # fmt: skip
    closed = replace(program, sizes=(), constraints=())
    small = verify_program(closed.with_tensors(changed, [statement]))
    every = np.arange(VALUES, dtype=np.uint8)
    given = {
        t.name: every.view(t.dtype.numpy) if t.name == source else graph.constants[v]
        for t, v in zip(program.inputs, call.inputs, strict=True)
    }
    return np.asarray(evaluate(small, given)[s.target.tensor])


def _lookup(program: Program, source: str) -> Program:
    """``Y[i] = T[X[i]]``, with the type without a sign of X as the index."""
    (s,), (output,) = program.statements, program.outputs
    tensor = program.tensors[source]
    name = fresh_name("T", {*program.tensors, *s.indices})
    element: Expr = Read(source, s.target.indices)
    index = element if tensor.dtype == UINT8 else Cast(UINT8, element)
    value = Read(name, (index,))
    table = Tensor(name, output.dtype, (Const(VALUES),))
    made = replace(
        program, inputs=(tensor, table), statements=(replace(s, value=value),), text=None
    )
    return verify_program(made)
