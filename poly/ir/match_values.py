"""Values that compute what a pattern does, up to the order of operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from poly.ir.dtypes import DType
from poly.ir.expr import Cast, Expr, Op, Read
from poly.ir.operators import COMMUTATIVE

#: The element of a value for each one of the pattern's.
Elements = Mapping[Read, Read]


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
            for args in orders:
                yield from _each(pattern.args, args, known, own, theirs)
    elif pattern == value:
        yield dict(known)


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
