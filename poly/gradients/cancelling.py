"""Maxima that cancel out of a result, as the one that a softmax subtracts before its powers.

If an element m[e] becomes m[e] + δ, a value that depends on it in one of two ways is known:

    v + k·δ     shifted, as m[e] itself, and logarithms of scaled values
    v · exp(k·δ)     scaled, as powers of shifted values, and their sums, products and quotients

An output that does neither does not depend on m at all: its gradient with respect to m is 0 for
every input, and what would compute it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isfinite

from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, indices_of, reads_of, substitute
from poly.ir.program import Program, Statement

#: The elements of m that a value depends on, each with its k.
Degrees = Mapping[tuple[Expr, ...], Fraction]


class _UnknownError(Exception):
    """A value that depends on m in another way."""


@dataclass(frozen=True)
class _Change:
    """How a value changes with elements of m; at most one of both is not empty.

    zero : the value is 0, which is scaled by anything; infinite : it is that, which is shifted by
        anything, too
    """

    shift: Degrees = field(default_factory=dict)
    scale: Degrees = field(default_factory=dict)
    zero: bool = False
    infinite: bool = False

    @property
    def is_none(self) -> bool:
        return not self.shift and not self.scale


def cancelling(program: Program, of: Iterable[str]) -> frozenset[str]:
    """The maxima and minima of a program on which its outputs `of` do not depend."""
    temps = {t.name for t in program.temps if t.dtype.is_float}
    candidates = {
        s.target.tensor for s in program.statements if s.op in ("max=", "min=") and s.init
    }
    outputs = frozenset(of)
    written = Counter(s.target.tensor for s in program.statements)
    return frozenset(
        m for m in candidates & temps if written[m] == 1 and _cancels(program, m, outputs)
    )


def _cancels(program: Program, m: str, outputs: frozenset[str]) -> bool:
    known: dict[str, _Change] = {}
    try:
        # What a recurrence reads is known only after it: a second pass has to find the same.
        for _ in range(3):
            before = dict(known)
            for s in program.statements:
                if s.target.tensor != m:
                    _record(known, m, s)
            if known == before:
                return all(known[n].is_none for n in outputs)
    except _UnknownError:
        pass
    return False


def _record(known: dict[str, _Change], m: str, s: Statement) -> None:
    """How the tensor that a statement writes changes, in terms of its dimensions."""
    dims = {e.name: _dim(d) for d, e in enumerate(s.target.indices) if isinstance(e, Index)}
    change = _value(s.value, known, m)
    if (s.op == "*=" and change.scale) or (s.op in ("+=", "*=") and change.shift):
        raise _UnknownError
    shift, scale = _renamed(change.shift, dims), _renamed(change.scale, dims)
    made = replace(change, shift=shift, scale=scale)
    before = known.get(s.target.tensor)
    known[s.target.tensor] = made if before is None else _same(before, made)


def _dim(d: int) -> Index:
    return Index(f"_{d}")


def _renamed(degrees: Degrees, names: Mapping[str, Index]) -> Degrees:
    found: dict[tuple[Expr, ...], Fraction] = {}
    for element, k in degrees.items():
        if any(i not in names for e in element for i in indices_of(e)):
            raise _UnknownError  # it differs from term to term
        found[tuple(substitute(e, names) for e in element)] = k
    return found


def _value(e: Expr, known: Mapping[str, _Change], m: str) -> _Change:
    """How the value of an expression changes."""
    if isinstance(e, Read):
        if any(r.tensor == m or not known.get(r.tensor, _Change()).is_none for i in e.indices
               for r in reads_of(i)):  # fmt: skip
            raise _UnknownError
        if e.tensor == m:
            return _Change(shift={e.indices: Fraction(1)})
        found = known.get(e.tensor, _Change())
        at = {_dim(d).name: i for d, i in enumerate(e.indices)}
        shift, scale = _placed(found.shift, at), _placed(found.scale, at)
        return replace(found, shift=shift, scale=scale)
    if isinstance(e, Const):
        return _Change(zero=e.value == 0, infinite=abs(e.value) == float("inf"))
    if isinstance(e, Cast):
        return _unchanged(_value(e.arg, known, m)) if not e.dtype.is_float else _value(
            e.arg, known, m
        )  # fmt: skip
    if not isinstance(e, Op):
        return _Change()
    return _operator(e.fn, e.args, [_value(a, known, m) for a in e.args])


def _placed(degrees: Degrees, at: Mapping[str, Expr]) -> Degrees:
    return {tuple(substitute(e, at) for e in element): k for element, k in degrees.items()}


def _operator(fn: str, args: tuple[Expr, ...], changes: list[_Change]) -> _Change:
    if all(c.is_none for c in changes) and fn not in ("mul", "select"):
        return _Change()
    if fn == "select":
        return _same(*changes[1:]) if changes[0].is_none else _unchanged(changes[0])
    if fn in ("isnan", "isinf"):
        return _Change()
    if fn in ("max", "min"):
        return _same(*changes)
    if fn in ("lt", "le", "gt", "ge", "eq", "ne"):
        _same(*changes)
        return _Change()
    if fn == "neg":
        return _Change(_times(changes[0].shift, Fraction(-1)), changes[0].scale)
    if fn in ("add", "sub"):
        a, b = changes
        if a.scale or b.scale:
            return _same(a, b)
        return _Change(shift=_sum(a.shift, b.shift, Fraction(-1 if fn == "sub" else 1)))
    if fn in ("mul", "div"):
        return _product(fn, args, *changes)
    if fn == "exp" and not changes[0].scale:
        return _Change(scale=changes[0].shift)
    if fn == "log" and not changes[0].shift:
        return _Change(shift=changes[0].scale)
    if fn in ("sqrt", "rsqrt") and not changes[0].shift:
        return _Change(scale=_times(changes[0].scale, Fraction(1 if fn == "sqrt" else -1, 2)))
    raise _UnknownError


def _product(fn: str, args: tuple[Expr, ...], a: _Change, b: _Change) -> _Change:
    if a.shift or b.shift:
        factor = args[1] if a.shift else args[0]
        if not isinstance(factor, Const) or a.scale or b.scale or (fn == "div" and b.shift):
            raise _UnknownError
        if not isfinite(factor.value) or (fn == "div" and not factor.value):
            raise _UnknownError
        k = Fraction(factor.value)
        return _Change(shift=_times(a.shift or b.shift, 1 / k if fn == "div" else k))
    zero = Const(0) in args or (fn == "mul" and (a.zero or b.zero))
    sign = Fraction(-1 if fn == "div" else 1)
    return _Change(scale=_sum(a.scale, b.scale, sign), zero=zero)


def _sum(a: Degrees, b: Degrees, factor: Fraction) -> Degrees:
    found = dict(a)
    for element, k in b.items():
        found[element] = found.get(element, Fraction(0)) + factor * k
    return {e: k for e, k in found.items() if k}


def _times(a: Degrees, factor: Fraction) -> Degrees:
    return {e: k * factor for e, k in a.items() if k * factor}


def _same(a: _Change, b: _Change) -> _Change:
    """The change that two values have in common."""
    for one, other in ((a, b), (b, a)):
        if one.is_none and (one.infinite or (one.zero and not other.shift)):
            return other
    if a.shift != b.shift or a.scale != b.scale:
        raise _UnknownError
    return a


def _unchanged(a: _Change) -> _Change:
    if not a.is_none:
        raise _UnknownError
    return a
