"""What accesses say about loops: extents, reuse, strides, and whether a nest is a contraction."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import islpy as isl

from poly.expr import Cast, Const, Expr, Index, Op, Read, Size, indices_of, walk
from poly.linear import linear_form
from poly.machine import Machine
from poly.promotion import BUFFER_LIMIT
from poly.schedule import Schedule
from poly.scop import Scop, ScopStatement
from poly.tree import joint, loops_of

#: Multiply-adds that have to be under way to keep the processor busy.
IN_FLIGHT = 8
#: Instructions to turn one of the vectors around in registers and store it.
SCATTER = 6
#: An operand is packed if each of its elements is used this often at least.
PACKING_REUSE = 2
#: Operators of which a register tile may be made: one or a few instructions each.
TILE_OPS = frozenset(("add", "sub", "mul", "div", "neg", "min", "max", "abs"))


@dataclass(frozen=True)
class Contraction:
    """An update with reuse, and the loops to tile.

    v, w : the vector loop, and the loop along which the vector operands are reused ("" if none)
    lanes, vectors, rows : the register tile is ``rows`` by ``vectors`` vectors of ``lanes``
    packed : tensors that move with v but are not contiguous along it, with the dimension of v
    free, reductions : the statement's loops; `shaped` are reductions that bound w (padding)
    """

    statement: str
    v: str
    w: str
    lanes: int
    vectors: int
    rows: int
    packed: tuple[tuple[str, int], ...]
    free: tuple[str, ...]
    reductions: tuple[str, ...]
    shaped: tuple[str, ...]
    extents: tuple[tuple[str, int | None], ...]

    def extent(self, loop: str) -> int | None:
        return dict(self.extents).get(loop)


def static_extents(s: ScopStatement) -> dict[str, int | None]:
    """For each dimension of a statement, its constant extent over the domain, else None."""
    result: dict[str, int | None] = {}
    for k, name in enumerate(s.loops):
        low, high = s.domain.dim_min_val(k), s.domain.dim_max_val(k)
        result[name] = (
            int(high.to_python()) - int(low.to_python()) + 1
            if low.is_int() and high.is_int()
            else None
        )
    return result


def loop_extents(schedule: Schedule, statement: str) -> dict[str, int | None]:
    """For each loop around a statement, its constant extent, else None."""
    domain = schedule.scop.statement(statement).domain
    union = isl.UnionSet.from_set(domain)
    result: dict[str, int | None] = {}
    for m in loops_of(schedule.tree, statement):
        f = isl.MultiUnionPwAff.from_union_pw_aff(m.schedule.intersect_domain_union_set(union))
        sets = union.apply(isl.UnionMap.from_multi_union_pw_aff(f)).get_set_list()
        if not sets.n_set():
            result[m.name] = 0
            continue
        values = sets.get_at(0)
        low, high = values.dim_min_val(0), values.dim_max_val(0)
        known = low.is_int() and high.is_int()
        result[m.name] = int(high.to_python()) - int(low.to_python()) + 1 if known else None
    return result


def shares_ranges(
    schedule: Schedule, first: tuple[str, ...], second: tuple[str, ...], depth: int
) -> bool:
    """Whether the outer `depth` loops of two groups take the same values, position by position.

    At sizes where one group has no instances at all, the question does not arise.
    """
    a, b = (_outer_values(schedule, names[-1], depth) for names in (first, second))
    if a is None or b is None:
        return False
    return bool(a.intersect_params(b.params()).is_equal(b.intersect_params(a.params())))


def _outer_values(schedule: Schedule, statement: str, depth: int) -> isl.Set | None:
    members = loops_of(schedule.tree, statement)[:depth]
    if len(members) < depth:
        return None
    domain = schedule.scop.statement(statement).domain
    union = isl.UnionSet.from_set(domain)
    f = joint([m.schedule.intersect_domain_union_set(union) for m in members])
    sets = union.apply(isl.UnionMap.from_multi_union_pw_aff(f)).get_set_list()
    return sets.get_at(0) if sets.n_set() else None


def lane_value(e: Expr) -> bool:
    """Whether generated code computes an expression in vector lanes as a whole.

    It has all operators there; loops' numbers as values and places that depend on data it
    computes lane by lane.
    """
    if isinstance(e, Read):
        return not any(isinstance(x, Read) for i in e.indices for x in walk(i))
    if isinstance(e, Op):
        return all(lane_value(a) for a in e.args)
    return isinstance(e, (Const, Size)) or (isinstance(e, Cast) and lane_value(e.arg))


def tile_value(e: Expr) -> bool:
    """Whether an expression may be computed for each element of a register tile."""
    operators = {x.fn for x in walk(e) if isinstance(x, Op)}
    return lane_value(e) and operators <= TILE_OPS


def stride_of(read: Read, loop: str) -> int | None:
    """How many elements of its last dimension `read` moves with `loop`.

    0: not at all; n: only the last dimension moves, n times the loop; None: otherwise.
    """
    *outer, last = read.indices or (Const(0),)
    if any(loop in indices_of(i) for i in outer):
        return None
    form = linear_form(last)
    rest = form.without(Index(loop))
    if any(loop in indices_of(a) for a, _ in rest.terms):
        return None
    return form.coefficient(Index(loop))


def plain_dimension(read: Read, loop: str) -> int | None:
    """The one dimension of `read` whose index is just `loop`, if no other moves with it."""
    moving = [k for k, i in enumerate(read.indices) if loop in indices_of(i)]
    if len(moving) == 1 and read.indices[moving[0]] == Index(loop):
        return moving[0]
    return None


def moving_dimensions(read: Read, loop: str) -> tuple[int, ...]:
    """The dimensions of `read` whose index moves with `loop`."""
    return tuple(k for k, i in enumerate(read.indices) if loop in indices_of(i))


def block_of(read: Read, loop: str) -> int | None:
    """The block size of a tensor that is kept in blocks along `loop`, as in
    ``A[c // 16, p, q, c mod 16]`` along c.
    """
    dims = moving_dimensions(read, loop)
    if len(dims) != 2 or dims[1] != len(read.indices) - 1:
        return None
    outer, inner = (read.indices[d] for d in dims)
    if not isinstance(inner, Op) or inner.fn != "mod" or inner.args[0] != Index(loop):
        return None
    size = inner.args[1]
    same = isinstance(size, Const) and outer == Op("floordiv", (Index(loop), size))
    return int(size.value) if same and isinstance(size, Const) else None


def vector_stride(read: Read, loop: str, lanes: int) -> int | None:
    """`stride_of` for a vector of `lanes` iterations that begins at a multiple of `lanes`."""
    block = block_of(read, loop)
    return 1 if block is not None and block % lanes == 0 else stride_of(read, loop)


def lane_dimension(read: Read, loop: str, lanes: int) -> int | None:
    """The dimension of `read` in which the lanes of a vector along `loop` lie, if it is one."""
    block = block_of(read, loop)
    if block is not None and block % lanes == 0:
        return len(read.indices) - 1
    return plain_dimension(read, loop)


def find_contraction(scop: Scop, s: ScopStatement, machine: Machine) -> Contraction | None:
    """How to register-tile `s`, or None if it is no contraction with a usable vector loop."""
    tensor = scop.program.tensors[s.target.tensor]
    if not s.is_reduction or s.may_reads or tensor.dtype.name not in ("float32", "float64"):
        return None
    reductions = s.source.reductions
    reads = [r for r in s.source.reads if r.indices]
    same = all(scop.program.tensors[r.tensor].dtype == tensor.dtype for r in s.source.reads)
    if not reductions or not reads or not same or not tile_value(s.value):
        return None
    free = s.source.free
    moves = {r: _loops(r) for r in reads}
    if all(set(free) <= moved for moved in moves.values()):
        return None
    extents = static_extents(s)
    lanes = machine.vector_bytes // tensor.dtype.bytes
    best: tuple[tuple[int, ...], Contraction] | None = None
    for v in free:
        made = _with_vector(
            s, v, free, reductions, reads, moves, extents, lanes, tensor.dtype.bytes, machine
        )
        if made is not None and (best is None or made[0] > best[0]):
            best = made
    return best[1] if best is not None else None


def _with_vector(
    s: ScopStatement,
    v: str,
    free: tuple[str, ...],
    reductions: tuple[str, ...],
    reads: list[Read],
    moves: dict[Read, frozenset[str]],
    extents: dict[str, int | None],
    lanes: int,
    tensor_bytes: int,
    machine: Machine,
) -> tuple[tuple[int, ...], Contraction] | None:
    """The contraction with vector loop v, and how good that is (greater is better)."""
    extent = extents[v]
    while extent is not None and lanes > extent:
        lanes //= 2
    if lanes < 2 or lane_dimension(s.target, v, lanes) is None or not is_rectangular(s, v):
        return None
    moving = [r for r in reads if v in moves[r]]
    still = [r for r in reads if v not in moves[r]]
    if not moving:
        return None
    packed: list[tuple[str, int]] = []
    for r in moving:
        if vector_stride(r, v, lanes) == 1:
            continue
        dim = plain_dimension(r, v)
        if dim is None:
            return None
        packed.append((r.tensor, dim))
    w = _row_loop(v, free, moving, still, extents)
    if any(
        _reuse(s, r, extents) < PACKING_REUSE for r in moving if vector_stride(r, v, lanes) != 1
    ):
        return None
    panel = tensor_bytes * lanes
    for loop in reductions:
        panel *= extents[loop] or 1
    most = max(1, BUFFER_LIMIT // panel)
    # Where the rows' place in the target is not just w, only whole tiles begin at multiples.
    exact = bool(w) and plain_dimension(s.target, w) is None
    height = extents.get(w) if w else 1
    length = 1
    for loop in reductions:
        length *= extents[loop] or 64
    scattered = vector_stride(s.target, v, lanes) != 1

    def loads(vectors: int, rows: int) -> int:
        """A row needs again what moves with w."""
        again = [vectors * (rows if w in _loops(r) else 1) for r in moving]
        return sum(again) + sum(rows if w in _loops(r) else 1 for r in still)

    # Lanes that lie apart in memory are turned around in registers, `lanes` rows at a time.
    cost = TileCost(loads, (SCATTER * lanes if scattered else 1) / length)
    vectors, rows = register_tile(extent, height, lanes, machine, most, exact, cost)
    shaped = tuple(r for r in reductions if w and not is_rectangular(s, w, (r,)))
    full = extent is None or extent % lanes == 0
    score = (
        int(full),
        lanes,
        int(bool(w)),
        # The more loops reuse the vector operand, the less packing and loading it costs.
        sum(all(x not in moves[r] for r in moving) for x in free),
        int(vector_stride(s.target, v, lanes) == 1),
        -len(packed),
        extent or 1 << 30,
    )
    found = Contraction(
        s.name, v, w, lanes, vectors, rows, tuple(packed), free, reductions, shaped,
        tuple(extents.items()),
    )  # fmt: skip
    return score, found


def _row_loop(
    v: str,
    free: tuple[str, ...],
    moving: list[Read],
    still: list[Read],
    extents: dict[str, int | None],
) -> str:
    """The loop of a tile's rows: the one along which the fewest operands have to be loaded again.

    A vector that is loaded again costs more than a scalar.  Of equal loops that offer enough
    rows, the innermost keeps neighbouring reads together.  "" if every row needs all operands.
    """
    costs = {}
    for w in free:
        if w != v and extents[w] != 1:
            loads = [2 * (w in _loops(r)) for r in moving] + [w in _loops(r) for r in still]
            if sum(loads) < 2 * len(moving) + len(still):
                costs[w] = sum(loads)
    least = [w for w in costs if costs[w] == min(costs.values())]
    enough = [w for w in least if extents[w] is None or (extents[w] or 0) >= 4]
    if enough:
        return enough[-1]
    return max(least, key=lambda w: (extents[w] or 0, free.index(w)), default="")


def _loops(read: Read) -> frozenset[str]:
    return frozenset(i for e in read.indices for i in indices_of(e))


def _reuse(s: ScopStatement, read: Read, extents: dict[str, int | None]) -> float:
    """How often an element of a read is used: instances over elements, as far as extents are
    known; where some are not, the loops that do not move it count as large.
    """
    loops = _loops(read)
    if any(extents[x] is None for x in s.loops):
        return float(PACKING_REUSE if any(x not in loops for x in s.loops) else 1)
    instances = 1
    for x in s.loops:
        instances *= extents[x] or 1
    elements = 1
    for index in read.indices:
        form = linear_form(index)
        span = sum(abs(c) * ((extents.get(a.name) or 1) - 1) if isinstance(a, Index) else 0
                   for a, c in form.terms)  # fmt: skip
        elements *= span + 1
    return instances / elements


@dataclass(frozen=True)
class TileCost:
    """What one iteration of the reduction costs, in multiply-adds of a vector.

    loads : the number of operands that a tile of (vectors, rows) loads
    store : of a vector of the result, shared among the iterations
    """

    loads: Callable[[int, int], int] = operator.add
    store: float = 0.0

    def __call__(self, vectors: int, rows: int) -> float:
        used, loads = vectors * rows, self.loads(vectors, rows)
        # Loads run beside multiply-adds, but not quite for nothing.
        return max(used, loads, IN_FLIGHT) + loads / 8 + vectors * self.store


def register_tile(
    columns: int | None,
    rows: int | None,
    lanes: int,
    machine: Machine,
    most_vectors: int = 4,
    exact: bool = False,
    cost: TileCost | None = None,
) -> tuple[int, int]:
    """(vectors, rows) of accumulators that fit the registers beside operands, for given extents.

    Rows are a divisor of the extent where a good one exists, so that no tile is partial;
    `exact` allows nothing else.
    """
    cost = cost or TileCost()
    accumulators = machine.registers - 4
    best = (0.0, 1, 1)
    for vectors in (1, 2, 4):
        if vectors > most_vectors or (columns is not None and columns // lanes % vectors):
            continue
        most = min(accumulators // vectors, 14)
        for count in range(1, most + 1):
            if rows is not None and count > rows:
                break
            # A partial tile runs several times slower than a full one.
            partial = 0.0 if rows is None else rows % count / rows
            wasted = 1.0 + 3 * partial if partial == 0 else 1.1 + 3 * partial
            if exact and partial:
                continue
            quality = vectors * count / cost(vectors, count) / wasted
            if quality > best[0] * 1.01:
                best = (quality, vectors, count)
    if rows is None:
        # A symbolic extent has a tail of up to rows - 1; a moderate tile keeps it short.
        return 2 if columns is None or columns // lanes % 2 == 0 else 1, 8
    return best[1], best[2]


def is_rectangular(s: ScopStatement, loop: str, against: tuple[str, ...] | None = None) -> bool:
    """Whether the values of `loop` do not depend on the statement's other loops.

    against : only those other loops are asked about (all if None).
    """
    position = s.loops.index(loop)
    domain = s.domain
    others = [
        k for k, name in enumerate(s.loops)
        if k != position and (against is None or name in against)
    ]  # fmt: skip
    if against is not None:
        dropped = [k for k in range(len(s.loops)) if k != position and k not in others]
        for k in reversed(dropped):
            domain = domain.project_out(isl.dim_type.set, k, 1)
            position -= int(k < position)
    dims = domain.dim(isl.dim_type.set)
    alone = domain
    rest = domain.project_out(isl.dim_type.set, position, 1).insert_dims(
        isl.dim_type.set, position, 1
    )
    for k in reversed(range(dims)):
        if k != position:
            alone = alone.project_out(isl.dim_type.set, k, 1)
    spread = alone.insert_dims(isl.dim_type.set, 0, position)
    spread = spread.add_dims(isl.dim_type.set, dims - position - 1)
    spread = spread.reset_tuple_id() if spread.has_tuple_name() else spread
    rest = rest.reset_tuple_id() if rest.has_tuple_name() else rest
    domain = domain.reset_tuple_id() if domain.has_tuple_name() else domain
    return bool(spread.intersect(rest).is_subset(domain))
