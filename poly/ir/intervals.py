"""Ranges of index arithmetic: generated code computes it in 64 bits.

isl proves in integers of any length.  Its proofs hold for a kernel as long as no intermediate
result of an index, a bound or a condition leaves 64 bits; this is shown by interval arithmetic,
for sizes up to `LARGEST_SIZE` or to what the program's preconditions say.
"""

from __future__ import annotations

from collections.abc import Mapping

from poly.errors import FarkasError
from poly.ir.expr import Cast, Const, Expr, Index, Op, Size, reads_of
from poly.ir.program import Program

#: The largest size, and the most elements of a tensor with sizes in its shape.
LARGEST_SIZE = 1 << 38
#: No tensor may have this many bytes or more; offsets then fit into an int64.
MOST_BYTES = 1 << 62
#: `LARGEST_SIZE` as text for messages.
MOST = f"2**{LARGEST_SIZE.bit_length() - 1}"

#: The least and the greatest value of an expression.
Interval = tuple[int, int]
INT64: Interval = (-(1 << 63), (1 << 63) - 1)
_TRUTH = (0, 1)


class Beyond64BitsError(FarkasError):
    """Index arithmetic that could leave 64 bits.

    Attributes
    ----------
    expr : the expression that could be that large
    """

    def __init__(self, expr: Expr, value: int) -> None:
        self.expr = expr
        least = (abs(value) - 1).bit_length()
        super().__init__(f"{expr} can reach {'-' * (value < 0)}2**{least}, beyond 64 bits")


def size_intervals(program: Program) -> dict[str, Interval]:
    """The known interval of each size, bounded above by the program's preconditions."""
    found = dict.fromkeys(program.sizes, (0, LARGEST_SIZE))
    pending = list(program.constraints)
    while pending:
        c = pending.pop()
        if isinstance(c, Op) and c.fn == "and":
            pending += c.args
        if not isinstance(c, Op) or len(c.args) != 2:
            continue
        fn, left, right = c.fn, *c.args
        if fn in _TURNED and isinstance(left, Const):
            fn, left, right = _TURNED[fn], right, left
        if fn in ("le", "lt", "eq") and isinstance(left, Size) and isinstance(right, Const):
            low, high = found[left.name]
            found[left.name] = low, max(low, min(high, int(right.value) - (fn == "lt")))
    return found


_TURNED = {"ge": "le", "gt": "lt", "eq": "eq"}


def interval(expr: Expr, known: Mapping[str, Interval]) -> Interval:
    """Bounds of an index expression that hold for all of its subexpressions, too.

    known : the bounds of indices and of sizes; a value computed from data is unbounded, and wraps
        around

    Raises
    ------
    Beyond64BitsError : a subexpression could leave 64 bits.
    """
    if isinstance(expr, Const):
        found = (int(expr.value), int(expr.value))
    elif isinstance(expr, (Index, Size)):
        found = known[expr.name]
    elif isinstance(expr, Op):
        found = _operation(expr, [interval(a, known) for a in expr.args])
    elif isinstance(expr, Cast) and not reads_of(expr):
        found = interval(expr.arg, known)
    else:
        return INT64
    for value in found:
        if not INT64[0] <= value <= INT64[1]:
            raise Beyond64BitsError(expr, value)
    return found


def _operation(expr: Op, args: list[Interval]) -> Interval:
    fn, (low, high) = expr.fn, args[0]
    if fn == "neg":
        return -high, -low
    if len(args) == 1:
        return _TRUTH
    first, last = args[1]
    if fn == "add":
        return low + first, high + last
    if fn == "sub":
        return low - last, high - first
    if fn == "mul":
        corners = [a * b for a in args[0] for b in args[1]]
        return min(corners), max(corners)
    if fn == "min":
        return min(low, first), min(high, last)
    if fn == "max":
        return max(low, first), max(high, last)
    if fn in ("floordiv", "div") and first > 0:
        corners = [a // b for a in args[0] for b in args[1]]
        # `div` rounds towards 0, which is up for negative values.
        return min(corners), max(corners) + (fn == "div")
    if fn == "mod" and first > 0:
        return 0, last - 1
    if fn == "fmod" and first > 0:
        return (0 if low >= 0 else 1 - last), last - 1
    if fn == "select":
        return min(first, args[2][0]), max(last, args[2][1])
    if fn in ("floordiv", "div", "mod", "fmod"):
        # The divisor may be 0 or less: the magnitude is at most that of either operand.
        most = max(abs(v) for pair in args for v in pair)
        return -most, most
    return _TRUTH
