"""Passes over the loop IR of kernels for GPUs: pure functions from tree to tree.

Threads are many and run in step, so that a condition costs all of them time, and a division more
than most of what is computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from math import prod

from codegen.loops.conditions import implies, parts_of
from codegen.loops.eliminate_dead import without
from codegen.loops.index_ranges import Ranges, extreme
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import (
    Block,
    Buffer,
    Combine,
    For,
    If,
    IfAligned,
    LoopNode,
    Matrix,
    MoveSums,
    MultiplyMatrices,
    Store,
    axis_of,
    block,
    children_of,
    map_children,
    reads_in,
    walk_loops,
)
from codegen.loops.substitute import at_place
from poly.buffers.promotion import TOGETHER
from poly.ir.dtypes import DType
from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    evaluate_int,
    indices_of,
    mul,
    operand_dtype,
    reads_of,
    sizes_of,
    sub,
    walk,
)
from poly.ir.intrinsics import INTRINSICS, SUMS_ALIGNMENT
from poly.ir.linear_form import Linear, linear_form, render


def below(value: Expr, bound: Expr) -> list[Expr]:
    """``value < bound`` as conditions that all hold, without minima and divisions of the bound.

    With a least value, v < min(a, b) + c is v < a + c and v < b + c; with a quotient, v <
    floor(x / k) + c is k (v - c + 1) <= x, since v - c + 1 is whole.
    """
    form = linear_form(bound)
    for atom, factor in form.terms:
        if factor != 1 or not isinstance(atom, Op):
            continue
        rest = render(form.without(atom))
        if atom.fn == "min":
            return [c for arg in atom.args for c in below(value, add(arg, rest))]
        if atom.fn == "floordiv" and isinstance(atom.args[1], Const):
            least = mul(atom.args[1], add(sub(value, rest), Const(1)))
            return [_at_least(sub(atom.args[0], least))]
    return [_at_least(sub(sub(bound, value), Const(1)))]


def _at_least(difference: Expr) -> Expr:
    """``difference >= 0``, with the terms on the side where they are positive."""
    form = linear_form(difference)
    left = Linear(tuple((a, -c) for a, c in form.terms if c < 0), 0)
    right = Linear(tuple((a, c) for a, c in form.terms if c > 0), 0)
    more = form.constant + 1
    if more > 0:
        return Op("lt", (render(left), add(render(right), Const(more))))
    return Op("lt", (add(render(left), Const(-more)), render(right)))


def plain_conditions(root: LoopNode) -> LoopNode:
    """Conditions with neither minima nor divisions, one inside the other, and without those that
    hold for every block of the grid.
    """

    def visit(node: LoopNode, known: frozenset[Expr]) -> LoopNode:
        if isinstance(node, For) and node.mark == "block":
            known |= {*below(Index(node.var), node.upper)}
        node = map_children(node, lambda c: visit(c, known))
        if not isinstance(node, If):
            return node
        parts = [c for c in plain_parts(node.cond) if c not in known]
        if node.other is not None and parts:
            return replace(node, cond=reduce(lambda a, b: Op("and", (a, b)), parts))
        body = node.then
        for c in reversed(parts):
            body = If(c, body)
        return body

    return visit(root, frozenset())


def plain_parts(cond: Expr) -> list[Expr]:
    """Conditions that together are one, in an order in which a thread may ask them, with neither
    minima nor divisions; without those that always hold.
    """
    if isinstance(cond, Op) and cond.fn == "and":
        return [c for arg in cond.args for c in plain_parts(arg)]
    if isinstance(cond, Op) and cond.fn in ("lt", "le", "gt", "ge"):
        a, b = cond.args
        if cond.fn in ("gt", "ge"):
            a, b = b, a
        strict = cond.fn in ("lt", "gt")
        found = below(a, b if strict else add(b, Const(1)))
        return [c for c in found if not _holds(c)]
    return [cond]


def _holds(cond: Expr) -> bool:
    """Whether a comparison of constants is true."""
    if not isinstance(cond, Op) or not all(isinstance(a, Const) for a in cond.args):
        return False
    a, b = (arg.value for arg in cond.args if isinstance(arg, Const))
    return a < b if cond.fn == "lt" else a <= b if cond.fn == "le" else False


def begun_everywhere(root: LoopNode) -> LoopNode:
    """What threads combine begins as the identity on all of them, whether they have parts or not:
    those beyond the last row take part, too.
    """

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, Buffer):
            return node
        inside = list(walk_loops(node.body))
        if not any(isinstance(n, Combine) and n.target.tensor == node.name for n in inside):
            return node
        begun = [
            n for n in inside
            if isinstance(n, Store) and n.target.tensor == node.name and n.op == "="
        ]  # fmt: skip
        rest = without(node.body, {id(n) for n in begun})
        return replace(node, body=block([*begun[:1], rest]))

    return visit(root)


# --- what nobody sees ------------------------------------------------------------------------


def unguarded(root: LoopNode) -> LoopNode:
    """Without conditions on what goes to registers that nobody looks at where these fail.

    All that reads or writes an element of a register buffer is under a condition that does not
    change as long as there is that buffer: where it fails, the element is never used, and may hold
    anything.  It may then be computed from whatever is in buffers; places in them must exist.
    """

    def visit(
        node: LoopNode, ranges: Ranges, bound: frozenset[str], buffers: dict[str, Buffer]
    ) -> LoopNode:
        ranges = ranges_inside(node, ranges)
        if isinstance(node, For):
            bound |= {node.var}
        if isinstance(node, Buffer):
            buffers = {**buffers, node.name: node}
        node = map_children(node, lambda c: visit(c, ranges, bound, buffers))
        if isinstance(node, Buffer) and node.scope == "register":
            free = _common_conditions(node, bound)
            if free:
                return replace(node, body=_without(node.body, node.name, free, ranges, buffers))
        return node

    return visit(root, {}, frozenset(), {})


def _common_conditions(buffer: Buffer, bound: frozenset[str]) -> dict[Read, frozenset[Expr]]:
    """For each element of a buffer the conditions under which alone it is touched."""
    found: dict[Read, list[frozenset[Expr]]] = defaultdict(list)
    asked = {n.cond for n in walk_loops(buffer.body) if isinstance(n, If) and n.other is None}
    asked = {c for c in asked if set(indices_of(c)) <= bound}

    def visit(node: LoopNode, above: frozenset[Expr]) -> None:
        if isinstance(node, If) and node.other is None:
            visit(node.then, above | ({node.cond} & asked))
        elif isinstance(node, IfAligned):
            whole = [p for p in parts_of(node.cond) if set(indices_of(p)) <= bound]
            visit(node.then, above | {c for c in asked if any(implies(p, c) for p in whole)})
            visit(node.other, above)
        elif isinstance(node, (Store, Combine)):
            for read in reads_in(node):
                if read.tensor == buffer.name:
                    found[read].append(above)
        else:
            for child in children_of(node):
                visit(child, above)

    visit(buffer.body, frozenset())
    if not all(isinstance(i, Const) for read in found for i in read.indices):
        return {}
    return {read: frozenset.intersection(*all_of) for read, all_of in found.items()}


def _without(
    node: LoopNode,
    name: str,
    free: dict[Read, frozenset[Expr]],
    ranges: Ranges,
    buffers: dict[str, Buffer],
) -> LoopNode:
    """The tree without conditions that matter to nobody."""
    ranges = ranges_inside(node, ranges)
    if isinstance(node, Buffer):
        buffers = {**buffers, node.name: node}
    node = map_children(node, lambda c: _without(c, name, free, ranges, buffers))
    if not isinstance(node, If) or node.other is not None:
        return node
    for n in walk_loops(node.then):
        if isinstance(n, Store):
            if node.cond not in free.get(n.target, ()) or not _computable(n, name, ranges, buffers):
                return node
        elif not isinstance(n, (If, Block)):
            return node
    return node.then


def _computable(store: Store, name: str, ranges: Ranges, buffers: dict[str, Buffer]) -> bool:
    """Whether a store may run anywhere: it reads what there is, and nothing that it does traps."""
    for read in reads_of(store.value):
        buffer = buffers.get(read.tensor)
        if buffer is None:
            return False
        if read.tensor == name:
            continue
        for index, size in zip(read.indices, buffer.shape, strict=True):
            low, high = extreme(index, ranges, min), extreme(index, ranges, max)
            if low is None or high is None or low < 0 or high >= size:
                return False
    dtypes = {n: b.dtype for n, b in buffers.items()}
    return not any(_may_trap(e, dtypes) for e in walk(store.value))


def _may_trap(e: Expr, dtypes: Mapping[str, DType]) -> bool:
    """Whether an expression divides integers by what may be 0."""
    if not isinstance(e, Op) or e.fn not in ("div", "floordiv", "mod", "fmod"):
        return False
    by_zero = not isinstance(e.args[1], Const) or e.args[1].value == 0
    return by_zero and not operand_dtype(e, dtypes, None).is_float


# --- shared memory ---------------------------------------------------------------------------


def constant_trips(root: LoopNode) -> LoopNode:
    """Copies to and from shared memory with loops of a fixed length, which compilers write out.

    ``for (e = row; e < min(n, 16); e += 4)``, row in 0:4, becomes ``for (e = 0; e < 16; e += 4)``
    with e + row in its place, below a condition: what is read is then under way at once.
    """

    def visit(node: LoopNode, ranges: Ranges, shared: frozenset[str]) -> LoopNode:
        if isinstance(node, Buffer) and node.scope == "shared":
            shared |= {node.name}
        inner = ranges_inside(node, ranges)
        node = map_children(node, lambda c: visit(c, inner, shared))
        if isinstance(node, For) and node.mark == "seq" and _copies(node.body, shared):
            return _constant(node, ranges)
        return node

    return visit(root, {}, frozenset())


def _copies(node: LoopNode, shared: frozenset[str]) -> bool:
    """Whether all that a body does is to copy to or from shared memory."""
    stores = [n for n in walk_loops(node) if isinstance(n, Store)]
    plain = all(isinstance(s.value, Read) and s.op == "=" for s in stores)
    return plain and all(any(r.tensor in shared for r in reads_in(s)) for s in stores)


def _constant(node: For, ranges: Ranges) -> LoopNode:
    conditions = below(Index(node.var), node.upper)
    ends = [c for c in conditions if isinstance(c, Op) and c.args[0] == Index(node.var)]
    ends = [c for c in ends if isinstance(c.args[1], Const) and c.fn == "lt"]
    if not ends:
        return node
    end = ends[0].args[1]
    assert isinstance(end, Const)
    low, high = extreme(node.lower, ranges, min), extreme(node.lower, ranges, max)
    if low is None or high is None or low < 0 or high >= node.step or int(end.value) % node.step:
        return node
    body = node.body
    for c in reversed([c for c in conditions if c != ends[0]]):
        body = If(c, body)
    place = add(Index(node.var), node.lower)
    return replace(node, lower=Const(0), upper=end, body=at_place(body, node.var, place))


#: Banks of shared memory, each of so many bytes, which serve one place each at a time.
BANKS, BANK_BYTES = 32, 4
#: Elements by which rows are made longer: those first that keep rows aligned for vectors.
_PADDING = (0, 4, 8, 1, 2)
#: Rows that are aligned, of which several elements are read at once, may take so much more time.
_ALIGNED_WORTH = 1.25


def spread_banks(root: LoopNode, block: tuple[int, int, int], limit: int) -> LoopNode:
    """Shared buffers with longer rows, where otherwise threads of a warp would wait for a bank.

    block : threads in x, y and z; limit : bytes that a block may share
    """
    buffers = {n.name: n for n in walk_loops(root) if isinstance(n, Buffer) and n.scope == "shared"}
    total = sum(b.dtype.bytes * prod(b.shape) for b in buffers.values())
    found: dict[str, int] = {}
    for name, buffer in buffers.items():
        if len(buffer.shape) < 2:
            continue
        lanes = _places(root, buffer, block)
        if not lanes:
            continue
        unit = max(_matrix_unit(root, buffer), _copy_unit(root, buffer))
        paddings = [p for p in _PADDING if p % unit == 0] if unit <= _PADDING[2] else [0, unit]
        cost = {p: _conflicts(buffer, p, lanes) for p in paddings}
        aligned = min((p for p in paddings if p % _PADDING[1] == 0), key=cost.__getitem__)
        least = min(paddings, key=cost.__getitem__)
        pad = aligned if cost[aligned] <= cost[least] * _ALIGNED_WORTH else least
        more = pad * buffer.dtype.bytes * prod(buffer.shape[:-1])
        if pad and total + more <= limit:
            found[name], total = pad, total + more

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if isinstance(node, Buffer) and node.name in found:
            *outer, last = node.shape
            return replace(node, shape=(*outer, last + found[node.name]))
        return node

    return visit(root)


def _matrices(node: LoopNode) -> list[tuple[Matrix, str]]:
    """The matrices in memory of one node, with the instruction."""
    if isinstance(node, MultiplyMatrices):
        return [(m, node.intrinsic) for _, *pair in node.products for m in pair]
    if isinstance(node, MoveSums) and node.memory is not None:
        return [(node.memory, "")]
    return []


def _matrix_unit(root: LoopNode, buffer: Buffer) -> int:
    """Rows of a buffer keep their places at multiples of so many elements, for matrices."""
    units = [
        (INTRINSICS[name].alignment if name else SUMS_ALIGNMENT) // buffer.dtype.bytes
        for n in walk_loops(root)
        for m, name in _matrices(n)
        if m.first.tensor == buffer.name
    ]
    return max(units, default=1)


def _copy_unit(root: LoopNode, buffer: Buffer) -> int:
    """And of so many, where threads copy neighbours to them at once."""
    loops = (n for n in walk_loops(root) if isinstance(n, For) and n.mark == "together")
    copied = any(r.tensor == buffer.name for n in loops for r in reads_in(n))
    return TOGETHER // buffer.dtype.bytes if copied else 1


def _of_matrix(
    matrix: Matrix, buffer: Buffer, lanes: list[dict[str, int]]
) -> list[tuple[int, ...]]:
    """Where a warp loads from a matrix at once: 16 bytes of each of 8 rows or columns."""
    last = len(buffer.shape) - 1
    across = matrix.rows if matrix.columns == last else matrix.columns
    first = [evaluate_int(i, lanes[0]) for i in matrix.first.indices]
    found = []
    for lane in range(len(lanes)):
        place = list(first)
        place[across] += lane // 4
        place[last] += lane % 4 * max(1, BANK_BYTES // buffer.dtype.bytes)
        found.append(tuple(place))
    return found


def _places(
    root: LoopNode, buffer: Buffer, block: tuple[int, int, int]
) -> list[list[tuple[int, ...]]]:
    """For each access to a buffer where the threads of the first warp make it; loops are at 0."""
    name = buffer.name
    found: list[list[tuple[int, ...]]] = []
    x, y, _ = block
    threads = range(min(BANKS, prod(block)))

    def visit(node: LoopNode, lanes: list[dict[str, int]]) -> None:
        if isinstance(node, For):
            if node.mark == "thread":
                own = [(t % x, t // x % y, t // (x * y))[axis_of(node)] for t in threads]
            elif node.mark == "place":
                own = [evaluate_int(node.lower, env) for env in lanes]
            else:
                own = [0] * len(lanes)
            lanes = [{**env, node.var: v} for env, v in zip(lanes, own, strict=True)]
        if isinstance(node, Store):
            for read in reads_in(node):
                if read.tensor == name and not any(sizes_of(i) for i in read.indices):
                    found.append([tuple(evaluate_int(i, env) for i in read.indices)
                                  for env in lanes])  # fmt: skip
        for matrix, _ in _matrices(node):
            if matrix.first.tensor == name and not any(map(sizes_of, matrix.first.indices)):
                found.append(_of_matrix(matrix, buffer, lanes))
        for child in children_of(node):
            visit(child, lanes)

    visit(root, [{} for _ in threads])
    return found


def _conflicts(buffer: Buffer, pad: int, accesses: list[list[tuple[int, ...]]]) -> int:
    """How many times banks are asked in all, if rows are longer by some elements."""
    shape = (*buffer.shape[:-1], buffer.shape[-1] + pad)
    total = 0
    for places in accesses:
        asked: dict[int, set[int]] = defaultdict(set)
        for place in places:
            flat = 0
            for index, extent in zip(place, shape, strict=True):
                flat = flat * extent + index
            word = flat * buffer.dtype.bytes // BANK_BYTES
            asked[word % BANKS].add(word)
        total += max(map(len, asked.values()))
    return total
