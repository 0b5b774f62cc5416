"""Values that compute what a pattern does, up to the order of operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from poly.ir.dtypes import DType
from poly.ir.expr import Cast, Const, Expr, Op, Read, is_weak, operand_dtype
from poly.ir.operators import COMMUTATIVE
from poly.ir.program import Program

#: The element of a value for each one of the pattern's.
Elements = Mapping[Read, Read]


def ways_to_store(
    meaning: Program, target: Read, value: Expr, own: Mapping[str, DType]
) -> Iterator[dict[Read, Read]]:
    """Each way to find the statement of a meaning in one that stores, or combines with, a value.

    own : the types of the tensors of target and value
    """
    (pattern,) = meaning.statements
    theirs = meaning.dtypes
    stored = own[target.tensor]
    if stored != theirs[pattern.target.tensor]:
        return
    start = {pattern.target: target}
    if isinstance(pattern.value, Const) and isinstance(value, Const):
        # The number alone counts, not how it is written.
        a, b = (np.asarray(c.value).astype(stored.numpy) for c in (pattern.value, value))
        if a.tobytes() == b.tobytes():
            yield start
        return
    yield from ways_to_match(pattern.value, value, start, own, theirs)


def ways_to_match(
    pattern: Expr,
    value: Expr,
    known: Elements,
    own: Mapping[str, DType],
    theirs: Mapping[str, DType],
) -> Iterator[dict[Read, Read]]:
    """Each way to find a pattern in a value that extends what is known.

    own, theirs : the types of the value's tensors, and of the pattern's
    """
    if isinstance(pattern, Read):
        same = isinstance(value, Read) and own[value.tensor] == theirs[pattern.tensor]
        if same and isinstance(value, Read) and known.get(pattern, value) == value:
            yield {**known, pattern: value}
    elif isinstance(pattern, Cast):
        if isinstance(value, Cast) and value.dtype == pattern.dtype:
            yield from ways_to_match(pattern.arg, value.arg, known, own, theirs)
        elif isinstance(value, Read) and own[value.tensor].compute == pattern.dtype:
            # Computed in that type in any case.
            yield from ways_to_match(pattern.arg, value, known, own, theirs)
    elif isinstance(pattern, Op):
        if isinstance(value, Op) and value.fn == pattern.fn:
            orders = [value.args]
            if pattern.fn in COMMUTATIVE:
                orders.append(value.args[::-1])
            patterns = _in_float(pattern, theirs)
            for args in orders:
                values = _in_float(Op(value.fn, args), own)
                yield from _each(patterns, values, known, own, theirs)
    elif pattern == value:
        yield dict(known)


def _in_float(e: Op, dtypes: Mapping[str, DType]) -> tuple[Expr, ...]:
    """The operands of an operator; a literal such as 2 beside a float becomes 2.0, as which it
    counts.
    """
    literal = [isinstance(a, Const) and a.dtype is None and type(a.value) is int for a in e.args]
    if not any(literal) or all(map(is_weak, e.args)):
        return e.args
    if not operand_dtype(e, dtypes, None).is_float:
        return e.args
    return tuple(
        Const(float(a.value)) if n and isinstance(a, Const) else a
        for n, a in zip(literal, e.args, strict=True)
    )


def _each(
    patterns: Sequence[Expr],
    values: Sequence[Expr],
    known: Elements,
    own: Mapping[str, DType],
    theirs: Mapping[str, DType],
) -> Iterator[dict[Read, Read]]:
    if not patterns:
        yield dict(known)
        return
    for found in ways_to_match(patterns[0], values[0], known, own, theirs):
        yield from _each(patterns[1:], values[1:], found, own, theirs)
