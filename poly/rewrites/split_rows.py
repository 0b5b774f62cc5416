"""Weights and sums along rows that are long, or of unknown length, in parts of a fixed length.

    m[i] max=! ..;  E[i,j] = exp(X[i,j] - m[i]);  Z[i] +=! E[i,j];  O[i,e] +=! E[i,j] * V[j,e]

as in attention becomes, with ``j = C*q + t`` for t < C, the same for each part q with a maximum of
its own, ``g[q,i]``, and

    m[i] max=! g[q,i];  w[q,i] = exp(g[q,i] - m[i])
    Z[i] +=! Z_parts[q,i] * w[q,i];  O[i,e] +=! O_parts[q,i,e] * w[q,i]

which is the same because ``exp(x - g) * exp(g - m) = exp(x - m)``, for any g and m.  Of two parts
(g, Z) and (h, U), it is ``(max(g, h), Z * exp(g - max(g, h)) + U * exp(h - max(g, h)))``, which is
associative.  Rows of a part fit into buffers, so that no value as large as all rows is stored.  See
Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, and Dao et al.,
"FlashAttention", 2022.

A part of nothing but -inf has weights of 0, not NaN: its maximum is replaced by the least number,
but not that of the row, so that a row of nothing else has NaN, as in the program.
Sums change their order, so this is not for exact programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Op,
    Read,
    add,
    floordiv,
    mul,
    reads_of,
    rewrite,
    substitute,
    substitute_value,
)
from poly.ir.program import (
    Program,
    Range,
    Statement,
    Tensor,
    fresh_name,
    fresh_statement,
    statement_names,
    taken_names,
)
from poly.ir.row_chains import LEAST_ROWS, MOST_LENGTH, RowChain, find_row_chain
from poly.rewrites.divide_after import divide_after
from poly.sets.check_bounds import if_proved

#: Elements of a row in a part.
PART = 8192
#: The least number of float32.
_LEAST = Const(-3.4028234663852886e38)


@dataclass(frozen=True)
class WeightedRows:
    """A maximum along rows, weights that are powers of what is less than it, and their sums.

    inside : the statements from the first contraction to the second; columns : of each of them, its
        index along the rows
    most : the maximum; weights : ``E[..,i,j] = exp(x - m[..,i])``; sums : of products with E
    """

    chain: RowChain
    inside: tuple[Statement, ...]
    columns: Mapping[str, str]
    most: Statement
    weights: Statement
    sums: tuple[Statement, ...]


def split_rows(program: Program) -> Program:
    """Split weighted sums along long rows, or rows of unknown length, into parts."""
    divided = divide_after(program)
    found = weighted_rows(divided)
    if found is None:
        return program
    count, length = found.chain.count, found.chain.length
    if (count is not None and count < LEAST_ROWS) or (length or MOST_LENGTH + 1) <= MOST_LENGTH:
        return program
    if not _fits_into_buffers(found):
        return program
    return if_proved(_Parts(divided, found).program(), program)


def weighted_rows(program: Program) -> WeightedRows | None:
    """The weighted sums along rows of a program, if that is what becomes of these."""
    chain = find_row_chain(program)
    if isinstance(chain, str):
        return None
    found = [s for s in program.statements if s.name in chain.statements]
    inside = found[: [s.name for s in found].index(chain.last) + 1]
    first = inside[0]
    rows, columns = {first.target.tensor}, {first.name: first.free[-1]}
    most: Statement | None = None
    weights: Statement | None = None
    sums: list[Statement] = []
    for s in inside[1:]:
        column = _column(s, first, rows)
        if column is None:
            return None
        columns[s.name] = column
        made = weights.target.tensor if weights else ""
        if s.op == "max=" and most is None and s.reductions == (column,) and s.init:
            most = s
        elif s.op == "+=" and s.reductions == (column,) and s.init and _is_weighted(s.value, made):
            if most is None or any(r.tensor == most.target.tensor for r in s.reads):
                return None  # a part knows its own maximum only, which the weights make up for
            sums.append(s)
        elif not made and s.target.tensor in chain.temps and _is_along(s, column, chain.depth):
            if most is not None and any(r.tensor == most.target.tensor for r in reads_of(s.value)):
                weights = s if _is_power(s, column, most, chain.depth) else None
                if weights is None:
                    return None
            rows.add(s.target.tensor)
        else:
            return None
    ends = {s.target.tensor for s in sums}
    if most is None or weights is None or any(r.tensor in ends for s in inside for r in s.reads):
        return None
    return WeightedRows(chain, tuple(inside), columns, most, weights, tuple(sums))


def _fits_into_buffers(found: WeightedRows) -> bool:
    """Whether all loops but those over rows, and along them, have known bounds."""
    return all(
        isinstance(r.hi, Const) and isinstance(r.lo, Const)
        for s in found.inside
        for r in s.ranges
        if r.index not in (*s.free[: found.chain.depth], found.columns[s.name])
    )


def _column(s: Statement, first: Statement, rows: set[str]) -> str | None:
    """The index of a statement along the rows that it reads, if these are whole."""
    found = {r.indices[-1] for r in reads_of(s.value) if r.tensor in rows}
    (index,) = found if len(found) == 1 else (None,)
    if not isinstance(index, Index):
        return None
    ranges = {r.index: r for r in s.ranges}
    own = next(r for r in first.ranges if r.index == first.free[-1])
    whole = (ranges[index.name].lo, ranges[index.name].hi) == (own.lo, own.hi)
    return index.name if whole and own.lo == Const(0) else None


def _is_along(s: Statement, column: str, depth: int) -> bool:
    """Whether a statement makes one value for each element of the rows."""
    plain = s.target.indices == tuple(map(Index, s.free))
    return s.op == "=" and plain and len(s.free) == depth + 1 and s.free[-1] == column


def _is_power(s: Statement, column: str, most: Statement, depth: int) -> bool:
    """Whether a value is ``exp(x - m)`` for the maximum m of all x of its row."""
    here = dict(zip((*most.free[:depth], *most.reductions), (*s.free[:depth], column), strict=True))
    names = {old: Index(new) for old, new in here.items()}
    x = substitute_value(most.value, names)
    own = Read(most.target.tensor, tuple(map(Index, s.free[:depth])))
    guards = {substitute(g, names) for g in most.guards}
    return s.value == Op("exp", (Op("sub", (x, own)),)) and guards == {*s.guards}


def _is_weighted(e: Expr, weights: str) -> bool:
    """Whether an expression is a product with the weights, or these."""
    if isinstance(e, Read):
        return e.tensor == weights
    if not isinstance(e, Op) or e.fn != "mul":
        return False
    uses = [any(r.tensor == weights for r in reads_of(a)) for a in e.args]
    return sum(uses) == 1 and _is_weighted(e.args[uses.index(True)], weights)


class _Parts:
    """The rows of a program in parts."""

    def __init__(self, of: Program, found: WeightedRows) -> None:
        self.of, self.found, self.inside = of, found, found.inside
        self.depth = found.chain.depth
        self.taken = taken_names(of)
        self.names = statement_names(of)
        first = self.inside[0]
        self.part, self.near = (
            fresh_name(f"{first.free[-1]}_{x}", self.taken) for x in ("part", "near")
        )
        (along,) = (r for r in first.ranges if r.index == first.free[-1])
        self.length = along.hi
        self.count = floordiv(add(along.hi, Const(PART - 1)), PART)
        self.temps: dict[str, Tensor] = {}
        made = [s.target.tensor for s in self.inside]
        self.split = {t: fresh_name(f"{t}_parts", self.taken) for t in made}
        self.bound = fresh_name(f"{found.most.target.tensor}_bounded", self.taken)

    def program(self) -> Program:
        """The program with rows in parts, and what joins these."""
        made: list[Statement] = []
        for s in self.inside:
            made.append(self.part_of(s))
            if s is self.found.most:
                made.append(self.bounded(made[-1]))
        made += self.joined()
        statements: list[Statement] = []
        for s in self.of.statements:
            if s.name == self.found.chain.last:
                statements += made
            elif s not in self.inside:
                statements.append(s)
        rows = {s.target.tensor for s in self.inside if s.op == "=" or s is self.inside[0]}
        kept = tuple(t for t in self.of.temps if t.name not in rows)
        return replace(
            self.of, statements=tuple(statements), temps=(*kept, *self.temps.values()), text=None
        )

    def part_of(self, s: Statement) -> Statement:
        """A statement for each part of the rows."""
        column = self.found.columns[s.name]
        index = add(mul(Const(PART), Index(self.part)), Index(self.near))
        env: dict[str, Expr] = {column: index}
        ranges = tuple(self._ranges(s, column))
        guards = tuple(substitute(g, indices=env) for g in s.guards)
        if not isinstance(self.length, Const) or int(self.length.value) % PART:
            guards += (Op("lt", (index, self.length)),)
        value = rewrite(substitute_value(s.value, env), self._moved)
        own = s.free[self.depth :]
        inner = tuple(Index(self.near if i == column else i) for i in own)
        target = Read(self.split[s.target.tensor], (*self._row(s), *inner))
        extents = {r.index: r.hi for r in ranges}
        self._add(s.target.tensor, target, extents)
        reductions = tuple(self.near if i == column else i for i in s.reductions)
        name = s.name if s.op == "=" or s is self.inside[0] else self._name(f"{s.name}_parts")
        return replace(
            s, name=name, target=target, value=value, ranges=ranges, reductions=reductions,
            guards=guards,
        )  # fmt: skip

    def bounded(self, most: Statement) -> Statement:
        """The maximum of a part, or the least number."""
        ranges = self._free(most)
        target = Read(self.bound, most.target.indices)
        self._add(self.found.most.target.tensor, target, {r.index: r.hi for r in ranges})
        value = Op("max", (most.target, _LEAST))
        name = self._name(f"{self.found.most.name}_bounded")
        return Statement(name, target, "=", False, value, ranges)

    def joined(self) -> Iterator[Statement]:
        """The maximum and the sums of all parts."""
        most, weights = self.found.most, self.found.weights
        parts = Range(self.part, Const(0), self.count)
        ranges = self._free(most)
        bound = Read(self.bound, self._row(most))
        whole = Read(self.split[most.target.tensor], self._row(most))
        yield replace(
            most, value=whole, ranges=(*ranges, parts), reductions=(self.part,), guards=()
        )
        name = fresh_name(f"{weights.target.tensor}_of_parts", self.taken)
        weight = Read(name, self._row(most))
        around = (*ranges[:-1], parts, ranges[-1])
        self._add(most.target.tensor, weight, {r.index: r.hi for r in around})
        power = Op("exp", (Op("sub", (bound, most.target)),))
        yield Statement(self._name(f"{weights.name}_of_parts"), weight, "=", False, power, around)
        for s in self.found.sums:
            own = tuple(map(Index, s.free[self.depth :]))
            whole = Read(self.split[s.target.tensor], (*self._row(s), *own))
            value = Op("mul", (whole, Read(name, self._row(s))))
            yield replace(
                s, value=value, ranges=(*self._free(s), parts), reductions=(self.part,), guards=()
            )

    def _free(self, s: Statement) -> tuple[Range, ...]:
        return tuple(r for r in s.ranges if r.index in s.free)

    def _row(self, s: Statement) -> tuple[Expr, ...]:
        """The indices of the row of a statement, the part among them."""
        *outer, row = map(Index, s.free[: self.depth])
        return (*outer, Index(self.part), row)

    def _ranges(self, s: Statement, column: str) -> Iterator[Range]:
        for r in s.ranges:
            if r.index == s.free[self.depth - 1]:
                yield Range(self.part, Const(0), self.count)
            yield Range(self.near, Const(0), Const(PART)) if r.index == column else r

    def _moved(self, e: Expr) -> Expr:
        """A read of a row, or of a value of one, as that of a part."""
        if not isinstance(e, Read) or e.tensor not in self.split:
            return e
        *outer, row = e.indices[: self.depth]
        inner = (Index(self.near),) if len(e.indices) > self.depth else ()
        if e.tensor == self.found.most.target.tensor:
            return Read(self.bound, (*outer, Index(self.part), row))
        return Read(self.split[e.tensor], (*outer, Index(self.part), row, *inner))

    def _add(self, like: str, target: Read, extents: Mapping[str, Expr]) -> None:
        """A new temporary of the type of another."""
        shape = tuple(extents[i.name] for i in target.indices if isinstance(i, Index))
        self.temps[target.tensor] = Tensor(target.tensor, self.of.tensors[like].dtype, shape)

    def _name(self, name: str) -> str:
        return fresh_statement(name, self.names)
