"""Building statements of programs that are made here: indices in order, names, copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from poly.ir.expr import (
    Const,
    Expr,
    Index,
    Read,
    indices_of,
    reads_of,
    rewrite,
    substitute,
    substitute_value,
)  # fmt: skip
from poly.ir.linear_form import linear_form, render
from poly.ir.program import Program, Range, Statement, Tensor, fresh_name, taken_names


class Names:
    """Names that a program does not use yet."""

    def __init__(self, program: Program) -> None:
        self._taken = taken_names(program)
        self._statements = 0

    def tensor(self, name: str) -> str:
        return fresh_name(name, self._taken)

    def indices(self, count: int) -> list[str]:
        """Indices that no tensor or size is called; the same for each call."""
        free = (n for k in range(10**6) if (n := f"i{k}") not in self._taken)
        return [next(free) for _ in range(count)]

    def statement(self) -> str:
        """A name until `numbered`."""
        self._statements += 1
        return f"__{self._statements}"


def alone(
    program: Program, tensors: Mapping[str, Tensor], statements: Sequence[Statement]
) -> Program:
    """The program of some statements, to ask about their accesses.

    tensors : those that they read and write, by name; program : for sizes and what is known of them
    """
    written = {s.target.tensor for s in statements}
    used = {r.tensor for s in statements for r in s.reads} | written
    return Program(
        "f", program.sizes, tuple(tensors[n] for n in sorted(used)),
        tuple(tensors[n] for n in sorted(written)), (), tuple(statements), program.constraints,
    )  # fmt: skip


def writers_of(statements: Iterable[Statement], name: str) -> list[Statement]:
    """The statements that write a tensor."""
    return [s for s in statements if s.target.tensor == name]


def is_read(statements: Iterable[Statement], name: str) -> bool:
    """Whether statements read a tensor, not counting what updates combine with."""
    return any(r.tensor == name for s in statements for r in s.reads)


def is_made(s: Statement) -> bool:
    """Whether a statement was made here, and does not come from the user."""
    return s.name.startswith("__")


def statement(
    names: Names, target: Read, op: str, value: Expr, ranges: Iterable[Range],
    guards: Sequence[Expr] = (), block: int = 0, step: str = "",
) -> Statement:  # fmt: skip
    """A statement with the ranges in the order that the language asks for.

    step : the index of the block
    """
    by_index = {r.index: r for r in ranges}
    moving = dict.fromkeys(i for e in target.indices for i in indices_of(e))
    free = [i for i in moving if i != step]
    free = [step, *free] if block else free
    summed = [i for i in by_index if i not in free]
    ordered = tuple(by_index[i] for i in (*free, *summed))
    return Statement(
        names.statement(), target, op.removesuffix("!"), op.endswith("!"), value, ordered,
        tuple(summed), tuple(guards), None, block,
    )  # fmt: skip


def over_all(names: Names, t: Tensor) -> tuple[tuple[Expr, ...], tuple[Range, ...]]:
    """The indices of every element of a tensor, and their ranges."""
    indices = names.indices(t.rank)
    ranges = (Range(i, Const(0), e) for i, e in zip(indices, t.shape, strict=True))
    return tuple(map(Index, indices)), tuple(ranges)


def stored(names: Names, t: Tensor, value: Expr, op: str = "=") -> Statement:
    """A statement that stores a value in every element of a tensor, or adds it; the value may read
    others with the indices of `over_all`.
    """
    indices, ranges = over_all(names, t)
    return statement(names, Read(t.name, indices), op, value, ranges)


def _short(read: Read) -> Read:
    """An access with each index as one sum."""
    return Read(
        read.tensor, tuple(e if reads_of(e) else render(linear_form(e)) for e in read.indices)
    )


def _short_read(e: Expr) -> Expr:
    return _short(e) if isinstance(e, Read) else e


def with_indices(s: Statement, new: dict[str, Expr]) -> Statement:
    """A statement with some indices replaced in its accesses, value and guards, not its ranges."""
    target = substitute_value(s.target, new)
    assert isinstance(target, Read)
    return replace(
        s,
        target=_short(target),
        value=rewrite(substitute_value(s.value, new), _short_read),
        guards=tuple(substitute(g, new) for g in s.guards),
    )
