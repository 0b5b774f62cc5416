"""Transposed vector stores as C text: load rows, transpose in registers, store columns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import cgen

from codegen.c.cgen_blocks import Marked, as_block
from codegen.c.expr_text import index_text
from codegen.c.store_text import VectorPrinter, lane_text
from codegen.c.type_names import UNROLLED, lane_suffix
from codegen.c.vector_text import LaneText
from codegen.loops.index_ranges import replace_var
from codegen.loops.nodes import Store, Transposed, VectorStore
from poly.ir.expr import Const, Expr, Index, Op, Read, add, mul, reads_of, rewrite
from poly.ir.linear_form import Linear, linear_form, normal

#: The row or column of a matrix in a loop over them.
NUMBER = Index("fk_n")


class MatrixPrinter(VectorPrinter, Protocol):
    """How a target names the variables of loops, in addition."""

    def numbered(self, index: Index) -> AbstractContextManager[None]: ...


def transposed_text(printer: MatrixPrinter, node: Transposed) -> cgen.Generable:
    """Load rows, transpose the matrix in registers and store its columns, or the reverse."""
    return _TransposedText(printer, node).block()


class _TransposedText:
    def __init__(self, printer: MatrixPrinter, node: Transposed) -> None:
        self.printer, self.node = printer, node
        self.first, self.most = node.rows[0], len(node.rows)
        self.lanes, self.matrix = self.first.lanes, printer.fresh()
        self.shape = f"{lane_suffix(self.first.store.dtype)}x{self.lanes}"
        self.count = str(self.most) if node.count is None else f"{self.matrix}_rows"

    def block(self) -> cgen.Generable:
        node, matrix = self.node, self.matrix
        lines: list[cgen.Generable] = []
        if node.count is not None:
            count = index_text(node.count, self.printer.names)
            lines.append(cgen.Line(f"const int {self.count} = (int)({count});"))
        # A vector that was never set would make all that is shuffled with it undefined.
        start = " = {0}" if self._is_partial() else ""
        lines.append(cgen.Line(f"fk_{self.shape} {matrix}[{self.lanes}]{start};"))
        parts = [self._rows(), self._columns()]
        if node.scattered and self.most < self.lanes:
            # Registers that are not loaded are not stored either.
            fill = [cgen.Line(f"{matrix}[{NUMBER.name}] = {matrix}[0];")]
            parts[0] += self._loop(range(self.most, self.lanes), fill)
        before, after = parts if node.scattered else parts[::-1]
        lines += [*before, cgen.Line(f"fk_transpose_{self.shape}({matrix});"), *after]
        return cgen.Block(lines)

    def _loop(self, values: range, body: Sequence[cgen.Generable]) -> list[cgen.Generable]:
        if not values:
            return []
        var = NUMBER.name
        inner = body[0] if len(body) == 1 else as_block(cgen.Collection([*body]))
        head = f"int64_t {var} = {values.start}", f"{var} < {values.stop}", f"{var}++"
        return [Marked(UNROLLED, cgen.For(*head, inner))]

    # --- columns: contiguous in memory ---------------------------------------------------------

    def _columns(self) -> list[cgen.Generable]:
        """Load or store each column, the lanes of which are rows."""
        first, matrix = self.first, f"{self.matrix}[{NUMBER.name}]"
        apart = first.store.target if self.node.scattered else first.store.value
        assert isinstance(apart, Read)
        values, condition = self._active_columns()
        with self.printer.numbered(NUMBER):
            element = LaneText(self.printer, first.var, self.lanes).first(apart, NUMBER)
            column = self.printer.lvalue(element)
        whole = self.node.count is None and self.most == self.lanes
        if self.node.scattered:
            line = f"*(fk_{self.shape}_u *)&{column} = {matrix};"
            line = line if whole else f"fk_put_{self.shape}(&{column}, 0, {self.count}, {matrix});"
            return self._loop(values, [cgen.Line(condition + line)])
        dtype = self.printer.dtypes[apart.tensor]
        shape = f"{lane_suffix(dtype)}x{self.lanes}"
        load = f"*(const fk_{shape}_u *)&{column}"
        load = load if whole else f"fk_take_{shape}(&{column}, 0, {self.count})"
        if dtype != first.store.dtype:
            load = LaneText(self.printer, first.var, self.lanes).widened(load, dtype)
        # Inactive columns are transposed with the rest, but not stored.
        return self._loop(values, [cgen.Line(f"{condition}{matrix} = {load};")])

    def _is_partial(self) -> bool:
        """Whether some rows or columns may not be set before they are transposed."""
        values, condition = self._active_columns()
        fewer = bool(condition) or len(values) < self.lanes
        return self.node.count is not None or (fewer and not self.node.scattered)

    def _active_columns(self) -> tuple[range, str]:
        """The columns whose lane may be active, and the condition for one of them: "" if it is."""
        node = self.first
        if node.last is None:
            return range(self.lanes), ""
        first, last, open_ = 0, self.lanes, []
        if isinstance(node.first, Const):
            first = max(0, int(node.first.value))
        else:
            open_.append(Op("le", (node.first, NUMBER)))
        if isinstance(node.last, Const):
            last = min(self.lanes, int(node.last.value))
        else:
            open_.append(Op("lt", (NUMBER, node.last)))
        with self.printer.numbered(NUMBER):
            texts = [index_text(c, self.printer.names, 0) for c in open_]
        return range(first, max(first, last)), f"if ({' && '.join(texts)}) " if texts else ""

    # --- rows: vectors -------------------------------------------------------------------------

    def _rows(self) -> list[cgen.Generable]:
        """Compute each row, or store it."""
        general = _general(self.node.rows)
        if general is None or not self._in_arrays(general):
            return [line for k in range(self.most) for line in self._row(self.node.rows[k], str(k))]
        with self.printer.numbered(NUMBER):
            return self._loop(range(self.most), self._row(general, NUMBER.name))

    def _in_arrays(self, row: VectorStore) -> bool:
        """Whether the registers of a row are elements of arrays."""
        registers = self.printer.registers
        used = (row.store.target, *reads_of(row.store.value))
        return all(registers[r.tensor].indexed for r in used if r.tensor in registers)

    def _row(self, row: VectorStore, number: str) -> list[cgen.Generable]:
        guard = "" if self.node.count is None else f"if ({number} < {self.count}) "
        at = f"{self.matrix}[{number}]"
        if not self.node.scattered:
            return [cgen.Line(guard + self._stored(row, at))]
        text = lane_text(self.printer, row)
        value = text.stored(row.store.value, row.store.dtype)
        given = " ".join([*text.before, f"{at} = {value};"])
        return [cgen.Line(f"{guard}{{ {given} }}" if guard or text.before else given)]

    def _stored(self, row: VectorStore, value: str) -> str:
        """Store a vector to a store's target."""
        target, printer = row.store.target, self.printer
        # Lanes that nothing else sets are zero, for what is computed with whole vectors.
        if row.last is None or row.alone or target.tensor in printer.registers:
            return f"{printer.vector_lvalue(target, row.var, row.lanes)} = {value};"
        shape = f"{lane_suffix(printer.dtypes[target.tensor])}x{row.lanes}"
        return f"fk_put_{shape}({lane_text(printer, row).active_lanes(target)}, {value});"


def _general(rows: Sequence[VectorStore]) -> VectorStore | None:
    """The rows as one function of `NUMBER`, None if they are no such function."""
    if len(rows) < 2:
        return None
    first, second = (row.store for row in rows[:2])
    pairs = dict(zip(_reads(first), _reads(second), strict=False))

    def moved(e: Expr) -> Expr:
        other = pairs.get(e) if isinstance(e, Read) else None
        if other is None or not isinstance(e, Read) or len(other.indices) != len(e.indices):
            return e
        gaps = [
            linear_form(b) - linear_form(a) for a, b in zip(e.indices, other.indices, strict=True)
        ]
        if any(gap.terms for gap in gaps):
            return e
        return replace(e, indices=tuple(map(_moved, e.indices, gaps)))

    target = moved(first.target)
    assert isinstance(target, Read)
    store = replace(first, target=target, value=rewrite(first.value, moved))
    general = replace(rows[0], store=store)
    for number, row in enumerate(rows):
        if _plain(general, number) != _plain(row, number):
            return None
    return general


def _moved(index: Expr, gap: Linear) -> Expr:
    return add(index, mul(Const(gap.constant), NUMBER)) if gap.constant else index


def _reads(store: Store) -> list[Read]:
    return [store.target, *reads_of(store.value)]


def _plain(row: VectorStore, number: int) -> VectorStore:
    """A row in normal form, with its number put in."""

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Read):
            return e
        put_in = (replace_var(i, NUMBER.name, Const(number)) for i in e.indices)
        return replace(e, indices=tuple(map(normal, put_in)))

    store = row.store
    target = visit(store.target)
    assert isinstance(target, Read)
    return replace(row, store=replace(store, target=target, value=rewrite(store.value, visit)))
