"""Two contractions of a graph as one call, where the second sums up along rows of the first.

This is attention, whatever stands between: scales, masks, a softmax.  The call is scheduled by
blocks of rows (`poly.strategy.cpu.row_blocks`), and no value of the size of all rows is stored.
What is cheap to compute for each element of a row, such as a causal mask that all layers share, is
computed there instead of being as large as all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, prod

import numpy as np

from poly.errors import ProgramError
from poly.graph_passes.fuse_calls import Pairs, join_calls
from poly.ir.expr import Const, Expr, Index, Read, add, indices_of, mul, reads_of
from poly.ir.graph import Call, Graph, GraphNode, View
from poly.ir.program import Program, Range, Statement, Tensor, default_name
from poly.ir.row_chains import is_product_sum, row_chain
from poly.rewrites.divide_after import divide_after
from poly.rewrites.merge_programs import (
    REPEAT_COST,
    VALUE_LIMIT,
    cost,
    merge,
    readers,
    simplified,
    size_of,
)
from poly.rewrites.split_rows import split_rows

#: The most calls between two contractions.
BETWEEN = 3
#: Numbers beyond this cannot be positions.
FAR = 1 << 31
#: Bytes of a value that caches hold beside all else.
LARGE = 1 << 20


def merge_rows(graph: Graph) -> Graph:
    """Join contractions that sum up along rows of others with these, and with what is between."""
    for last in graph.nodes:
        if isinstance(last, Call) and _contractions(last.program) == 1:
            graph = _merged(graph, last)
    return graph


def _merged(graph: Graph, last: Call) -> Graph:
    """The graph with the chain that ends at a call as one call, if there is one."""
    makers = {o: n for n in graph.nodes for o in n.outputs}
    found = _chain(graph, makers, last, [last])
    if found is None:
        return graph
    whole, gone = _with_copies(graph, makers, *found)
    whole = _with_masks(graph, makers, whole)
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


def _chain(
    graph: Graph, makers: Mapping[str, GraphNode], whole: Call, gone: list[Call]
) -> tuple[Call, list[Call]] | None:
    """A chain that ends with a call, and the calls that it is made of, if there is one."""
    if _contractions(whole.program) == 2:
        return (whole, gone) if _is_chain(whole.program) else None
    if len(gone) > BETWEEN + 1:
        return None
    makes = [m for m in (_only_made(graph, makers, v, gone) for v in whole.inputs) if m]
    rows = [m for m in makes if _contractions(m.program) <= 1 and _makes_rows(m)]
    for made in reversed(rows):
        if _is_direct(made.program, whole.program):
            continue
        joined = join_calls(made, whole, _joined)
        found = joined and _chain(graph, makers, joined, [made, *gone])
        if found:
            return found
    return None


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


def _with_masks(graph: Graph, makers: Mapping[str, GraphNode], whole: Call) -> Call:
    """The chain computing what is as large as its rows, although others may compute it too."""
    while True:
        for value in whole.inputs:
            made = _with_positions(graph, makers, value) or _counting(graph, value)
            if made is None or not (_is_position(made) or _is_mask(made.program)):
                continue
            if not _is_beside_rows(whole, value):
                continue
            joined = join_calls(made, whole, _inlined)
            if joined is not None and _is_chain(joined.program):
                whole = joined
                break
        else:
            return whole


def _with_positions(graph: Graph, makers: Mapping[str, GraphNode], value: str) -> Call | None:
    """The call that makes a value, with numbers of rows and columns computed instead of read."""
    whole = _made(graph, makers, value)
    for read in whole.inputs if whole else ():
        made = _made(graph, makers, read) or _counting(graph, read)
        if whole and made and _is_position(made):
            whole = join_calls(made, whole, _inlined) or whole
    return whole


def _made(graph: Graph, makers: Mapping[str, GraphNode], value: str) -> Call | None:
    """The call that makes a value, or of which it is a view with more dimensions, of 1 element."""
    made = makers.get(value)
    if isinstance(made, Call):
        return made if len(made.outputs) == 1 else None
    source = makers.get(made.input) if isinstance(made, View) else None
    if not isinstance(source, Call) or len(source.outputs) != 1:
        return None
    (before,), after = source.program.outputs, graph.values[value]
    wide = [n for n, e in enumerate(after.shape) if e != Const(1)]
    if tuple(after.shape[n] for n in wide) != graph.values[source.outputs[0]].shape:
        return None
    places = dict(zip(wide, range(before.rank), strict=True))

    def spread(of: tuple[Expr, ...], one: Expr) -> tuple[Expr, ...]:
        return tuple(of[places[n]] if n in places else one for n in range(after.rank))

    output = replace(before, shape=spread(before.shape, Const(1)))
    statements = tuple(
        replace(s, target=Read(before.name, spread(s.target.indices, Const(0))))
        for s in source.program.statements
    )
    program = replace(source.program, outputs=(output,), statements=statements, text=None)
    return replace(source, program=program, outputs=(value,))


def _is_position(made: Call) -> bool:
    """Whether a call computes numbers of rows and columns, and of nothing else."""
    statements = made.program.statements
    return not made.inputs and len(statements) == 1 and cost(statements[0].value) <= REPEAT_COST


def _counting(graph: Graph, value: str) -> Call | None:
    """A call that makes a constant, if that counts along one of its dimensions."""
    array = graph.constants.get(value)
    if array is None or array.dtype != np.int64 or not 2 <= array.size == max(array.shape):
        return None
    first, second = map(int, array.flat[:2])
    if not (abs(first) < FAR and abs(second) < FAR):
        return None
    if (array.ravel() != first + (second - first) * np.arange(array.size)).any():
        return None
    made = replace(graph.values[value], name="P")
    target = Read("P", tuple(Const(0) if n == 1 else Index("i") for n in array.shape))
    number = add(Const(first), mul(Const(second - first), Index("i")))
    along = Range("i", Const(0), Const(array.size))
    s = Statement(default_name(0), target, "=", False, number, (along,))
    return Call("positions", Program("positions", (), (), (made,), (), (s,)), (), (value,))


def _is_mask(program: Program) -> bool:
    """Whether a program makes something as large as all rows, and each element of it cheaply.

    Lanes are as wide as the widest values in them, so no values that vary with the row may have 64
    bits; and at most one may be as large as the mask.
    """
    if len(program.statements) != 1 or len(program.outputs) != 1 or _is_copy(program):
        return False
    (s,), (made,) = program.statements, program.outputs
    if s.op != "=" or cost(s.value) > REPEAT_COST:
        return False
    if not _is_large(made):
        return False
    row, column = ({*indices_of(i)} for i in s.target.indices[-2:])
    along = [r for r in reads_of(s.value) if row & {*indices_of(r)}]
    wide = any(program.tensors[r.tensor].dtype.bits > 32 for r in along)
    return not wide and len({r.tensor for r in along if column & {*indices_of(r)}}) <= 1


def _is_large(tensor: Tensor) -> bool:
    """Whether a tensor has many rows and columns, or an unknown number."""
    if tensor.rank < 2 or Const(1) in tensor.shape[-2:]:
        return False
    extents = [e.value if isinstance(e, Const) else inf for e in tensor.shape]
    return prod(extents) * tensor.dtype.bytes >= LARGE


def _only_made(
    graph: Graph, makers: Mapping[str, GraphNode], value: str, gone: list[Call]
) -> Call | None:
    """The call that makes a value for calls of a chain alone, None if there is none."""
    made = makers.get(value)
    if not isinstance(made, Call) or len(made.outputs) != 1 or value in graph.outputs:
        return None
    alone = all(n in gone for n in graph.nodes if value in n.inputs)
    return made if alone and made not in gone else None


def _joined(
    first: Program, second: Program, bindings: Pairs, shared: Pairs,
    wanted: frozenset[str] = frozenset(),
) -> Program | None:  # fmt: skip
    """Both programs as one, in which the temporaries `wanted` are computed where they are read."""
    try:
        return simplified(merge(first, second, dict(bindings), dict(shared)), wanted=wanted)
    except ProgramError:
        return None


def _inlined(first: Program, second: Program, bindings: Pairs, shared: Pairs) -> Program | None:
    """Both programs, with what the first one makes computed where the second one reads it."""
    found = _joined(first, second, bindings, shared, frozenset(t.name for t in first.outputs))
    if found is None or len(found.statements) > len(second.statements):
        return None
    return found if all(size_of(s.value) <= VALUE_LIMIT for s in found.statements) else None


def _is_beside_rows(whole: Call, value: str) -> bool:
    """Whether only statements between the contractions of a chain read a value."""
    inputs = zip(whole.inputs, whole.program.inputs, strict=True)
    names = [t.name for v, t in inputs if v == value]
    statements = whole.program.statements
    first, last = (n for n, s in enumerate(statements) if is_product_sum(s))
    return all(first < n < last for name in names for n in readers(whole.program, name))


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
