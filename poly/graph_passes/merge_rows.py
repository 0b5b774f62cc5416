"""Two contractions of a graph as one call, where the second sums up along rows of the first.

This is attention, whatever stands between: scales, masks, a softmax.  The call is scheduled by
blocks of rows (`poly.strategy.cpu.row_blocks`), and no value of the size of all rows is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poly.errors import ProgramError
from poly.graph_passes.fuse_calls import Pairs, join_calls
from poly.ir.expr import Index, Read
from poly.ir.graph import Call, Graph, GraphNode
from poly.ir.program import Program
from poly.ir.row_chains import is_product_sum, row_chain
from poly.rewrites.divide_after import divide_after
from poly.rewrites.merge_programs import merge, simplified
from poly.rewrites.split_rows import split_rows

#: The most calls between two contractions.
BETWEEN = 3


def merge_rows(graph: Graph) -> Graph:
    """Join contractions that sum up along rows of others with these, and with what is between."""
    for last in graph.nodes:
        if isinstance(last, Call) and _contractions(last.program) == 1:
            graph = _merged(graph, last)
    return graph


def _merged(graph: Graph, last: Call) -> Graph:
    """The graph with the chain that ends at a call as one call, if there is one."""
    makers = {o: n for n in graph.nodes for o in n.outputs}
    whole, gone = last, [last]
    for _ in range(BETWEEN + 1):
        found = [m for m in (_only_made(graph, makers, v, gone) for v in whole.inputs) if m]
        rows = [m for m in found if _contractions(m.program) <= 1 and _makes_rows(m)]
        if not rows or _is_direct(rows[-1].program, whole.program):
            return graph
        joined = join_calls(rows[-1], whole, _joined)
        if joined is None:
            return graph
        whole, gone = joined, [rows[-1], *gone]
        if _contractions(whole.program) == 2:
            break
    if not _is_chain(whole.program):
        return graph
    whole, gone = _with_copies(graph, makers, whole, gone)
    whole = replace(whole, program=divide_after(whole.program))
    at = graph.nodes.index(last)
    nodes = [whole if n == at else node for n, node in enumerate(graph.nodes)]
    rest = tuple(n for n in nodes if n is whole or n not in gone)
    hidden = {o for call in gone for o in call.outputs} - {*whole.outputs}
    return replace(
        graph,
        nodes=rest,
        values={k: v for k, v in graph.values.items() if k not in hidden},
        labels={k: v for k, v in graph.labels.items() if k not in hidden},
    )


def _with_copies(
    graph: Graph, makers: Mapping[str, GraphNode], whole: Call, gone: list[Call]
) -> tuple[Call, list[Call]]:
    """The chain reading operands in the order in which they are, instead of copies of them."""
    for value in whole.inputs:
        copy = _only_made(graph, makers, value, gone)
        if copy is None or not _is_copy(copy.program):
            continue
        joined = join_calls(copy, whole, _joined)
        if joined is not None and _is_chain(joined.program):
            whole, gone = joined, [copy, *gone]
    return whole, gone


def _only_made(
    graph: Graph, makers: Mapping[str, GraphNode], value: str, gone: list[Call]
) -> Call | None:
    """The call that makes a value for calls of a chain alone, None if there is none."""
    made = makers.get(value)
    if not isinstance(made, Call) or len(made.outputs) != 1 or value in graph.outputs:
        return None
    alone = all(n in gone for n in graph.nodes if value in n.inputs)
    return made if alone and made not in gone else None


def _joined(first: Program, second: Program, bindings: Pairs, shared: Pairs) -> Program | None:
    try:
        return simplified(merge(first, second, dict(bindings), dict(shared)))
    except ProgramError:
        return None


def _contractions(program: Program) -> int:
    return sum(map(is_product_sum, program.statements))


def _is_chain(program: Program) -> bool:
    """Whether blocks of rows run through a program, as it is or with rows in parts."""
    return not isinstance(row_chain(program), str) or split_rows(program) is not program


def _is_direct(first: Program, second: Program) -> bool:
    """Whether a contraction follows another, and nothing is computed of whole rows between them.

    `row_chain` would refuse them, but merging all pairs of convolutions takes long.
    """
    reductions = sum(bool(s.reductions) for s in (*first.statements, *second.statements))
    return _contractions(first) == 1 and reductions < 3


def _makes_rows(call: Call) -> bool:
    """Whether what a call makes may be rows: of three dimensions or two, of floats."""
    (made,) = call.program.outputs
    return made.rank >= 2 and made.dtype.name == "float32" and not _is_copy(call.program)


def _is_copy(program: Program) -> bool:
    """Whether a program only writes an input in another order."""
    if len(program.statements) != 1 or program.statements[0].op != "=":
        return False
    value = program.statements[0].value
    return isinstance(value, Read) and all(isinstance(i, Index) for i in value.indices)
