"""Vectorise loops: they become chunks of lanes, and reductions in them get accumulators.

A loop over n iterations that may run in lanes becomes (W the most lanes that its types allow):

* a loop over chunks of W, several chunks per iteration;
* for the rest, if n >= W, one more chunk that ends with the loop and so overlaps the one before.
  Storing a value twice is harmless, and a reduction leaves out the lanes that were counted.
  Stores that may not be repeated (``y[i] += …``) use chunks of W/2, W/4, … instead;
* if n < W, the same with fewer lanes, down to single iterations.

Values are the same in all of them, lane by lane.  A reduction over the lanes goes to accumulators
that are combined in a fixed order, so its result depends on the sizes only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from codegen.loops.conditions import all_of
from codegen.loops.index_ranges import Ranges, depends_on, extreme, moves
from codegen.loops.lower_instances import ranges_inside
from codegen.loops.nodes import LANE_0, Block, Buffer, For, If, LoopNode, Store, VectorStore, block
from codegen.loops.substitute import substitute_var
from codegen.loops.traverse import (
    children_of,
    has_mark,
    map_children,
    map_exprs,
    reads_in,
    walk_loops,
)
from codegen.vector.mask_lanes import mask_widths, maskable, masked
from poly.ir.dtypes import BOOL, DType, identity
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    computed,
    dtype_where,
    mul,
    operand_dtype,
    reads_of,
    rewrite,
    sub,
    walk,
)
from poly.ir.layout import Layout
from poly.ir.linear_form import linear_form, normal
from poly.ir.operators import INEXACT, OPS
from poly.ir.program import Program
from poly.tree.kinds import Mark, Scope

#: Lanes of a chunk where there are fewer iterations than the most lanes.
FEWER = 4
#: Chunks per iteration, and accumulators of a reduction: enough to hide the latency of additions.
CHUNKS = 4
#: The most operators in one iteration of a loop over chunks, all chunks together.
BODY_LIMIT = 40


def vectorise(root: LoopNode, program: Program, vector_bytes: int) -> LoopNode:
    """Turn vector loops into chunks of vector stores.

    Longer vectors than those of the machine are not used: gcc takes comparisons and conversions of
    them apart, lane by lane.

    A loop whose iterations do not run in step (see `in_lockstep`) stays; it is printed as one that
    the C compiler may run in lanes, unless its iterations combine with one element.
    """
    buffers = [n for n in walk_loops(root) if isinstance(n, Buffer)]
    dtypes = {**program.dtypes, **{n.name: n.dtype for n in buffers}}
    registers = frozenset(n.name for n in buffers if n.scope == Scope.REGISTER)
    taken = {n.var for n in walk_loops(root) if isinstance(n, For)}
    names = set(dtypes)
    widths = mask_widths(root)

    def visit(node: LoopNode, ranges: Ranges) -> LoopNode:
        if isinstance(node, For):
            ranges = ranges_inside(node, ranges)
            bound = ranges.get(node.var)
        node = map_children(node, lambda c: visit(c, ranges))
        if isinstance(node, Buffer) and node.name in widths:
            return _in_whole_vectors(node, widths[node.name])
        if not isinstance(node, For) or node.mark != Mark.VECTOR:
            return node
        if node.step != 1:
            return node if _independent(node) else replace(node, mark=Mark.SEQ)
        chunked = masked(node, bound, widths, registers, dtypes, lane_name(node.var, taken))
        if chunked is not None:
            return chunked
        if in_lockstep(node.body, node.var):
            span = normal(sub(node.upper, node.lower))
            most = extreme(span, ranges, max)
            if bound is not None:
                count = bound[1] - bound[0] + 1
                most = count if most is None else min(most, count)
            body, own = private(node.body, node.var)
            shared = registers - own
            loop = _Loop(node, body, own, span, most, dtypes, shared, taken, names, vector_bytes)
            chunked = loop.chunks()
        if chunked is None:
            return node if _independent(node) else replace(node, mark=Mark.SEQ)
        return chunked

    return hoist(visit(root, {}))


def _in_whole_vectors(buffer: Buffer, lanes: int) -> Buffer:
    """A buffer with room for all lanes of each vector: what is masked is written with the rest."""
    *outer, last = buffer.shape
    return replace(buffer, shape=(*outer, -(-last // lanes) * lanes))


def _independent(node: For) -> bool:
    """Whether no two iterations of a vector loop combine with one element."""
    return all(
        s.op == "=" or any(moves(i, node.var) for i in s.target.indices)
        for s in walk_loops(node.body)
        if isinstance(s, Store)
    )


def lane_stride(read: Read, var: str) -> int | None:
    """The stride of an element along the lane, in elements of its last dimension, else None."""
    for index in read.indices[:-1]:
        if depends_on(index, var):
            return None
    if not read.indices:
        return 0
    form = linear_form(read.indices[-1])
    rest = form.without(Index(var))
    if any(depends_on(a, var) for a, _ in rest.terms):
        return None
    return form.coefficient(Index(var))


def is_reduction(s: Store, var: str) -> bool:
    """Whether all lanes combine with one element."""
    return s.op != "=" and not any(depends_on(i, var) for i in s.target.indices)


def is_index_value(e: Expr, var: str) -> bool:
    """Whether a value moves with the lane, but only through the lane number itself."""
    return depends_on(e, var) and not any(depends_on(r, var) for r in reads_of(e))


def is_lane_by_lane(e: Expr, var: str) -> bool:
    """Whether a number is computed for one lane after another; a select is not: masks choose."""
    chosen = isinstance(e, Op) and OPS[e.fn].rule == "select"
    return is_index_value(e, var) and not chosen


def widest(e: Expr, var: str, want: DType, dtypes: dict[str, DType]) -> int:
    """Bits of the widest type in which some part of a value is computed in lanes."""
    own = dtype_where(e, dtypes, want)
    bits = 8 if own.kind == "b" else max(own.compute.bits, own.bits)
    if not depends_on(e, var):
        return bits if isinstance(e, (Const, Read)) else max(bits, want.compute.bits)
    if is_lane_by_lane(e, var):
        return want.compute.bits if own.kind != "b" else 8
    if isinstance(e, Cast):
        return max(bits, widest(e.arg, var, dtype_where(e.arg, dtypes, e.dtype), dtypes))
    if isinstance(e, Op):
        met = operand_dtype(e, dtypes, want)
        parts = [widest(a, var, met, dtypes) for a in e.args if depends_on(a, var)]
        if OPS[e.fn].rule == "select":
            parts[:0] = [widest(e.args[0], var, BOOL, dtypes)]
        return max([bits, 8 if met.kind == "b" else met.compute.bits, *parts])
    return bits


def in_lockstep(body: LoopNode, var: str) -> bool:
    """Whether all iterations of a loop take the same steps, so that lanes can run them together.

    Loops and conditions inside may not depend on its variable, and buffers inside are registers.
    """
    if isinstance(body, For):
        same = not depends_on(body.lower, var) and not depends_on(body.upper, var)
        return same and body.mark in (Mark.SEQ, Mark.UNROLL) and in_lockstep(body.body, var)
    if isinstance(body, If):
        if depends_on(body.cond, var) or not in_lockstep(body.then, var):
            return False
        return body.other is None or in_lockstep(body.other, var)
    if isinstance(body, Buffer):
        return body.scope == Scope.REGISTER and in_lockstep(body.body, var)
    if isinstance(body, Block):
        return all(in_lockstep(c, var) for c in body.children)
    return isinstance(body, Store)


def private(body: LoopNode, var: str) -> tuple[LoopNode, frozenset[str]]:
    """A loop's body, in which its buffers have one more index, the iteration."""
    own = frozenset(n.name for n in walk_loops(body) if isinstance(n, Buffer))

    def visit(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in own:
            return replace(e, indices=(*e.indices, Index(var)))
        return e

    return (map_exprs(body, lambda e: rewrite(e, visit)) if own else body), own


@dataclass(frozen=True)
class _Loop:
    """One vector loop; `most` bounds its number of iterations, `span`.

    vector_bytes : of the machine's vectors
    body : its body, in which the buffers `own` of one iteration have a dimension for the lane.
    """

    node: For
    body: LoopNode
    own: frozenset[str]
    span: Expr
    most: int | None
    dtypes: dict[str, DType]
    registers: frozenset[str]
    taken: set[str]
    names: set[str]
    vector_bytes: int

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        return tuple(n for n in walk_loops(self.body) if isinstance(n, Store))

    @property
    def is_plain(self) -> bool:
        """Whether the body is a list of stores."""
        nodes = self.body.children if isinstance(self.body, Block) else (self.body,)
        return all(isinstance(n, Store) for n in nodes)

    @cached_property
    def fewest(self) -> int:
        """The fewest lanes of a vector.

        gcc 12 compiles ``v[k] = a[k] > 0`` in two lanes of fewer than 64 bits as ``v = a > 0``,
        which is -1 where it should be 1.
        """
        touched = {self.dtypes[r.tensor].bits for r in reads_in(self.node)}
        casts = {e.dtype.bits for s in self.stores for e in walk(s.value) if isinstance(e, Cast)}
        return 2 if touched | casts == {64} else 4

    def chunks(self) -> LoopNode | None:
        """The loop in chunks, or None if it has to stay a loop."""
        var = self.node.var
        if not all(self._acts(s) for s in self.stores):
            return None
        if any(self._fed_by_lanes(s) for s in self.stores):
            return None
        bits = max(
            max(
                s.dtype.bits,
                s.dtype.compute.bits,
                widest(s.value, var, s.dtype, self.dtypes),
            )
            for s in self.stores
        )
        width = max(self.vector_bytes * 8 // bits, self.fewest)
        if self.most is not None and self.most > 0:
            width = min(width, 1 << (self.most.bit_length() - 1))
        if isinstance(self.span, Const) and int(self.span.value) < 2:
            return self._single() if int(self.span.value) == 1 else Block(())
        return self._with_accumulators(width) if width >= self.fewest else None

    def _acts(self, s: Store) -> bool:
        var = self.node.var
        if s.dtype.kind == "b" and s.op != "=":
            return False
        if is_reduction(s, var):
            inner = {n.var for n in walk_loops(self.body) if isinstance(n, For)}
            return not any(depends_on(s.target, v) for v in inner)
        stride = lane_stride(s.target, var)
        if s.op != "=":
            return stride == 1
        return any(moves(i, var) for i in s.target.indices)

    def _fed_by_lanes(self, s: Store) -> bool:
        """Whether a store needs the combined value of all lanes of the loop."""
        var = self.node.var
        combined = {o.target.tensor for o in self.stores if is_reduction(o, var)}
        read = {r.tensor for r in reads_of(s.value)}
        if is_reduction(s, var):
            others = [o for o in self.stores if o is not s and o.target.tensor == s.target.tensor]
            return bool(others) or s.target.tensor in read
        return bool(combined & read) or s.target.tensor in combined

    def _with_accumulators(self, width: int) -> LoopNode:
        """The chunks, inside the accumulators that they need, with the final combinations."""
        reductions = [s for s in self.stores if is_reduction(s, self.node.var)]
        accumulators = {id(s): self._fresh(s.target.tensor) for s in reductions}
        body, used = self._body(width, accumulators)
        for s in reductions:
            name = accumulators[id(s)]
            final: LoopNode = Store(s.target, s.op, Read(name, ()), s.dtype, s.statement)
            if not isinstance(self.span, Const):
                final = If(Op("lt", (self.node.lower, self.node.upper)), final)
            shape = (used, width)
            dtype = s.dtype.compute
            body = Buffer(
                name, s.target.tensor, dtype, shape, Layout((0, 1)), Scope.LANES,
                block([body, final]), (), s.op,
            )  # fmt: skip
        return body

    def _fresh(self, tensor: str) -> str:
        name, count = f"{tensor}_lanes", 2
        while name in self.names:
            name, count = f"{tensor}_lanes{count}", count + 1
        self.names.add(name)
        return name

    def _single(self) -> LoopNode:
        return substitute_var(self.node.body, self.node.var, self.node.lower)

    def _body(
        self, width: int, accumulators: dict[int, str], chunks: int = CHUNKS
    ) -> tuple[LoopNode, int]:
        """All chunks, and the number of accumulators of a reduction."""
        lower, upper, span = self.node.lower, self.node.upper, self.span
        size = _body_cost(self.body)
        most = max(1, min(chunks, BODY_LIMIT // max(size, 1)))
        if self.most is not None:
            most = max(1, min(most, self.most // width))
        chunk = _Chunks(self, width, accumulators)
        if isinstance(span, Const):
            count = int(span.value)
            full, rest = count // width, count % width
            most = min(most, full)
            whole = full // most * most
            nodes = [chunk.loop(lower, add(lower, Const(whole * width)), most)]
            for k in range(whole, full):
                nodes.append(chunk.at(add(lower, Const(k * width)), k % most))
            if rest:
                nodes += self._rest(chunk, rest, full, most)
            return block(nodes), most
        if self.most == width and not accumulators:
            return If(Op("le", (Const(width), span)), chunk.at(lower, 0), self._part(chunk)), 1
        tiles = _multiple(span, width * most)
        nodes = [chunk.loop(lower, add(lower, tiles), most)]
        if most > 1:
            rest_of = add(lower, _multiple(span, width))
            nodes.append(chunk.loop(add(lower, tiles), rest_of, 1))
        left = Op("fmod", (span, Const(width)))
        end = sub(upper, Const(width))
        if self._repeatable():
            again = chunk.at(end, 0, sub(Const(width), left))
            tail: LoopNode = If(
                Op("le", (Const(width), span)), again, self._few(accumulators, width)
            )
        else:
            tail = self._remainder(add(lower, _multiple(span, width)), 1 if accumulators else width)
        nodes.append(If(Op("lt", (Const(0), left)), tail))
        return block(nodes), most

    def _rest(self, chunk: _Chunks, rest: int, full: int, most: int) -> list[LoopNode]:
        """A constant number of last iterations, fewer than there are lanes."""
        lower, width = self.node.lower, chunk.width
        begin = add(lower, Const(full * width))
        if self._repeatable():
            first = width - rest
            return [chunk.at(add(begin, Const(-first)), full % most, Const(first))]
        nodes: list[LoopNode] = []
        while rest:
            lanes = 1 if chunk.accumulators else 1 << (rest.bit_length() - 1)
            if lanes < self.fewest:
                lanes = 1
            if lanes == 1:
                nodes.append(substitute_var(self.node.body, self.node.var, begin))
            else:
                nodes.append(replace(chunk, width=lanes).at(begin, 0))
            begin, rest = add(begin, Const(lanes)), rest - lanes
        return nodes

    def _part(self, chunk: _Chunks) -> LoopNode:
        """Fewer iterations than lanes, in a single vector."""
        node = self.node
        if not self.is_plain or not all(
            maskable(s, node.var, chunk.width, (), self.dtypes) for s in self.stores
        ):
            few = self._repeatable()
            return self._few({}, chunk.width) if few else self._remainder(node.lower, chunk.width)

        def in_part(n: LoopNode) -> LoopNode:
            n = map_children(n, in_part)
            return replace(n, last=self.span) if isinstance(n, VectorStore) else n

        return If(Op("lt", (node.lower, node.upper)), in_part(chunk.at(node.lower, 0)))

    def _few(self, accumulators: dict[int, str], width: int) -> LoopNode:
        """Fewer iterations than lanes."""
        if width < 2 * FEWER or accumulators:
            return self._remainder(self.node.lower)
        return self._body(FEWER, {}, 1)[0]

    def _remainder(self, begin: Expr, width: int = 1) -> LoopNode:
        """The remaining iterations, fewer than before, which must not be repeated."""
        if width < 2 * FEWER:
            return replace(self.node, lower=begin, mark=Mark.SEQ)
        span = sub(self.node.upper, begin)
        middle = add(begin, _multiple(span, FEWER))
        chunks = _Chunks(self, FEWER, {}).loop(begin, middle, 1)
        return block([chunks, self._remainder(middle)])

    def _repeatable(self) -> bool:
        """Whether all stores may be repeated for some of the iterations."""
        var = self.node.var
        outward = [s for s in self.stores if s.target.tensor not in self.own]
        if any(s.op != "=" and not is_reduction(s, var) for s in outward):
            return False
        for position, s in enumerate(self.stores):
            # Later stores must not have changed what it reads.
            later = self.stores[position:] if self.is_plain else self.stores
            changed = {o.target.tensor for o in later} - self.own
            if any(r.tensor in changed for r in reads_of(s.value)):
                return False
        touched = {r.tensor for r in reads_in(self.node) if depends_on(r, var)}
        return not touched & self.registers


@dataclass(frozen=True)
class _Chunks:
    """Make chunks of one width."""

    own: _Loop
    width: int
    accumulators: dict[int, str]

    @property
    def lane(self) -> str:
        return lane_name(self.own.node.var, self.own.taken)

    def loop(self, lower: Expr, upper: Expr, count: int) -> LoopNode:
        """A loop with `count` chunks per iteration."""
        node = self.own.node
        step = count * self.width
        begins = [add(Index(node.var), Const(k * self.width)) for k in range(count)]
        if self.own.is_plain:
            body = block([self.at(begin, k) for k, begin in enumerate(begins)])
        else:
            body = self.together(begins, range(count))
        made = For(node.var, lower, upper, step, body, Mark.SEQ, node.label)
        if made.trip == 1:
            return substitute_var(body, node.var, lower)
        return made

    def at(self, begin: Expr, part: int, first: Expr = LANE_0) -> LoopNode:
        """The chunk whose lane 0 is the iteration `begin`."""
        return self.together([begin], [part], first)

    def together(self, begins: list[Expr], parts: Sequence[int], first: Expr = LANE_0) -> LoopNode:
        """Chunks that do each step at once, as if they were one."""
        count, lane, own = len(begins), Index(self.lane), self.own.own

        def chunk(node: Store, k: int) -> LoopNode:
            def in_chunk(e: Expr) -> Expr:
                if isinstance(e, Read) and e.tensor in own:
                    return replace(e, indices=(*e.indices[:-1], Const(k), lane))
                return e

            moved = substitute_var(node, self.own.node.var, add(begins[k], lane))
            moved = map_exprs(moved, lambda e: rewrite(e, in_chunk))
            assert isinstance(moved, Store)
            if id(node) not in self.accumulators:
                return VectorStore(moved, self.lane, self.width)
            target = Read(self.accumulators[id(node)], (Const(parts[k]), lane))
            moved = replace(moved, target=target, dtype=node.dtype.compute)
            return VectorStore(moved, self.lane, self.width, first)

        def visit(node: LoopNode) -> LoopNode:
            if isinstance(node, Store):
                return block([chunk(node, k) for k in range(count)])
            if isinstance(node, Buffer):
                shape = (*node.shape, count, self.width)
                return replace(node, shape=shape, body=visit(node.body))
            return map_children(node, visit)

        return visit(self.own.body)


def lane_name(var: str, taken: Collection[str]) -> str:
    """A name for the lane of the loop `var`."""
    name = f"{var}_lane"
    while name in taken:
        name += "_"
    return name


def _multiple(span: Expr, step: int) -> Expr:
    """The largest multiple of `step` in a number of iterations."""
    return mul(Const(step), Op("div", (span, Const(step)))) if step > 1 else span


def _body_cost(node: LoopNode) -> int:
    """The approximate number of instructions of an iteration; loops inside count once."""
    if isinstance(node, Store):
        return _cost(node.value)
    inner = sum(_body_cost(c) for c in children_of(node))
    if isinstance(node, For) and node.mark == Mark.UNROLL:
        return inner * (node.trip or 2)
    return inner


def _cost(e: Expr) -> int:
    """The approximate number of instructions for a value."""
    return sum(20 if isinstance(x, Op) and x.fn in INEXACT else 1 for x in computed(e))


# --- accumulators ----------------------------------------------------------------------------


def hoist(root: LoopNode) -> LoopNode:
    """Move accumulators out of the loops that do not move what they combine with."""

    def visit(node: LoopNode) -> LoopNode:
        node = map_children(node, visit)
        if not isinstance(node, For) or node.mark not in (Mark.SEQ, Mark.UNROLL):
            return node
        return node if has_mark(node, Mark.PARALLEL) else _lift(node)

    return visit(root)


def _lift(node: For) -> LoopNode:
    children = node.body.children if isinstance(node.body, Block) else (node.body,)
    for position, child in enumerate(children):
        if not isinstance(child, Buffer) or child.scope != Scope.LANES:
            continue
        inside = child.body.children if isinstance(child.body, Block) else (child.body,)
        *loops, final = inside
        store = final.then if isinstance(final, If) else final
        assert isinstance(store, Store)
        others = block([c for k, c in enumerate(children) if k != position])
        if depends_on(store.target, node.var):
            continue
        if any(r.tensor == store.target.tensor for c in (others, *loops) for r in reads_in(c)):
            continue
        if any(n.name == child.name for n in walk_loops(others) if isinstance(n, Buffer)):
            continue
        conditions = [final.cond] if isinstance(final, If) else []
        if any(depends_on(c, node.var) for c in conditions):
            continue
        if node.trip is None:
            conditions.insert(0, Op("lt", (node.lower, node.upper)))
        elif node.trip == 0:
            continue
        body = block([*children[:position], *loops, *children[position + 1 :]])
        inner = _lift(replace(node, body=body))
        last: LoopNode = If(all_of(conditions), store) if conditions else store
        return replace(child, body=block([inner, last]))
    return node


def identity_value(buffer: Buffer) -> Expr:
    """The initial value of an accumulator."""
    return Const(identity(buffer.op, buffer.dtype))
