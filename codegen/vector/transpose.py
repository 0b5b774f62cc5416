"""Transposition in registers: vectors whose lanes are strided in memory, row by row.

Where a vector runs along one dimension and memory along another, as when 16 channels of a pixel
are stored to one image per channel, lanes would be stored (or loaded) one by one.  But n such
vectors of adjacent pixels are a matrix of n rows whose columns are contiguous in memory: transposed
in registers, it is stored with one instruction per column.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.loops.index_ranges import depends_on
from codegen.loops.lower_instances import var_range
from codegen.loops.nodes import Block, Buffer, For, If, LoopNode, Transposed, VectorStore, block
from codegen.loops.substitute import substitute_var
from codegen.loops.traverse import map_children, walk_loops
from codegen.vector.addresses import Addresses, is_nonlinear
from poly.ir.dtypes import DType
from poly.ir.expr import Const, Expr, Index, Op, Read, add, mul, reads_of, rewrite, sub, walk
from poly.ir.layout import Layout
from poly.ir.linear_form import Linear, linear_form, normal, render
from poly.ir.program import Program
from poly.tree.kinds import Mark, Scope

#: With fewer rows, lanes are moved one by one.
FEWEST_ROWS = 4
#: Bits of the shortest vectors that are transposed, and of the longest ones of bytes, of which more
#: would be more than there are registers.
SHORTEST, LONGEST_OF_BYTES = 64, 128
#: Most vectors that an iteration of a row loop may move, since all rows are unrolled.
MOST_COLUMNS = 4


def transpose_stores(root: LoopNode, program: Program) -> LoopNode:
    """Combine vector stores that together transpose a matrix."""
    buffers = {n.name: n.dtype for n in walk_loops(root) if isinstance(n, Buffer)}
    return _Transposer(Addresses(program.tensors), {**program.dtypes, **buffers}).node(root)


class _Transposer:
    """Transposes stores."""

    def __init__(self, addresses: Addresses, dtypes: dict[str, DType]) -> None:
        self.addresses, self.dtypes = addresses, dtypes
        self.taken = set(dtypes)
        self.ranges: dict[str, tuple[int, int]] = {}

    def node(self, node: LoopNode) -> LoopNode:
        if isinstance(node, Buffer):
            with self.addresses.below(node):
                return map_children(node, self.node)
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

    # --- loops over rows -------------------------------------------------------------------

    def _is_row_loop(self, node: For) -> bool:
        """Whether each iteration moves vectors, from or to the next elements in memory."""
        if node.step != 1 or node.mark not in (Mark.SEQ, Mark.UNROLL):
            return False
        run: list[VectorStore] = []
        for store in _flat(node.body):
            if not isinstance(store, VectorStore) or not self._joins(run, store):
                return False
            apart = self._apart(store)
            form = None if apart is None else self.addresses.address(apart)
            if form is None or form.coefficient(Index(node.var)) != 1:
                return False
            if is_nonlinear(form, node.var):
                return False
            run.append(store)
        return 1 <= len(run) <= MOST_COLUMNS

    def _apart(self, node: VectorStore) -> Read | None:
        """The access whose lanes are strided: the target, or all of the value."""
        store = node.store
        bits = store.dtype.bits * node.lanes
        if store.op != "=" or bits < SHORTEST or node.lanes < FEWEST_ROWS:
            return None
        if store.dtype.bytes == 1 and bits > LONGEST_OF_BYTES:
            return None
        target = self.addresses.stride(store.target, node.var)
        if target is not None and abs(target) > 1:
            return store.target
        value = store.value
        if target in (1, None) and isinstance(value, Read) and self._is_loaded(value, store.dtype):
            stride = self.addresses.stride(value, node.var)
            kept = store.target.tensor not in self.addresses  # as a register is
            keeps = kept and node.last is not None and not node.alone
            if stride is not None and abs(stride) > 1 and depends_on(value, node.var) and not keeps:
                return value
        return None

    def _is_loaded(self, read: Read, dtype: DType) -> bool:
        """Whether an element may be loaded into a column of a type."""
        own = self.dtypes[read.tensor]
        return dtype in (own, own.compute)

    def _rows(self, node: For) -> LoopNode:
        """The loop with as many rows per iteration as a vector has lanes."""
        stores, lanes = _flat(node.body), _lanes(node)
        span = normal(sub(node.upper, node.lower))
        if isinstance(span, Const):
            full = int(span.value) // lanes * lanes
            rest: list[LoopNode] = [
                substitute_var(s, node.var, add(node.lower, Const(k)))
                for k in range(full, int(span.value))
                for s in stores
            ]
            middle = add(node.lower, Const(full))
        else:
            middle = add(node.lower, mul(Const(lanes), Op("div", (span, Const(lanes)))))
            left = Op("fmod", (span, Const(lanes)))
            rest = [
                If(Op("lt", (Const(k), left)), substitute_var(s, node.var, add(middle, Const(k))))
                for k in range(lanes - 1)
                for s in stores
            ]
        many = [
            substitute_var(s, node.var, add(Index(node.var), Const(k)))
            for k in range(lanes)
            for s in stores
        ]
        blocks = replace(
            node, upper=middle, step=lanes, body=block(self._grouped(many)), mark=Mark.SEQ
        )
        made: list[LoopNode] = []
        if blocks.trip == 1:
            made += [substitute_var(n, node.var, node.lower) for n in _flat(blocks.body)]
        elif blocks.trip != 0:
            made.append(blocks)
        if not isinstance(span, Const):
            return block([*made, If(Op("lt", (Const(0), left)), block(self._grouped(rest)))])
        return block([*made, *self._grouped(rest)])

    # --- groups ----------------------------------------------------------------------------

    def _grouped(self, nodes: list[LoopNode] | tuple[LoopNode, ...]) -> list[LoopNode]:
        """The nodes, with vector stores replaced by the matrices that they form."""
        result: list[LoopNode] = []
        run: list[_Row] = []
        for node in nodes:
            rows = _rows_of(node)
            if not self._all_join(run, rows):
                result += self._matrices(run)
                run = []
            if self._all_join(run, rows):
                run += rows
            else:
                result.append(node)
        return result + self._matrices(run)

    def _all_join(self, run: list[_Row], rows: list[_Row]) -> bool:
        """Whether there are rows, and each in turn joins a run."""
        stores = [r.node for r in (*run, *rows)]
        return bool(rows) and all(
            self._joins(stores[:n], stores[n]) for n in range(len(run), len(stores))
        )

    def _joins(self, run: list[VectorStore], node: VectorStore) -> bool:
        """Whether the stores of a run, together with this one, may be done in any order."""
        stores = [n.store for n in (*run, node)]
        if self._apart(node) is None:
            return False
        written = {s.target.tensor for s in stores}
        if any(
            n.store.statement != node.store.statement
            and n.store.target.tensor == node.store.target.tensor
            for n in run
        ):
            return False  # they may write the same elements
        return not any(
            isinstance(x, Read) and x.tensor in written for s in stores for x in walk(s.value)
        )

    def _matrices(self, run: list[_Row]) -> list[LoopNode]:
        groups: dict[tuple[object, ...], list[tuple[int, _Row]]] = {}
        for row in run:
            node = row.node
            apart = self._apart(node)
            assert apart is not None
            form = self.addresses.address(apart)
            assert form is not None
            scattered = apart is node.store.target
            # Terms in a fixed order: equal forms may list them differently.
            terms = frozenset(form.terms)
            key = (apart.tensor, scattered, node.lanes, node.var, node.store.statement, terms,
                   node.first, node.last)  # fmt: skip
            groups.setdefault(key, []).append((form.constant, row))
        result: list[LoopNode] = []
        for found in groups.values():
            found.sort(key=lambda x: x[0])
            rows: list[tuple[int, _Row]] = []
            for offset, row in found:
                if rows:
                    follows = offset == rows[-1][0] + 1 and _same_kind([r for _, r in rows], row)
                    if not follows or len(rows) == row.node.lanes:
                        result += self._matrix([n for _, n in rows])
                        rows = []
                rows.append((offset, row))
            result += self._matrix([n for _, n in rows])
        return result

    def _matrix(self, rows: list[_Row]) -> list[LoopNode]:
        first, always = rows[0], sum(row.count is None for row in rows)
        if len(rows) < FEWEST_ROWS:
            return [row.alone() for row in rows]
        count = rows[-1].count
        if count is not None and not always and first.number == rows[1].number:
            assert first.condition is not None
            matrix = self._matrix([replace(row, count=None, condition=None) for row in rows])
            return [If(first.condition, block(matrix))]
        if count is not None:
            left = sub(count, Const(rows[always].number))
            some = Op("max", (Op("min", (left, Const(len(rows) - always))), Const(0)))
            count = normal(add(some, Const(always)))
        nodes = tuple(row.node for row in rows)
        scattered = self._apart(nodes[0]) is nodes[0].store.target
        made: LoopNode = Transposed(nodes, scattered, count)
        if scattered:
            for position in range(len(reads_of(nodes[0].store.value))):
                made = self._with_operand(made, position)
        return [made]

    def _with_operand(self, node: LoopNode, position: int) -> LoopNode:
        """Transpose columns of an operand with the target's layout into rows first."""
        inner = node
        while isinstance(inner, Buffer):
            assert isinstance(inner.body, Block)
            inner = inner.body.children[-1]
        assert isinstance(inner, Transposed)
        first = inner.rows[0]
        found = [_nth_read(row.store.value, position) for row in inner.rows]
        forms = [None if r is None else self.addresses.address(r) for r in found]
        read = found[0]
        if read is None or read.tensor not in self.addresses:
            return node
        for k, (row, form) in enumerate(zip(inner.rows, forms, strict=True)):
            if form is None or forms[0] is None or form - forms[0] != Linear((), k):
                return node
            own = found[k]
            stride = None if own is None else self.addresses.stride(own, row.var)
            if stride is None or abs(stride) < 2:
                return node
        name = f"{read.tensor}_rows"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        loads, rows = [], []
        for k, row in enumerate(inner.rows):
            own = found[k]
            assert own is not None
            element = Read(name, (Const(k), Index(row.var)))
            load = replace(row.store, target=element, value=own, dtype=self.dtypes[own.tensor])
            loads.append(replace(row, store=load))
            value = _replace_read(row.store.value, own, element)
            rows.append(replace(row, store=replace(row.store, value=value)))
        count = inner.count
        body = block([Transposed(tuple(loads), False, count), Transposed(tuple(rows), True, count)])
        shape = (len(rows), first.lanes)
        buffer = Buffer(
            name, read.tensor, self.dtypes[read.tensor], shape, Layout((0, 1)), Scope.REGISTER, body
        )
        return _replaced(node, inner, buffer)


def _lanes(node: For) -> int:
    """The lanes of the vectors that a loop over rows moves."""
    return max(s.lanes for s in _flat(node.body) if isinstance(s, VectorStore))


@dataclass(frozen=True)
class _Row:
    """A vector store that may become a row of a matrix, if ``number < count``, a condition.

    Rows of increasing numbers are those of a matrix of which only `count` are active.
    """

    node: VectorStore
    number: int = 0
    count: Expr | None = None
    condition: Expr | None = None

    def alone(self) -> LoopNode:
        return self.node if self.condition is None else If(self.condition, self.node)


def _rows_of(node: LoopNode) -> list[_Row]:
    """The vector stores that a node consists of; those under ``k < count`` are row k of `count`."""
    if isinstance(node, VectorStore):
        return [_Row(node)]
    if not isinstance(node, If) or node.other is not None:
        return []
    cond, stores = node.cond, _flat(node.then)
    if not isinstance(cond, Op) or cond.fn not in ("lt", "le"):
        return []
    if not all(isinstance(s, VectorStore) for s in stores):
        return []
    left, right = cond.args
    gap = linear_form(sub(right, left)) - int(cond.fn == "lt")  # count - number - 1
    count, number = render(gap - gap.constant), -gap.constant - 1
    return [_Row(s, number, count, cond) for s in stores if isinstance(s, VectorStore)]


def _same_kind(rows: list[_Row], row: _Row) -> bool:
    """Whether a row is active as others are: always, if there are more than these, or whenever they
    are.  Rows that are always active may precede one more for each that a count has.
    """
    before = [r for r in rows if r.count is not None]
    if row.count is None:
        return not before
    if not before:
        return True
    step = row.number - before[-1].number
    if row.count != before[-1].count or step not in ((1,) if len(before) < len(rows) else (0, 1)):
        return False
    return len(before) < 2 or step == before[1].number - before[0].number


def _nth_read(value: Expr, position: int) -> Read | None:
    reads = reads_of(value)
    return reads[position] if position < len(reads) else None


def _replace_read(value: Expr, read: Read, other: Read) -> Expr:
    return rewrite(value, lambda e: other if e == read else e)


def _replaced(node: LoopNode, old: LoopNode, new: LoopNode) -> LoopNode:
    return new if node is old else map_children(node, lambda c: _replaced(c, old, new))


def _flat(node: LoopNode) -> tuple[LoopNode, ...]:
    return node.children if isinstance(node, Block) else (node,)
