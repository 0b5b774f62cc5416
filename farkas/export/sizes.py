"""`SizeText`: expressions over sizes, in C and in words, over the sizes that callers pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from codegen.c.expr_text import Names, index_text
from poly.ir.expr import Const, Expr, Op, Size, add, mul, substitute


class SizeText:
    """How sizes are written.

    definitions : of sizes that follow from others; names : of those that callers pass, in C
    """

    def __init__(self, definitions: Mapping[str, Expr], names: Mapping[str, str]) -> None:
        self.definitions, self.names = definitions, names
        self._in_c = Names({}, names, {}, str, str)

    def text(self, e: Expr) -> str:
        """An expression in C."""
        return index_text(self._full(e), self._in_c)

    def shape(self, extents: Sequence[Expr]) -> tuple[int | str, ...]:
        """A shape, see `codegen.c.module.Parameter`."""
        return tuple(int(e.value) if isinstance(e, Const) else self.text(e) for e in extents)

    def shown(self, e: Expr) -> str:
        """An expression for readers."""
        renamed: dict[str, Expr] = {old: Size(new) for old, new in self.names.items()}
        return str(_balanced(substitute(self._full(e), sizes=renamed)))

    def _full(self, e: Expr) -> Expr:
        return substitute(e, sizes=self.definitions)


def _balanced(e: Expr) -> Expr:
    """A comparison with 0 as one of sums without differences: ``a - b == 0`` is ``a == b``."""
    if not (isinstance(e, Op) and e.fn in ("eq", "ne", "ge") and e.args[1] == Const(0)):
        return e
    left: Expr = Const(0)
    right: Expr = Const(0)
    for factor, term in _terms(e.args[0], 1):
        part = mul(Const(abs(factor)), term)
        if factor < 0:
            right = add(right, part)
        else:
            left = add(left, part)
    return Op(e.fn, (left, right))


def _terms(e: Expr, factor: int) -> Iterator[tuple[int, Expr]]:
    """The terms of a sum, each with its factor."""
    if isinstance(e, Op) and e.fn in ("add", "sub"):
        yield from _terms(e.args[0], factor)
        yield from _terms(e.args[1], -factor if e.fn == "sub" else factor)
    elif isinstance(e, Op) and e.fn == "mul" and isinstance(e.args[0], Const):
        yield from _terms(e.args[1], factor * int(e.args[0].value))
    elif isinstance(e, Const):
        yield factor * int(e.value), Const(1)
    else:
        yield factor, e
