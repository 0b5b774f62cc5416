"""How far a result may be from the reference when reductions run in another order.

Every tensor is evaluated once more in float64 with magnitudes in place of values: a difference
becomes a sum, a product of magnitudes bounds the product.  What n roundings of relative size eps
can do to a sum is then at most about n * eps times its magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from poly.ir.dtypes import FLOAT64
from poly.ir.expr import (
    Cast,
    Const,
    Expr,
    Index,
    Op,
    Read,
    Size,
    dtype_of_expr,
    evaluate_int,
    walk,
)
from poly.ir.program import Program, Statement
from poly.rewrites.eliminate_dead import eliminate_dead
from runtime.reference.evaluate import run

_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
#: Functions that no two libraries round alike, with slopes that are bounded …
FUNCTIONS = frozenset("exp tanh sigmoid sin cos erf log atan asinh atan2 rsqrt".split())
#: … on arguments like these: exp(min(x, 2)), log(abs(x) + 1), rsqrt(abs(x) + 1).
_DOMAINS = {
    "exp": lambda x: isinstance(x, Op) and x.fn == "min" and x.args[1] == Const(2),
    "log": lambda x: _above_one(x),
    "rsqrt": lambda x: _above_one(x),
}


def _above_one(x: Expr) -> bool:
    return (
        isinstance(x, Op)
        and x.fn == "add"
        and isinstance(x.args[0], Op)
        and x.args[0].fn == "abs"
        and x.args[1] == Const(1)
    )


def has_functions(program: Program) -> bool:
    """Whether the program calls one of them; then no result is exact."""
    return any(
        isinstance(e, Op) and e.fn in FUNCTIONS and e.fn != "rsqrt"
        for s in program.statements
        for e in walk(s.value)
    )


_MOST = {"float16": 3e4, "bfloat16": 1e38, "float32": 1e38, "float64": 1e307}


def is_smooth(program: Program) -> bool:
    """Whether the bound applies: sums, products, extrema, and conditions on indices only."""
    return all(_smooth(s.value, program) for s in program.statements) and not any(
        t.dtype.kind == "b" for t in program.tensors.values()
    )


def _smooth(e: Expr, program: Program) -> bool:
    if isinstance(e, Const):
        return not isinstance(e.value, float) or np.isfinite(e.value)
    if isinstance(e, Read):
        return not any(isinstance(x, Read) for i in e.indices for x in walk(i))
    if isinstance(e, Cast):
        exact = not e.dtype.is_float and dtype_of_expr(e.arg, program.dtypes).kind in "iu"
        return (exact or e.dtype.is_float) and _smooth(e.arg, program)
    if isinstance(e, Op):
        if e.fn == "select":
            if any(isinstance(x, Read) for x in walk(e.args[0])):
                return False
            return all(_smooth(a, program) for a in e.args[1:])
        if e.fn in FUNCTIONS:
            return e.fn not in _DOMAINS or _DOMAINS[e.fn](e.args[0])
        if e.fn not in ("add", "sub", "mul", "neg", "abs", "min", "max"):
            return all(isinstance(x, (Const, Op)) for x in walk(e)) and e.fn in ("div", "floordiv")
        return all(_smooth(a, program) for a in e.args)
    return isinstance(e, (Index, Size))


def magnitude(e: Expr) -> Expr:
    """An expression that bounds the magnitude of `e`."""
    if isinstance(e, Const):
        return Const(abs(float(e.value)))
    if isinstance(e, Op):
        if e.fn == "select":
            return Op("max", (magnitude(e.args[1]), magnitude(e.args[2])))
        if e.fn in ("add", "sub", "mul"):
            fn = "mul" if e.fn == "mul" else "add"
            return Op(fn, (magnitude(e.args[0]), magnitude(e.args[1])))
        if e.fn in ("min", "max"):
            return Op("max", (magnitude(e.args[0]), magnitude(e.args[1])))
        if e.fn in ("neg", "abs"):
            return magnitude(e.args[0])
        if e.fn in FUNCTIONS:  # slopes are at most 8 where they are used
            return Op("add", (Op("mul", (magnitude(e.args[0]), Const(8.0))), Const(8.0)))
        return Cast(FLOAT64, Op("abs", (e,)))
    if isinstance(e, Cast):
        return magnitude(e.arg)
    return e if isinstance(e, Read) else Cast(FLOAT64, Op("abs", (e,)))


def tolerances(
    program: Program, inputs: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    """For each output, how far each element may be from the reference.

    Statements of which no output comes may compute what has no bound.
    """
    program = eliminate_dead(program)

    def wide(t: Any) -> Any:
        return replace(t, dtype=FLOAT64)

    def statement(s: Statement) -> Statement:
        op = "max=" if s.op == "min=" else s.op
        value = magnitude(s.value)
        if op == "*=":  # a factor below 1 makes no partial product larger
            value = Op("max", (value, Const(1.0)))
        return replace(s, op=op, value=value)

    bound = replace(
        program,
        inputs=tuple(map(wide, program.inputs)),
        outputs=tuple(map(wide, program.outputs)),
        temps=tuple(map(wide, program.temps)),
        statements=tuple(map(statement, program.statements)),
    )
    with np.errstate(all="ignore"):
        given = {n: np.abs(a.astype(np.float64)) for n, a in inputs.items()}
        values = run(bound, given, sizes).values
    steps = 8
    for s in program.statements:
        trip = 1
        for r in s.ranges:
            if r.index in s.reductions or any(x.tensor == s.target.tensor for x in s.reads):
                trip *= max(1, evaluate_int(r.hi, sizes) - evaluate_int(r.lo, sizes))
        steps += 4 * trip + sum(isinstance(e, Op) for e in walk(s.value))
    eps = max((_EPS[d.name] for d in program.dtypes.values() if d.is_float), default=0.0)
    for name, d in program.dtypes.items():
        # Where a partial result may overflow, its order decides between inf and NaN.
        if d.is_float and name in values and (values[name] > _MOST[d.name]).any():
            return {t.name: np.full(values[t.name].shape, np.inf) for t in program.outputs}
    tiny = 1e-6 if any(d.name == "float16" for d in program.dtypes.values()) else 1e-37
    return {
        t.name: np.abs(values[t.name]) * (steps * eps) + steps * tiny
        if t.dtype.is_float
        else np.zeros(values[t.name].shape)
        for t in program.outputs
    }
