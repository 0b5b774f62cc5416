"""Blocked layouts of graph values: ``Y[n, k, p, q]`` as ``Y'[n, k / 16, p, q, k mod 16]``.

A convolution has its lanes along channels, whose elements are a whole image apart: each tile is
transposed in registers when it is stored, and so is whatever is added to it.  Between convolutions
the order of the elements is not visible, so they are stored as the tiles have them; the inputs and
outputs of the graph are unchanged.  Operators on one channel at a time, such as pooling and
concatenation, then have their lanes along channels, too.  Nothing is ever converted: a value is
blocked only if everything that writes or reads it allows it.

Of 8-bit values whose channels are no whole number of blocks, but of the four that an instruction
takes at once, all channels are innermost: ``Y'[n, p, q, k]``.

The bytes of a block depend on the number of elements after the dimension of channels, not on
how others are grouped: views stay views, if these numbers are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from poly.ir.accesses import loops_of_read
from poly.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, UINT8
from poly.ir.expr import Const, Expr, Index, Read, add, indices_of, mul, reads_of, rewrite
from poly.ir.graph import Call, Graph, GraphNode, Routine, View
from poly.ir.layout import Layout, relayout
from poly.ir.linear_form import Linear, linear_form
from poly.ir.program import Program, Range, Statement, Tensor, fresh_name, verify_program
from poly.machine.cpu import Machine

#: The types of values that are computed in vectors of 32 or 64 bits an element.
_IN_LANES = frozenset((FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT8, UINT8))


#: The terms that an instruction adds at once.
TOGETHER = 4


@dataclass(frozen=True)
class Suited:
    """The layouts that a program allows.

    dimensions : for each input and output, the dimensions along which it may be blocked
    lanes : tensors whose tiles are then stored or added as whole vectors
    together : whether all tensors must be blocked, or none, as where elements are copied
    """

    dimensions: Mapping[str, frozenset[int]]
    lanes: frozenset[str] = frozenset()
    together: bool = False


def block_values(graph: Graph, machine: Machine) -> Graph:
    """Keep values between contractions in blocks of channels, one vector wide."""
    width = machine.vector_bytes // FLOAT32.bytes
    if width < 2:
        return graph
    calls = [n for n in graph.nodes if isinstance(n, Call)]
    suited = [_suited(n, graph, width) for n in calls]
    layouts = _chosen(graph, calls, suited, width)
    split = {n.name for n, own in zip(calls, suited, strict=True) if own.together}
    return _with_layouts(graph, layouts, split, width) if layouts else graph


def _chosen(graph: Graph, calls: list[Call], suited: list[Suited], width: int) -> dict[str, Layout]:
    """The layouts of values: for all or none of a family of views, and without conversions."""
    families = _families(graph)
    fixed = {families[v] for v in (*graph.inputs, *graph.outputs, *graph.constants)}
    routines = (n for n in graph.nodes if isinstance(n, Routine))
    fixed |= {families[v] for n in routines for v in (*n.inputs, *n.outputs)}
    inner: dict[str, set[InnerExtent]] = {}
    wanted: set[str] = set()
    copies: list[set[str]] = []
    for call, own in zip(calls, suited, strict=True):
        for tensor, value in _arguments(call):
            root = families[value]
            found = {_inner_extent(tensor, d) for d in own.dimensions.get(tensor.name, ())}
            inner[root] = inner.get(root, found) & found
            if tensor.name in own.lanes:
                wanted.add(root)
        if own.together:
            several = (v for t, v in _arguments(call) if not _is_same(t, own))
            copies.append({families[v] for v in several if v not in graph.constants})
    made = {
        v: _layout(graph.values[v], inner[root], width)
        for v, root in families.items()
        if root in inner and root not in fixed
    }
    blocks: dict[str, set[Blocks | None]] = {}
    for value, layout in made.items():
        kind = None if layout is None else _blocks(graph.values[value], layout)
        blocks.setdefault(families[value], set()).add(kind)
    alike = {root for root, kinds in blocks.items() if len(kinds) == 1 and None not in kinds}
    left = _closed(alike, copies)
    # It pays where lanes are stored, and where such values are copied to or from.
    useful = left & wanted
    for _ in copies:
        useful |= {r for roots in copies if roots & useful and roots <= left for r in roots}
    return {v: x for v, x in made.items() if x is not None and families[v] in useful}


def _is_same(t: Tensor, suited: Suited) -> bool:
    """Whether a tensor has the same bytes blocked or not: it has nothing after its channels."""
    dims = suited.dimensions.get(t.name, frozenset())
    ends = {_inner_extent(t, d) for d in dims if t.shape[d] != Const(1)}
    return _inner_extent(t) == ONE or ends == {ONE}


def _closed(left: set[str], copies: list[set[str]]) -> set[str]:
    """The remaining values, without those that are copied together with any other."""
    while True:
        kept = left - {r for roots in copies if not roots <= left for r in roots}
        if kept == left:
            return left
        left = kept


def _arguments(node: GraphNode) -> Iterator[tuple[Tensor, str]]:
    """The inputs and outputs of a call's program, and the values bound to them."""
    if isinstance(node, Call):
        yield from zip(node.program.inputs, node.inputs, strict=True)
        yield from zip(node.program.outputs, node.outputs, strict=True)


def _families(graph: Graph) -> dict[str, str]:
    """For each value the first of those that are views of the same bytes."""
    root: dict[str, str] = {}
    for node in graph.nodes:
        if isinstance(node, View):
            root[node.output] = root.get(node.input, node.input)
    return {v: root.get(v, v) for v in graph.values}


#: The number of elements after a dimension's index: a number, times unknown extents.
InnerExtent = tuple[int, tuple[Linear, ...]]
#: How many elements are innermost, and the inner extent of their dimension.
Blocks = tuple[Expr, InnerExtent]
ONE: InnerExtent = (1, ())


def _inner_extent(tensor: Tensor, d: int = -1) -> InnerExtent:
    """The number of elements after one index of a dimension; in the whole tensor for -1."""
    extents = [linear_form(e) for e in tensor.shape[d + 1 :]]
    known = prod(e.constant for e in extents if not e.terms)
    return known, tuple(sorted((e for e in extents if e.terms), key=str))


def _layout(value: Tensor, inner: Collection[InnerExtent], width: int) -> Layout | None:
    """The blocks of a value along the first dimension whose inner extent is in `inner`; or, without
    whole blocks, that dimension last.

    Where rows and columns would do as well, as in a depthwise convolution, channels come first.
    """
    fitting = [
        d
        for d, extent in enumerate(value.shape)
        if isinstance(extent, Const)
        and int(extent.value) % _step(value, d, width) == 0 < int(extent.value)
        and _inner_extent(value, d) != ONE
        and _inner_extent(value, d) in inner
    ]
    if not fitting or value.dtype not in _IN_LANES:
        return None
    d = fitting[0]
    if _step(value, d, width) == width:
        return Layout(tuple(range(value.rank)), ((d, width),))
    return Layout((*(e for e in range(value.rank) if e != d), d))


def _blocks(value: Tensor, layout: Layout) -> Blocks:
    """What the order of the bytes depends on."""
    if layout.blocks:
        ((d, width),) = layout.blocks
        return Const(width), _inner_extent(value, d)
    d = layout.order[-1]
    return value.shape[d], _inner_extent(value, d)


def _step(t: Tensor, d: int, width: int) -> int:
    """What the extent of a dimension of channels has to be a multiple of."""
    extent = t.shape[d]
    whole = not isinstance(extent, Const) or int(extent.value) % width == 0
    return width if whole or t.dtype.bits > 8 else TOGETHER


# --- layouts that a program allows ---------------------------------------------------------


def _suited(call: Call, graph: Graph, width: int) -> Suited:
    constant = frozenset(t.name for t, v in _arguments(call) if v in graph.constants)
    program = call.program
    if program.has_blocks or program.updated:
        return Suited({})
    sums = [s for s in program.statements if s.reductions]
    if len(sums) == 1 and (lane := _lane(sums[0], constant)):
        # With few filters, lanes run along the image, whose layout must not change.
        wide = _extent(sums[0], lane) >= width
        return _of_contraction(program, sums[0], lane, constant) if wide else Suited({})
    return _by_channel(program, constant, width)


def _of_contraction(program: Program, s: Statement, lane: str, constant: Collection[str]) -> Suited:
    """The layouts for ``T[.., k, ..] += X[.., c, ..] * W[k, c, ..]`` and its epilogue, with lanes
    along k.

    Reads and writes at k are in lanes; a read at c is a scalar, in any layout.
    """
    loops, lanes = {s.name: {lane, *s.reductions}}, {s.name: lane}
    at = s.target.indices.index(Index(lane))
    sums = {s.target.tensor}  # and what is computed of them
    copied = {r.tensor for r in reads_of(s.value)} & {t.name for t in program.temps}
    for e in program.statements:
        if e is s:
            continue
        if e.target.tensor in copied and not e.reductions:
            loops[e.name], lanes[e.name] = {*e.indices}, ""
            continue
        own = [r for r in reads_of(e.value) if r.tensor in sums]
        here = e.target.indices
        if e.guards or not own or any(r.indices != here for r in own):
            return Suited({})
        x = here[at]
        if not isinstance(x, Index):
            return Suited({})
        loops[e.name], lanes[e.name] = {x.name}, x.name
        sums.add(e.target.tensor)
    found, vectors = {}, set()
    for t in (*program.inputs, *program.outputs):
        if t.name in constant:
            continue
        fitting = set(range(t.rank))
        for e, read in program.accesses(t.name):
            fitting &= {
                d
                for d, x in enumerate(read.indices)
                if isinstance(x, Index) and x.name in loops[e.name] and _once(read, x.name)
            }
            if Index(lanes[e.name]) in read.indices:
                vectors.add(t.name)
        found[t.name] = frozenset(fitting)
    return Suited(found, frozenset(vectors))


def _lane(s: Statement, constant: Collection[str]) -> str | None:
    """The loop that only constants and the target move with; None unless there is just one."""
    reads = reads_of(s.value)
    if s.op != "+=" or all(r.tensor in constant for r in reads):
        return None
    found = [
        x.name
        for x in s.target.indices
        if isinstance(x, Index)
        and any(x.name in loops_of_read(r) for r in reads)
        and all(r.tensor in constant for r in reads if x.name in loops_of_read(r))
        and _once(s.target, x.name)
    ]
    return found[0] if len(found) == 1 else None


def _extent(s: Statement, loop: str) -> int:
    """The number of iterations of a loop, 0 if unknown."""
    r = next(r for r in s.ranges if r.index == loop)
    return int(r.hi.value) if r.lo == Const(0) and isinstance(r.hi, Const) else 0


def _by_channel(program: Program, constant: Collection[str], width: int) -> Suited:
    """The layouts of a program that moves, compares, adds or scales elements channel by channel."""
    for s in program.statements:
        if s.reductions and len({r.tensor for r in reads_of(s.value)} - set(constant)) > 1:
            return Suited({})
    found = {
        t.name: _along_channels(program, t, width)
        for t in (*program.inputs, *program.outputs)
        if t.name not in constant
    }
    return Suited(found, together=True)


def _along_channels(program: Program, t: Tensor, width: int) -> frozenset[int]:
    """The dimensions of a tensor that are read and written at one channel each."""
    fitting = set(range(t.rank))
    for s, read in program.accesses(t.name):
        fitting &= {d for d in range(t.rank) if _channel(s, read, d, _step(t, d, width))}
    return frozenset(fitting)


def _channel(s: Statement, read: Read, d: int, width: int) -> str | None:
    """The free loop x of whole blocks if a dimension is read at x, or some blocks further."""
    form = linear_form(read.indices[d])
    if len(form.terms) != 1 or form.constant % width:
        return None
    ((x, factor),) = form.terms
    if factor != 1 or not isinstance(x, Index) or x.name not in s.free or not _once(read, x.name):
        return None
    r = next(r for r in s.ranges if r.index == x.name)
    whole = r.lo == Const(0) and isinstance(r.hi, Const) and int(r.hi.value) % width == 0
    return x.name if whole and not any(x.name in indices_of(g) for g in s.guards) else None


def _once(read: Read, loop: str) -> bool:
    return sum(loop in indices_of(x) for x in read.indices) == 1


# --- programs on blocked values ------------------------------------------------------------


def _with_layouts(
    graph: Graph, layouts: Mapping[str, Layout], split: Collection[str], width: int
) -> Graph:
    """The graph with these values in other layouts, and programs that access them so.

    split : the calls whose loops are split, too
    """
    values = dict(graph.values)
    for name, layout in layouts.items():
        values[name] = replace(values[name], shape=layout.extents(values[name].shape))
    made: dict[object, Program] = {}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        own = {t.name: layouts[v] for t, v in _arguments(node) if v in layouts}
        if isinstance(node, Call) and own:
            program, loops = node.program, node.name in split
            key = (program.digest, loops, tuple(own.items()))
            if key not in made:
                made[key] = (
                    _split_program(program, own, width) if loops else _relayouted(program, own)
                )
            node = replace(node, program=made[key])
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), values=values)


def _relayouted(program: Program, layouts: Mapping[str, Layout]) -> Program:
    """The program on blocked values, with its loops unchanged."""
    for tensor, layout in layouts.items():
        program = relayout(program, tensor, layout)
    return program


def _split_program(program: Program, layouts: Mapping[str, Layout], width: int) -> Program:
    """The program on blocked values, with loops over blocks and over their elements."""
    last = {t: x for t, x in layouts.items() if not x.blocks}
    if last:
        program = _inside(_relayouted(program, last), last)
    dims = {t: x.blocks[0][0] for t, x in layouts.items() if x.blocks}
    loops = {
        s.name: {
            x: None
            for r in (s.target, *reads_of(s.value))
            if r.tensor in dims and (x := _channel(s, r, dims[r.tensor], width))
        }
        for s in program.statements
    }
    left = list(program.temps)
    while found := next((y for t in left if (y := _with_loops(program, t, loops, width))), None):
        t, d = found
        left.remove(t)
        dims[t.name] = d
        for s, r in program.accesses(t.name):
            loops[s.name][_channel(s, r, d, width) or ""] = None

    def changed(t: Tensor) -> Tensor:
        if t.name not in dims:
            return t
        layout = Layout(tuple(range(t.rank)), ((dims[t.name], width),))
        return replace(t, shape=layout.extents(t.shape))

    statements = [_split(s, program, dims, loops[s.name], width) for s in program.statements]
    return verify_program(program.with_tensors(changed, statements))


def _inside(program: Program, last: Collection[str]) -> Program:
    """The program with the loop along the last dimension of these tensors innermost."""
    statements: list[Statement] = []
    for s in program.statements:
        reads = [r for r in (s.target, *reads_of(s.value)) if r.tensor in last]
        names = {i for r in reads for i in indices_of(r.indices[-1]) if i in s.free}
        free = [r for r in s.ranges if r.index in s.free]
        ranges = [r for r in free if r.index not in names] + [r for r in free if r.index in names]
        summed = [r for r in s.ranges if r.index in s.reductions]
        statements.append(replace(s, ranges=(*ranges, *summed)))
    return verify_program(replace(program, statements=tuple(statements), text=None))


def _with_loops(
    program: Program, t: Tensor, loops: Mapping[str, Mapping[str, None]], width: int
) -> tuple[Tensor, int] | None:
    """A temporary and its only dimension along which some of these loops run, if there is one."""
    own = [
        d
        for d in _along_channels(program, t, width)
        if any(_channel(s, r, d, width) in loops[s.name] for s, r in program.accesses(t.name))
    ]
    return (t, own[0]) if len(own) == 1 else None


def _split(
    s: Statement, program: Program, dims: Mapping[str, int], loops: Iterable[str], width: int
) -> Statement:
    """Strip-mine each loop along blocks of a statement: the loop over the elements of a block is
    innermost.

    dims : the blocked tensors, and their blocked dimensions
    """
    whole: dict[str, Expr] = {}
    taken = {*program.tensors, *program.sizes, *s.indices}
    ranges = list(s.ranges)
    for x in loops:
        outer, inner = fresh_name(f"{x}_b", taken), fresh_name(f"{x}_l", taken)
        whole[x] = add(mul(Const(width), Index(outer)), Index(inner))
        (at,) = (n for n, r in enumerate(ranges) if r.index == x)
        hi = ranges[at].hi
        assert isinstance(hi, Const)
        ranges[at] = Range(outer, Const(0), Const(int(hi.value) // width))
        ranges.insert(len(ranges) - len(s.reductions), Range(inner, Const(0), Const(width)))

    def visit(e: Expr) -> Expr:
        if isinstance(e, Index):
            return whole.get(e.name, e)
        if isinstance(e, Read) and e.tensor in dims:
            d = dims[e.tensor]
            form = linear_form(e.indices[d])
            (outer,) = (x for x, factor in form.terms if factor == width)
            (inner,) = (x for x, factor in form.terms if factor == 1)
            index = add(outer, Const(form.constant // width))
            return replace(e, indices=(*e.indices[:d], index, *e.indices[d + 1 :], inner))
        return e

    target = rewrite(s.target, visit)
    assert isinstance(target, Read)
    return replace(s, target=target, value=rewrite(s.value, visit), ranges=tuple(ranges))
