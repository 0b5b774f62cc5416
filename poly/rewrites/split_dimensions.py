"""Split dimensions: ``X[4*g + c]`` with 0 <= c < 4 is ``X'[g, c]`` on the same bytes.

Grouped operators index channels this way.  With a dimension of its own each loop can run in lanes,
be tiled and be packed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poly.ir.expr import Const, Expr, Index, Read
from poly.ir.graph import Call, Graph, GraphNode, View, static_shape
from poly.ir.linear_form import linear_form
from poly.ir.program import Program, Statement, Tensor

#: For each tensor, its new shape.
Shapes = dict[str, tuple[Expr, ...]]


def split_dimensions(program: Program) -> tuple[Program, Shapes]:
    """Split dimensions indexed by two loops; returns the program and the new shapes of its tensors.

    A dimension of extent N is split into N/a and a if every access to it is ``a*i + j`` for loops
    i, j with 0 <= j < a.  The last dimension is kept if j is a reduction, as in a pool: its
    elements are adjacent, and lanes along i take every a-th.
    """
    factors: dict[tuple[str, int], int] = {}
    for tensor in program.tensors.values():
        for d, extent in enumerate(tensor.shape):
            free = d == tensor.rank - 1
            found = {_factor(s, r.indices[d], free) for s, r in program.accesses(tensor.name)}
            (factor,) = found if len(found) == 1 else (None,)
            whole = isinstance(extent, Const) and factor and int(extent.value) % factor == 0
            if factor and whole and tensor.name not in program.updated:
                factors[tensor.name, d] = factor
    if not factors:
        return program, {}

    def access(e: Read) -> Read:
        indices: list[Expr] = []
        for d, index in enumerate(e.indices):
            factor = factors.get((e.tensor, d))
            indices += [index] if factor is None else _parts(index, factor)
        return replace(e, indices=tuple(indices))

    def changed(t: Tensor) -> Tensor:
        shape: list[Expr] = []
        for d, extent in enumerate(t.shape):
            factor = factors.get((t.name, d))
            if factor is None or not isinstance(extent, Const):
                shape.append(extent)
            else:
                shape += [Const(int(extent.value) // factor), Const(factor)]
        return replace(t, shape=tuple(shape))

    made = program.with_accesses(changed, access)
    names = {name for name, _ in factors}
    return made, {name: made.tensors[name].shape for name in sorted(names)}


def _factor(s: Statement, index: Expr, free: bool) -> int | None:
    """a, if the index is ``a*i + j`` with 0 <= j < a; `free`: and j is not a reduction."""
    form = linear_form(index)
    terms = sorted(form.terms, key=lambda t: t[1])
    if form.constant or len(terms) != 2 or not all(isinstance(x, Index) for x, _ in terms):
        return None
    (inner, one), (_, factor) = terms
    assert isinstance(inner, Index)
    if free and inner.name in s.reductions:
        return None
    bounds = next(r for r in s.ranges if r.index == inner.name)
    inside = (
        isinstance(bounds.lo, Const)
        and isinstance(bounds.hi, Const)
        and bounds.lo.value >= 0
        and bounds.hi.value <= factor
    )
    return factor if one == 1 and factor > 1 and inside else None


def _parts(index: Expr, factor: int) -> list[Expr]:
    outer = next(x for x, c in linear_form(index).terms if c == factor)
    inner = next(x for x, c in linear_form(index).terms if c == 1)
    return [outer, inner]


def split_in_graph(graph: Graph) -> Graph:
    """Split dimensions that two loops index as `a*i + j`, by views of their values."""
    return with_shapes(graph, split_dimensions)


def with_shapes(graph: Graph, change: Callable[[Program], tuple[Program, Shapes]]) -> Graph:
    """The graph with changed programs, whose operands are views of the values in new shapes."""
    values, constants = dict(graph.values), dict(graph.constants)
    nodes: list[GraphNode] = []
    seen: dict[str, tuple[Program, Shapes]] = {}
    views: dict[tuple[str, tuple[Expr, ...]], str] = {}

    def view(value: str, shape: tuple[Expr, ...]) -> str:
        """A new value of another shape on the bytes of a value."""
        extents = (str(e) if isinstance(e, Const) else "n" for e in shape)
        name = f"{value}_{'x'.join(extents)}"
        while name in values:
            name += "_"
        views[value, shape] = name
        values[name] = Tensor(name, values[value].dtype, shape)
        return name

    for node in graph.nodes:
        if not isinstance(node, Call):
            nodes.append(node)
            continue
        if node.program.digest not in seen:
            seen[node.program.digest] = change(node.program)
        program, shapes = seen[node.program.digest]
        inputs, outputs, after = list(node.inputs), list(node.outputs), []
        for position, tensor in enumerate(program.inputs):
            if tensor.name in shapes:
                source, shape = inputs[position], shapes[tensor.name]
                if (source, shape) not in views:
                    name = view(source, shape)
                    if source in constants:
                        constants[name] = constants[source].reshape(static_shape(values[name]))
                    else:
                        nodes.append(View(f"view_{name}", source, name, node.origin))
                inputs[position] = views[source, shape]
        for position, tensor in enumerate(program.outputs):
            if tensor.name in shapes:
                given = outputs[position]
                outputs[position] = view(given, shapes[tensor.name])
                after.append(View(f"view_{given}", outputs[position], given, node.origin))
        nodes.append(replace(node, program=program, inputs=tuple(inputs), outputs=tuple(outputs)))
        nodes += after
    return replace(graph, nodes=tuple(nodes), values=values, constants=constants)
