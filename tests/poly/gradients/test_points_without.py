"""Points where there is no derivative: the gradient is what the guide says, or follows IEEE 754."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from runtime.reference.evaluate import evaluate

INF, NAN = np.inf, np.nan

#: Expressions of x, and of y: a point, and the gradients with respect to x, and to y.
ONE_OPERAND = {
    "abs at 0": ("abs(X[i])", 0, 0),
    "abs of a negative zero": ("abs(X[i])", -0.0, 0),
    "abs of a NaN": ("abs(X[i])", NAN, NAN),
    "sign": ("sign(X[i]) + X[i]", 0, 1),
    "floor at an integer": ("floor(X[i]) + X[i]", 2, 1),
    "ceil at an integer": ("ceil(X[i]) + 3 * X[i]", 2, 3),
    "round at a half": ("round(X[i]) + X[i]", 0.5, 1),
    "trunc": ("trunc(X[i]) * X[i]", 2.5, 2),
    "a comparison": ("select(X[i] > 0, 1.0, 0.0) + X[i]", 0, 1),
    "an integer": ("float64(int32(X[i])) * X[i]", 2.5, 2),
    "isnan": ("select(isnan(X[i]), 1.0, X[i])", NAN, 0),
    "signbit": ("select(signbit(X[i]), 0.0, X[i])", -1, 0),
    "remainder, floored": ("X[i] % 3", 7, 1),
    "remainder at a multiple": ("X[i] % 3", 6, 1),
    "ReLU at 0": ("max(X[i], 0)", 0, 0),
    "ReLU in a sum": ("max(X[i], 0) + 1", 0, 0.5),
    "ReLU of a NaN": ("max(X[i], 0)", NAN, 1),
    "clip at the lower end": ("min(max(X[i], -1), 1)", -1, 0.5),
    "clip at the upper end": ("min(max(X[i], -1), 1)", 1, 0.5),
    "clip outside": ("min(max(X[i], -1), 1)", 7, 0),
    "max with itself": ("max(X[i], X[i])", 3, 1),
    "sqrt at 0": ("sqrt(X[i])", 0, INF),
    "sqrt of a negative": ("sqrt(X[i])", -1, NAN),
    "sqrt that is not taken": ("select(X[i] > 0, sqrt(X[i]), 0)", 0, 0),
    "rsqrt at 0": ("rsqrt(X[i])", 0, -INF),
    "log at 0": ("log(X[i])", 0, INF),
    "log that is not taken": ("select(X[i] > 0, log(X[i]), 2 * X[i])", -1, 2),
    "a quotient by 0": ("1 / X[i]", 0, -INF),
    "a power of 0": ("pow(X[i], 0) * X[i]", 0, 1),
    "a power of 1 at 0": ("pow(X[i], 1)", 0, 1),
    "a square at 0": ("pow(X[i], 2)", 0, 0),
    "a root at 0": ("pow(X[i], 0.5)", 0, INF),
    "a power of 1.5 at 0": ("pow(X[i], 1.5)", 0, 0),
    "a cube of a negative": ("pow(X[i], 3)", -2, 12),
    "exp at minus infinity": ("exp(X[i])", -INF, 0),
    "exp that overflows": ("exp(X[i])", 1e4, INF),
    "sigmoid far away": ("sigmoid(X[i])", 1e3, 0),
    "tanh at infinity": ("tanh(X[i])", INF, 0),
    "asin at 1": ("asin(X[i])", 1, INF),
    "acos at 1": ("acos(X[i])", 1, -INF),
    "acosh at 1": ("acosh(X[i])", 1, INF),
    "atanh at 1": ("atanh(X[i])", 1, INF),
    "erf far away": ("erf(X[i])", 1e3, 0),
}
TWO_OPERANDS = {
    "a tie of max": ("max(X[i], Y[i])", (3, 3), (0.5, 0.5)),
    "a tie of min": ("min(X[i], Y[i])", (3, 3), (0.5, 0.5)),
    "a tie of infinities": ("max(X[i], Y[i])", (INF, INF), (0.5, 0.5)),
    "zeros of both signs": ("max(X[i], Y[i])", (0.0, -0.0), (0.5, 0.5)),
    "0 to the power of 0": ("pow(X[i], Y[i])", (0, 0), (0, 0)),
    "0 to a power": ("pow(X[i], Y[i])", (0, 2), (0, 0)),
    "a negative to a power": ("pow(X[i], Y[i])", (-2, 2), (-4, NAN)),
    "a product with 0": ("X[i] * Y[i]", (0, 5), (5, 0)),
    "0 over 0": ("X[i] / Y[i]", (0, 0), (INF, NAN)),
    "atan2 at the origin": ("atan2(X[i], Y[i])", (0, 0), (NAN, NAN)),
    "which way a branch goes": ("select(X[i] < Y[i], X[i], Y[i])", (1, 1), (0, 1)),
}
REDUCTIONS = {
    "a tie": ("m[] max=! X[i]", [1, 3, 3], [0, 0.5, 0.5]),
    "all the same": ("m[] min=! X[i]", [2, 2, 2], [1 / 3, 1 / 3, 1 / 3]),
    "a tie of infinities": ("m[] max=! X[i]", [INF, 0, INF], [0.5, 0, 0.5]),
    "only minus infinity": ("m[] max=! X[i]", [-INF, -INF], [0.5, 0.5]),
    "one NaN": ("m[] max=! X[i]", [1, NAN, 3], [0, 1, 0]),
    "two NaNs": ("m[] max=! X[i]", [NAN, 2, NAN], [0.5, 0, 0.5]),
    "a product with one zero": ("m[] *=! X[i]", [2, 0, 3], [0, 6, 0]),
    "a product with two zeros": ("m[] *=! X[i]", [0, 5, 0], [0, 0, 0]),
    # As in torch: what the others make is the product over the factor.
    "a product of infinity": ("m[] *=! X[i]", [INF, 2], [NAN, INF]),
    "a sum of infinity": ("m[] +=! X[i]", [INF, 1], [1, 1]),
    "no terms": ("m[] max=! X[i]", [], []),
}


def gradients(text: str, **inputs: object) -> dict[str, np.ndarray]:
    """Those of a definition, where the gradient of its output is 1."""
    made = fk.grad(text)
    arrays = {n: np.asarray(a, float) for n, a in inputs.items()}
    for t in made.inputs[len(inputs) :]:
        arrays[t.name] = np.ones(len(arrays["X"]))
    with np.errstate(all="ignore"):
        return evaluate(made, arrays)


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_one_operand(name: str) -> None:
    value, x, expected = ONE_OPERAND[name]
    found = gradients(f"def f(float64 X[N]) -> (Z) {{ Z[i] = {value} }}", X=[x])
    np.testing.assert_allclose(found["dX"], [expected], rtol=1e-12)


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_two_operands(name: str) -> None:
    value, (x, y), expected = TWO_OPERANDS[name]
    text = f"def f(float64 X[N], float64 Y[N]) -> (Z) {{ Z[i] = {value} }}"
    found = gradients(text, X=[x], Y=[y])
    np.testing.assert_allclose([found["dX"][0], found["dY"][0]], expected, rtol=1e-12)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    statement, x, expected = REDUCTIONS[name]
    found = gradients(f"def f(float64 X[N]) -> (m) {{ {statement} }}", X=x)
    np.testing.assert_allclose(found["dX"], expected, rtol=1e-12)
