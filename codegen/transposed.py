"""Transposition in registers: vectors whose lanes lie apart in memory, row by row.

Where a vector runs along one dimension and memory along another, as when 16 channels of a pixel
go to an image of each channel, lanes would be stored (or loaded) one by one.  But n such vectors
of neighbouring pixels are a matrix of n rows whose columns are neighbours in memory: transposed in
registers, it is stored with one instruction a column.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.linear import depends_on
from codegen.loopir import (
    Block,
    Buffer,
    For,
    LoopNode,
    Transposed,
    VectorStore,
    block,
    map_children,
    walk_loops,
)
from codegen.lower import var_range
from codegen.places import at_place
from poly.dtypes import DType
from poly.expr import Const, Expr, Index, Op, Read, add, mul, reads_of, rewrite, sub, walk
from poly.layout import Layout
from poly.linear import Linear, linear_form, normal
from poly.program import Program

#: With fewer rows, lanes are moved one by one.
FEWEST_ROWS = 4
#: Vectors that an iteration of a loop over rows may move, for all rows are written out.
MOST_COLUMNS = 4


def transpose(root: LoopNode, program: Program) -> LoopNode:
    """Gather vector stores that together are a matrix to transpose."""
    shapes: dict[str, tuple[int, ...]] = {}
    for t in program.tensors.values():
        if all(isinstance(x, Const) for x in t.shape):
            shapes[t.name] = tuple(int(x.value) for x in t.shape if isinstance(x, Const))
    buffers = {n.name: n.dtype for n in walk_loops(root) if isinstance(n, Buffer)}
    return _Transposer(shapes, {**program.dtypes, **buffers}).node(root)


class _Transposer:
    """`shapes` of the tensors whose addresses are known as linear forms."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, DType]) -> None:
        self.shapes, self.dtypes = shapes, dtypes
        self.taken = set(dtypes)
        self.ranges: dict[str, tuple[int, int]] = {}

    def node(self, node: LoopNode) -> LoopNode:
        if isinstance(node, Buffer):
            before = self.shapes.pop(node.name, None)
            if node.scope == "local":
                self.shapes[node.name] = node.shape
            done = map_children(node, self.node)
            self.shapes.pop(node.name, None)
            if before is not None:
                self.shapes[node.name] = before
            return done
        if isinstance(node, For):
            bound = var_range(node, self.ranges)
            if self._is_row_loop(node):
                if (
                    node.trip is None
                    and bound is not None
                    and bound[1] - bound[0] + 1 < _lanes(node)
                ):
                    return node  # never enough rows for a matrix
                return self._rows(node)
            self.ranges.pop(node.var, None)
            if bound is not None:
                self.ranges[node.var] = bound
        node = map_children(node, self.node)
        return block(self._grouped(node.children)) if isinstance(node, Block) else node

    def address(self, read: Read) -> Linear | None:
        """The row-major position of an element, if all of it is known."""
        shape = self.shapes.get(read.tensor)
        if shape is None or any(reads_of(i) for i in read.indices):
            return None
        position: Expr = Const(0)
        for index, extent in zip(read.indices, shape, strict=True):
            position = add(mul(position, Const(extent)), index)
        return linear_form(position)

    # --- loops over rows -------------------------------------------------------------------

    def _is_row_loop(self, node: For) -> bool:
        """Whether each iteration moves vectors, from or to the next elements in memory."""
        if node.step != 1 or node.mark not in ("seq", "unroll"):
            return False
        run: list[VectorStore] = []
        for store in _flat(node.body):
            if not isinstance(store, VectorStore) or not self._joins(run, store):
                return False
            apart = self._apart(store)
            form = None if apart is None else self.address(apart)
            if form is None or form.coefficient(Index(node.var)) != 1:
                return False
            if _is_nonlinear(form, node.var):
                return False
            run.append(store)
        return 1 <= len(run) <= MOST_COLUMNS

    def _apart(self, node: VectorStore) -> Read | None:
        """The access whose lanes lie apart: the target, or all of the value."""
        store = node.store
        if node.last is not None:
            return None
        if store.op != "=" or store.dtype.bits < 32 or node.lanes < FEWEST_ROWS:
            return None
        target = self._stride(store.target, node.var)
        if target is not None and abs(target) > 1:
            return store.target
        value = store.value
        if target in (1, None) and isinstance(value, Read):
            stride = self._stride(value, node.var)
            if stride is not None and abs(stride) > 1 and depends_on(value, node.var):
                return value
        return None

    def _stride(self, read: Read, var: str) -> int | None:
        form = self.address(read)
        return None if form is None or _is_nonlinear(form, var) else form.coefficient(Index(var))

    def _rows(self, node: For) -> LoopNode:
        """The loop with as many rows an iteration as a vector has lanes."""
        stores, lanes = _flat(node.body), _lanes(node)
        span = normal(sub(node.upper, node.lower))
        if isinstance(span, Const):
            full = int(span.value) // lanes * lanes
            rest: list[LoopNode] = [
                at_place(s, node.var, add(node.lower, Const(k)))
                for k in range(full, int(span.value))
                for s in stores
            ]
            middle = add(node.lower, Const(full))
        else:
            middle = add(node.lower, mul(Const(lanes), Op("div", (span, Const(lanes)))))
            rest = [replace(node, lower=middle, mark="seq")]
        many = [
            at_place(s, node.var, add(Index(node.var), Const(k)))
            for k in range(lanes)
            for s in stores
        ]
        blocks = replace(
            node, upper=middle, step=lanes, body=block(self._grouped(many)), mark="seq"
        )
        made: list[LoopNode] = []
        if blocks.trip == 1:
            made += [at_place(n, node.var, node.lower) for n in _flat(blocks.body)]
        elif blocks.trip != 0:
            made.append(blocks)
        return block([*made, *self._grouped(rest)])

    # --- groups ----------------------------------------------------------------------------

    def _grouped(self, nodes: list[LoopNode] | tuple[LoopNode, ...]) -> list[LoopNode]:
        """The nodes with matrices in place of the vector stores that they are made of."""
        result: list[LoopNode] = []
        run: list[VectorStore] = []
        for node in nodes:
            if isinstance(node, VectorStore) and self._joins(run, node):
                run.append(node)
                continue
            result += self._matrices(run)
            run = []
            if isinstance(node, VectorStore) and self._joins(run, node):
                run = [node]
            else:
                result.append(node)
        return result + self._matrices(run)

    def _joins(self, run: list[VectorStore], node: VectorStore) -> bool:
        """Whether the stores of a run may be done in any order, with this one too."""
        stores = [n.store for n in (*run, node)]
        if self._apart(node) is None:
            return False
        written = {s.target.tensor for s in stores}
        return not any(
            isinstance(x, Read) and x.tensor in written for s in stores for x in walk(s.value)
        )

    def _matrices(self, run: list[VectorStore]) -> list[LoopNode]:
        groups: dict[tuple[object, ...], list[tuple[int, VectorStore]]] = {}
        for node in run:
            apart = self._apart(node)
            assert apart is not None
            form = self.address(apart)
            assert form is not None
            scattered = apart is node.store.target
            # Terms in a fixed order: equal forms may list them differently.
            terms = frozenset(form.terms)
            key = (apart.tensor, scattered, node.lanes, node.var, node.store.statement, terms)
            groups.setdefault(key, []).append((form.constant, node))
        result: list[LoopNode] = []
        for found in groups.values():
            found.sort(key=lambda x: x[0])
            row: list[tuple[int, VectorStore]] = []
            for place, node in found:
                if row and (place != row[-1][0] + 1 or len(row) == node.lanes):
                    result += self._matrix([n for _, n in row])
                    row = []
                row.append((place, node))
            result += self._matrix([n for _, n in row])
        return result

    def _matrix(self, rows: list[VectorStore]) -> list[LoopNode]:
        if len(rows) < FEWEST_ROWS:
            return list(rows)
        scattered = self._apart(rows[0]) is rows[0].store.target
        made: LoopNode = Transposed(tuple(rows), scattered)
        if scattered:
            for position in range(len(reads_of(rows[0].store.value))):
                made = self._with_operand(made, position)
        return [made]

    def _with_operand(self, node: LoopNode, position: int) -> LoopNode:
        """Columns of an operand that lie as those of the target do, turned into rows first."""
        inner = node
        while isinstance(inner, Buffer):
            assert isinstance(inner.body, Block)
            inner = inner.body.children[-1]
        assert isinstance(inner, Transposed)
        first = inner.rows[0]
        found = [_nth_read(row.store.value, position) for row in inner.rows]
        forms = [None if r is None else self.address(r) for r in found]
        read = found[0]
        if read is None or read.tensor not in self.shapes:
            return node
        for k, (row, form) in enumerate(zip(inner.rows, forms, strict=True)):
            if form is None or forms[0] is None or form - forms[0] != Linear((), k):
                return node
            stride = form.coefficient(Index(row.var))
            if abs(stride) < 2 or _is_nonlinear(form, row.var):
                return node
        name = f"{read.tensor}_rows"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        loads, rows = [], []
        for k, row in enumerate(inner.rows):
            own = found[k]
            assert own is not None
            place = Read(name, (Const(k), Index(row.var)))
            load = replace(row.store, target=place, value=own, dtype=self.dtypes[own.tensor])
            loads.append(replace(row, store=load))
            value = _replace_read(row.store.value, own, place)
            rows.append(replace(row, store=replace(row.store, value=value)))
        body = block([Transposed(tuple(loads), False), Transposed(tuple(rows), True)])
        shape = (len(rows), first.lanes)
        buffer = Buffer(
            name, read.tensor, self.dtypes[read.tensor], shape, Layout((0, 1)), "register", body
        )
        return _replaced(node, inner, buffer)


def _lanes(node: For) -> int:
    """The lanes of the vectors that a loop over rows moves."""
    return max(s.lanes for s in _flat(node.body) if isinstance(s, VectorStore))


def _nth_read(value: Expr, position: int) -> Read | None:
    reads = reads_of(value)
    return reads[position] if position < len(reads) else None


def _replace_read(value: Expr, read: Read, other: Read) -> Expr:
    return rewrite(value, lambda e: other if e == read else e)


def _is_nonlinear(form: Linear, var: str) -> bool:
    return any(depends_on(a, var) for a, _ in form.without(Index(var)).terms)


def _replaced(node: LoopNode, old: LoopNode, new: LoopNode) -> LoopNode:
    return new if node is old else map_children(node, lambda c: _replaced(c, old, new))


def _flat(node: LoopNode) -> tuple[LoopNode, ...]:
    return node.children if isinstance(node, Block) else (node,)
