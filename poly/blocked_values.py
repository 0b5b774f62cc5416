"""Values of a graph in blocks of channels: ``Y[n, k, p, q]`` is kept as ``Y'[n, k/16, p, q, k%16]``.

A convolution has its lanes along channels, whose elements lie an image apart: each tile is turned
around in registers when it is stored, and so is what is added to it.  Between two convolutions
nobody sees the order of the elements, so they are kept as the tiles have them; the inputs and
outputs of the graph stay as they are.  Only values all of whose users have channels in lanes, or
sum over them, are kept so: nothing is ever converted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from math import prod

from poly.expr import Const, Index, Read, indices_of, reads_of
from poly.graph import Call, Graph, View
from poly.layout import Layout, relayout
from poly.machine import Machine
from poly.program import Program, Statement, Tensor

#: For each tensor of a program, the dimensions along which it may be kept in blocks.
Dimensions = dict[str, frozenset[int]]


def block_values(graph: Graph, machine: Machine) -> Graph:
    """The graph with its values between contractions in blocks of channels, one vector wide."""
    families = _families(graph)
    accepted: dict[str, set[tuple[int, int]]] = {}
    seen: dict[tuple[Program, frozenset[str]], Dimensions] = {}
    for node in graph.nodes:
        if not isinstance(node, Call):
            continue
        program = node.program
        pairs = list(zip((*program.inputs, *program.outputs), (*node.inputs, *node.outputs)))
        constant = frozenset(t.name for t, v in pairs if v in graph.constants)
        key = (program, constant)
        if key not in seen:
            seen[key] = dimensions_in_blocks(program, constant)
        for tensor, value in pairs:
            root = families[value]
            places = {_place(tensor, d) for d in seen[key].get(tensor.name, ())}
            accepted[root] = accepted[root] & places if root in accepted else places
    for value in (*graph.inputs, *graph.outputs, *graph.constants):
        accepted.pop(families[value], None)
    chosen: dict[str, Layout] = {}
    for value, root in families.items():
        layout = _layout(graph.values[value], accepted.get(root, set()), machine)
        if layout is not None:
            chosen[value] = layout
    # A family is kept in blocks as a whole or not at all.
    whole = {r for r in accepted if all(v in chosen for v, own in families.items() if own == r)}
    chosen = {v: layout for v, layout in chosen.items() if families[v] in whole}
    return _with_layouts(graph, chosen) if chosen else graph


def dimensions_in_blocks(program: Program, constant: Collection[str]) -> Dimensions:
    """Along which dimensions the tensors of a contraction with its epilogue may lie in blocks.

    The contraction is ``T[.., k, ..] += X[.., c, ..] * W[k, c, ..]`` with W constant and X without
    k: its lanes are along k.  What is read and written at k lies in lanes then; what is read at c
    is a scalar to it, wherever it lies.  Nothing, if the program does anything else.
    """
    sums = [s for s in program.statements if s.reductions]
    if len(sums) != 1 or program.sizes or program.updated:
        return {}
    (main,) = sums
    lane = _lane(main, constant)
    if lane is None:
        return {}
    loops = {main.name: {lane, *main.reductions}}
    at = main.target.indices.index(Index(lane))
    for s in program.statements:
        if s is main:
            continue
        # The epilogue: elements of the sum and of other tensors at the same place.
        own = [r for r in reads_of(s.value) if r.tensor == main.target.tensor]
        here = s.target.indices
        if s.guards or not own or any(r.indices != here for r in own) or len(here) <= at:
            return {}
        x = here[at]
        if not isinstance(x, Index):
            return {}
        loops[s.name] = {x.name}
    found: Dimensions = {}
    for t in (*program.inputs, *program.outputs):
        if t.name in constant:
            continue
        fitting = set(range(t.rank))
        for s, read in _accesses(program, t.name):
            fitting &= {
                d
                for d, e in enumerate(read.indices)
                if isinstance(e, Index)
                and e.name in loops[s.name]
                and sum(e.name in indices_of(x) for x in read.indices) == 1
            }
        found[t.name] = frozenset(fitting)
    return found


def _lane(s: Statement, constant: Collection[str]) -> str | None:
    """The loop that only constants move with, beside the target; None if there is not just one."""
    reads = reads_of(s.value)
    if s.op != "+=" or not any(r.tensor not in constant for r in reads):
        return None
    found = [
        x.name
        for x in s.target.indices
        if isinstance(x, Index)
        and any(_moves(r, x.name) for r in reads)
        and all(r.tensor in constant for r in reads if _moves(r, x.name))
        and s.target.indices.count(x) == 1
    ]
    return found[0] if len(found) == 1 else None


def _moves(read: Read, loop: str) -> bool:
    return any(loop in indices_of(x) for x in read.indices)


def _accesses(program: Program, tensor: str) -> Iterator[tuple[Statement, Read]]:
    for s in program.statements:
        for read in (s.target, *reads_of(s.value)):
            if read.tensor == tensor:
                yield s, read


def _families(graph: Graph) -> dict[str, str]:
    """For each value the first of those that are views of the same bytes."""
    root = {v: v for v in graph.values}

    def find(v: str) -> str:
        while root[v] != v:
            v = root[v]
        return v

    for node in graph.nodes:
        if isinstance(node, View):
            root[find(node.output)] = find(node.input)
    return {v: find(v) for v in graph.values}


def _place(tensor: Tensor, d: int) -> tuple[int, int]:
    """A dimension, however those around it are grouped: elements before it, and its extent."""
    extents = [int(e.value) if isinstance(e, Const) else 0 for e in tensor.shape]
    return prod(extents[:d]), extents[d]


def _layout(value: Tensor, places: set[tuple[int, int]], machine: Machine) -> Layout | None:
    """The blocks of a value along the one dimension that is at one of some places, if they are
    whole and the dimension is not the last one.
    """
    lanes = machine.vector_bytes // value.dtype.bytes
    extents = [int(e.value) if isinstance(e, Const) else 0 for e in value.shape]
    fitting = [
        d
        for d, extent in enumerate(extents)
        if extent and extent % lanes == 0 and prod(extents[d + 1 :]) > 1
        and _place(value, d) in places
    ]  # fmt: skip
    if len(fitting) != 1 or value.dtype.numpy.kind != "f" or lanes < 2:
        return None
    return Layout(tuple(range(value.rank)), (fitting[0], lanes))


def _with_layouts(graph: Graph, layouts: dict[str, Layout]) -> Graph:
    """The graph with these values kept in other layouts, by programs that write and read them so."""
    values = dict(graph.values)
    for name, layout in layouts.items():
        values[name] = replace(values[name], shape=layout.extents(values[name].shape))
    made: dict[tuple[Program, tuple[tuple[str, Layout], ...]], Program] = {}
    nodes: list[Call | View] = []
    for node in graph.nodes:
        if isinstance(node, Call):
            tensors = (*node.program.inputs, *node.program.outputs)
            names = zip(tensors, (*node.inputs, *node.outputs), strict=True)
            own = tuple((t.name, layouts[v]) for t, v in names if v in layouts)
            if own:
                key = (node.program, own)
                if key not in made:
                    program = node.program
                    for tensor, layout in own:
                        program = relayout(program, tensor, layout)
                    made[key] = program
                node = replace(node, program=made[key])
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), values=values)
