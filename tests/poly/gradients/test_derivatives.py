"""The derivative of every operator, compared with differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.gradients.derivatives import FLAT, RULES
from poly.ir.operators import OPS
from tests.poly.gradients.differences import Differentiated

#: Where functions are defined, and smooth: within (-0.9, 0.9) but for these.
RANGES = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "pow"), (0.3, 2.0)),
    "acosh": (1.2, 3.0),
    "fmod": (0.6, 0.9),
    "mod": (0.6, 0.9),
    "div": (0.4, 2.0),
}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%"}


def value(fn: str) -> str:
    """An operator of X and, if it takes two, Z."""
    if fn == "neg":
        return "-X[i]"
    if fn == "select":
        return "select(X[i] < Z[i], X[i] * 2, Z[i] * 3)"
    if fn in _INFIX:
        return f"X[i] {_INFIX[fn]} Z[i]"
    return f"{fn}({', '.join(['X[i]', 'Z[i]'][: OPS[fn].arity])})"


@pytest.mark.parametrize("fn", RULES)
def test_rule(fn: str) -> None:
    names = ["X", "Z"][: 1 if OPS[fn].arity == 1 else 2]
    inputs = ", ".join(f"float64 {n}[N]" for n in names)
    program = fk.parse(f"def f({inputs}) -> (Y) {{ Y[i] = {value(fn)} }}")
    low, high = RANGES.get(fn, (-0.9, 0.9))
    rng = np.random.default_rng(0)
    arrays = {n: rng.uniform(low, high, 64) for n in names}
    if fn in ("fmod", "mod"):
        arrays["X"] = arrays["X"] * 5
    at = Differentiated(program, names, ["Y"], arrays)
    found = at.by_gradient(fk.grad(program))
    assert at.by_derivative(fk.jvp(program)) == pytest.approx(found, rel=1e-12)
    assert at.by_differences() == pytest.approx(found, rel=1e-6)


def test_every_operator_has_a_rule_or_none() -> None:
    assert {
        "or", "and", "not", "lt", "le", "gt", "ge", "eq", "ne", "bitor", "bitxor", "bitand", "shl",
        "shr", "bitnot", "floordiv", "sign", "isnan", "isinf", "signbit", "floor", "ceil", "round",
        "trunc",
    } == FLAT  # fmt: skip


@pytest.mark.parametrize(
    ("text", "x", "expected"),
    [
        ("Y[i] = max(X[i], 1)", [0.0, 1.0, 2.0], [0.0, 0.5, 1.0]),
        ("Y[i] = min(X[i], 1)", [0.0, 1.0, 2.0], [1.0, 0.5, 0.0]),
        ("Y[i] = max(X[i], nan)", [0.0], [1.0]),
        # A rectifier has 0 at 0; where max is a part of a smooth function, ties share.
        ("Y[i] = max(X[i], 0)", [-1.0, 0.0, 1.0, np.nan], [0.0, 0.0, 1.0, 1.0]),
        ("Y[i] = max(0, 2 * X[i])", [-1.0, 0.0, 1.0], [0.0, 0.0, 2.0]),
        ("Y[i] = max(X[i], 0) + log(1 + exp(-abs(X[i])))", [0.0], [0.5]),
        ("Y[i] = abs(X[i])", [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]),
        ("Y[i] = floor(X[i]) + X[i]", [1.0, 1.5], [1.0, 1.0]),
        ("Y[i] = pow(X[i], 0) + X[i]", [0.0, 2.0], [1.0, 1.0]),
        ("Y[i] = pow(X[i], 3)", [0.0, 2.0], [0.0, 12.0]),
        # A branch that is not taken adds nothing, whatever its derivative.
        ("Y[i] = select(X[i] > 0, sqrt(X[i]), 0 * X[i])", [0.0, 4.0], [0.0, 0.25]),
        ("Y[i] = select(X[i] > 0, log(X[i]), X[i])", [0.0, -1.0, 2.0], [1.0, 1.0, 0.5]),
        ("Y[i] = float64(int32(X[i])) + X[i]", [1.5], [1.0]),
    ],
)
def test_points_without_a_derivative(text: str, x: list[float], expected: list[float]) -> None:
    made = fk.grad(f"def f(float64 X[N]) -> (Y) {{ {text} }}")
    ones = np.ones(len(x))
    found = fk.evaluate(made, {"X": np.asarray(x), "dY": ones})
    np.testing.assert_array_equal(found["dX"], expected)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([1.0, 3.0, 3.0], [0.0, 0.5, 0.5]),
        ([np.inf, 1.0, np.inf], [0.5, 0.0, 0.5]),
        ([np.nan, 1.0, np.nan], [0.5, 0.0, 0.5]),
        ([-np.inf, -np.inf, -np.inf], [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_ties_of_a_maximum_share(x: list[float], expected: list[float]) -> None:
    made = fk.grad("def f(float64 X[N]) -> (m) { m[] max=! X[i] }")
    found = fk.evaluate(made, {"X": np.asarray(x)})
    np.testing.assert_allclose(found["dX"], expected)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([2.0, 3.0, 4.0], [12.0, 8.0, 6.0]),
        ([2.0, 0.0, 4.0], [0.0, 8.0, 0.0]),
        ([0.0, 0.0, 4.0], [0.0, 0.0, 0.0]),
        ([-0.0, 5.0, 4.0], [20.0, 0.0, 0.0]),
    ],
)
def test_products_with_zeros(x: list[float], expected: list[float]) -> None:
    made = fk.grad("def f(float64 X[N]) -> (p) { p[] *=! X[i] }")
    found = fk.evaluate(made, {"X": np.asarray(x)})
    np.testing.assert_allclose(found["dX"], expected)
