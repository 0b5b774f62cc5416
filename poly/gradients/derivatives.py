"""Derivatives of the operators of expressions, and how gradients flow through an expression.

Where an operator has no derivative at a point, it has the one that frameworks agree on: ties of
``max`` and ``min`` share evenly, ``abs`` has 0 at 0, and what is constant in pieces (``floor``,
``sign``, comparisons) has 0 everywhere.  A value that is ``max(x, 0)`` as a whole is a rectifier,
which has 0 at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poly.ir.dtypes import DType
from poly.ir.expr import Cast, Const, Expr, Op, Read, dtype_of_expr
from poly.ir.operators import OPS

ZERO, ONE = Const(0), Const(1)


# --- building, with the folding that keeps derivatives short ---------------------------------


def plus(a: Expr, b: Expr) -> Expr:
    if ZERO in (a, b):
        return b if a == ZERO else a
    if a == b:
        return times(Const(2), a)
    if isinstance(b, Op) and b.fn == "neg":
        return minus(a, b.args[0])
    return Op("add", (a, b))


def minus(a: Expr, b: Expr) -> Expr:
    if b == ZERO:
        return a
    return negated(b) if a == ZERO else Op("sub", (a, b))


def negated(a: Expr) -> Expr:
    if isinstance(a, Const) and not isinstance(a.value, bool):
        return Const(-a.value, a.dtype)
    return a.args[0] if isinstance(a, Op) and a.fn == "neg" else Op("neg", (a,))


def times(*factors: Expr) -> Expr:
    """A product, with the signs of its factors in front."""
    sign, kept = 1, []
    left = [*reversed(factors)]
    while left:
        f = left.pop()
        if f == ZERO:
            return ZERO
        if isinstance(f, Op) and f.fn == "neg":
            sign = -sign
            left.append(f.args[0])
        elif isinstance(f, Op) and f.fn == "mul":
            left += reversed(f.args)
        elif isinstance(f, Const) and f.dtype is None and f.value < 0:
            sign = -sign
            left.append(Const(-f.value))
        elif f != ONE:
            kept.append(f)
    made: Expr = ONE if not kept else kept[0]
    for f in kept[1:]:
        made = Op("mul", (made, f))
    return made if sign > 0 else negated(made)


def over(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Op) and a.fn == "neg":
        return negated(over(a.args[0], b))
    return a if b == ONE or a == ZERO else Op("div", (a, b))


def call(fn: str, *args: Expr) -> Expr:
    return Op(fn, args)


def chosen(condition: Expr, a: Expr, b: Expr) -> Expr:
    return a if a == b else Op("select", (condition, a, b))


# --- the operators ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Flow:
    """What flows to an operand: a factor of the gradient of the result, where a condition holds.

    What does not flow is 0, whatever the factor would be there.
    """

    factor: Expr
    where: Expr | None = None


#: From the value of an operator and its operands to what flows to each; None for nothing.
Rule = Callable[..., tuple[Flow | None, ...]]


def _factors(*made: Expr) -> tuple[Flow, ...]:
    return tuple(map(Flow, made))


def _extremum(beyond: str) -> Rule:
    """``max`` or ``min``: to the operands that are not beaten, evenly."""

    def rule(y: Expr, a: Expr, b: Expr) -> tuple[Flow, ...]:
        share = chosen(call("eq", a, b), Const(0.5), ONE)
        return tuple(Flow(share, call("not", call(beyond, *x))) for x in ((b, a), (a, b)))

    return rule


def _rectifier(y: Expr, a: Expr, b: Expr) -> tuple[Flow | None, ...]:
    """``max(x, 0)``: to `x` where it is above 0, or NaN."""
    kept = Flow(ONE, call("not", call("le", b if a == ZERO else a, ZERO)))
    return (None, kept) if a == ZERO else (kept, None)


def _power(y: Expr, a: Expr, b: Expr) -> tuple[Flow | None, ...]:
    if isinstance(b, Const):
        n = b.value
        if n in (0, 1, 2):
            return Flow((ZERO, ONE, times(Const(2), a))[int(n)]), None
        return Flow(times(b, call("pow", a, Const(n - 1, b.dtype)))), None
    base = Flow(times(b, call("pow", a, minus(b, ONE))), call("ne", b, ZERO))
    # 0^b is 0 for every b > 0, so it does not change with b.
    return base, Flow(times(y, call("log", a)), call("ne", a, ZERO))


def _square(a: Expr) -> Expr:
    return times(a, a)


def _angle(y: Expr, a: Expr, b: Expr) -> tuple[Flow, ...]:
    length = plus(_square(a), _square(b))
    return _factors(over(b, length), negated(over(a, length)))


RULES: dict[str, Rule] = {
    "add": lambda y, a, b: _factors(ONE, ONE),
    "sub": lambda y, a, b: _factors(ONE, Const(-1)),
    "mul": lambda y, a, b: _factors(b, a),
    "div": lambda y, a, b: _factors(over(ONE, b), negated(over(y, b))),
    "neg": lambda y, a: _factors(Const(-1)),
    "fmod": lambda y, a, b: _factors(ONE, negated(call("trunc", over(a, b)))),
    "mod": lambda y, a, b: _factors(ONE, negated(call("floor", over(a, b)))),
    "max": _extremum("gt"),
    "min": _extremum("lt"),
    "abs": lambda y, a: _factors(call("sign", a)),
    "pow": _power,
    "atan2": _angle,
    "select": lambda y, c, a, b: (None, Flow(ONE, c), Flow(ONE, call("not", c))),
    "sqrt": lambda y, a: _factors(over(Const(0.5), y)),
    "rsqrt": lambda y, a: _factors(times(Const(-0.5), y, _square(y))),
    "exp": lambda y, a: _factors(y),
    "log": lambda y, a: _factors(over(ONE, a)),
    "sin": lambda y, a: _factors(call("cos", a)),
    "cos": lambda y, a: _factors(negated(call("sin", a))),
    "tan": lambda y, a: _factors(plus(ONE, _square(y))),
    "asin": lambda y, a: _factors(call("rsqrt", minus(ONE, _square(a)))),
    "acos": lambda y, a: _factors(negated(call("rsqrt", minus(ONE, _square(a))))),
    "atan": lambda y, a: _factors(over(ONE, plus(ONE, _square(a)))),
    "sinh": lambda y, a: _factors(call("cosh", a)),
    "cosh": lambda y, a: _factors(call("sinh", a)),
    "tanh": lambda y, a: _factors(minus(ONE, _square(y))),
    "asinh": lambda y, a: _factors(call("rsqrt", plus(_square(a), ONE))),
    "acosh": lambda y, a: _factors(
        times(call("rsqrt", minus(a, ONE)), call("rsqrt", plus(a, ONE)))
    ),
    "atanh": lambda y, a: _factors(over(ONE, minus(ONE, _square(a)))),
    "erf": lambda y, a: _factors(
        times(Const(2 / math.sqrt(math.pi)), call("exp", negated(_square(a))))
    ),
    "sigmoid": lambda y, a: _factors(times(y, minus(ONE, y))),
}

#: Operators that are constant in pieces.
FLAT = frozenset(OPS) - set(RULES)


# --- expressions ------------------------------------------------------------------------------


def flows(
    value: Expr, gradient: Expr, dtypes: Mapping[str, DType], active: frozenset[str]
) -> dict[Read, Expr]:
    """What flows to each element that a value reads.

    gradient : of the value
    active : the tensors that count

    What is computed in the branch of a ``select`` that is not taken contributes 0, even where its
    derivative is infinite or not a number.
    """
    found: dict[Read, Expr] = {}

    top = _without_casts(value)

    def visit(e: Expr, g: Expr, where: tuple[Expr, ...]) -> None:
        if g == ZERO or not _moves(e, dtypes, active):
            return
        if isinstance(e, Read):
            for c in reversed(where):
                if isinstance(c, Op) and c.fn == "not":
                    g = chosen(c.args[0], ZERO, g)
                else:
                    g = chosen(c, g, ZERO)
            found[e] = plus(found[e], g) if e in found else g
        elif isinstance(e, Cast):
            visit(e.arg, g, where)
        elif isinstance(e, Op) and e.fn in RULES:
            rule = _rectifier if e is top and e.fn == "max" and ZERO in e.args else RULES[e.fn]
            for arg, flow in zip(e.args, rule(e, *e.args), strict=True):
                if flow is not None:
                    more = () if flow.where is None else (flow.where,)
                    visit(arg, product(g, flow.factor), (*where, *more))

    visit(value, gradient, ())
    return found


def _without_casts(e: Expr) -> Expr:
    return _without_casts(e.arg) if isinstance(e, Cast) else e


def product(g: Expr, factor: Expr) -> Expr:
    """``g * factor``, as a division if the factor is one."""
    if isinstance(factor, Op) and factor.fn == "neg":
        return negated(product(g, factor.args[0]))
    if isinstance(factor, Op) and factor.fn == "div" and factor.args[0] == ONE:
        return over(g, factor.args[1])
    return times(g, factor)


def _moves(e: Expr, dtypes: Mapping[str, DType], active: frozenset[str]) -> bool:
    """Whether a value depends on active tensors other than by integers and conditions."""
    if isinstance(e, Read):
        return e.tensor in active
    if isinstance(e, Cast):
        return e.dtype.is_float and _moves(e.arg, dtypes, active)
    if not isinstance(e, Op) or e.fn in FLAT:
        return False
    if not dtype_of_expr(e, dtypes).is_float:
        return False
    values = e.args[1:] if e.fn == "select" else e.args
    return any(_moves(a, dtypes, active) for a in values)
