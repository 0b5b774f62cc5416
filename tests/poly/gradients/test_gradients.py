"""Gradients and derivatives of programs: right, printed, differentiated again, compiled."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from poly.ir.program import Program
from tests.poly.gradients.cases import CASES, Case
from tests.poly.gradients.differences import CLOSE, Differentiated, inputs_of


def differentiated(program: Program, case: Case, seed: int = 0) -> Differentiated:
    wrt = [t.name for t in program.inputs if t.dtype.is_float]
    of = [t.name for t in program.outputs]
    return Differentiated(program, wrt, of, inputs_of(program, case.sizes, seed))


@pytest.mark.parametrize("name", CASES)
def test_both_modes_equal_differences(name: str) -> None:
    case = CASES[name]
    program = fk.parse(case.text)
    at = differentiated(program, case)
    by_gradient = at.by_gradient(fk.grad(program))
    assert at.by_derivative(fk.jvp(program)) == pytest.approx(by_gradient, rel=1e-10, abs=1e-10)
    assert at.by_differences() == pytest.approx(by_gradient, rel=CLOSE, abs=CLOSE)


@pytest.mark.parametrize("name", CASES)
def test_texts_parse_back(name: str) -> None:
    for made in (fk.grad(CASES[name].text), fk.jvp(CASES[name].text)):
        assert fk.parse(str(made)) == made


@pytest.mark.parametrize("name", CASES)
def test_gradients_have_gradients(name: str) -> None:
    """Those of the gradient with respect to the first input, of all that it depends on."""
    case = CASES[name]
    first = fk.grad(case.text, wrt=fk.parse(case.text).inputs[0].name)
    try:
        second, derivative = fk.grad(first), fk.jvp(first)
    except fk.GradientError as error:
        assert "no output of f depends" in str(error)  # the program is linear
        return
    wrt = [t.name for t in derivative.inputs if t not in first.inputs]
    sizes = case.sizes
    arrays = inputs_of(first, sizes)
    names = [
        t.name for t in first.inputs if any(w.strip("_") == f"d{t.name}".strip("_") for w in wrt)
    ]
    of = [t.name for t in first.outputs]
    at = Differentiated(first, names, of, arrays)
    by_gradient = at.by_gradient(second)
    assert at.by_derivative(derivative) == pytest.approx(by_gradient, rel=1e-9, abs=1e-9)
    assert at.by_differences() == pytest.approx(by_gradient, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("exact", [False, True])
def test_kernels_of_gradients(name: str, exact: bool) -> None:
    case = CASES[name]
    made = fk.value_and_grad(case.text.replace("float64", "float32"))
    arrays = inputs_of(made, case.sizes)
    kernel = fk.compile(made, exact=exact)
    expected = fk.evaluate(made, arrays)
    for threads in (1, 2):
        found = kernel(**arrays, threads=threads)
        found = found if isinstance(found, tuple) else (found,)
        for t, array in zip(made.outputs, found, strict=True):
            np.testing.assert_allclose(
                array, expected[t.name], rtol=1e-4, atol=1e-5, err_msg=t.name
            )


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "body",
    [
        "m[i] max=! X[i,j] * Z[i,j]",
        "m[i] min=! X[i,j] * Z[i,j]",
        "t[i] max=! X[i,j] * Z[i,j]; m[i] = t[i] * 1",
        "t[i,j] = X[i,j] * Z[i,j]; m[i] max=! t[i,j]",
        "m[i] = -100 where i in 0:N; m[i] max= X[i,j] * Z[i,j]",
    ],
)
def test_maxima_that_are_rounded(body: str, dtype: str, exact: bool) -> None:
    rng = np.random.default_rng(4)
    text = f"def f({dtype} X[N,M], {dtype} Z[N,M]) -> ({dtype} m[N]) {{ {body} }}"
    kernel = fk.compile(fk.value_and_grad(text, wrt="X"), exact=exact)
    kind = fk.DTYPES[dtype].numpy
    x, z = (rng.standard_normal((8, 9)).astype(kind) for _ in "XZ")
    _, found = kernel(x, z, np.ones(8, kind))
    products = x.astype(float) * z.astype(float)
    at = products.argmin(1) if "min" in body else products.argmax(1)
    expected = np.zeros((8, 9))
    expected[np.arange(8), at] = z[np.arange(8), at]
    np.testing.assert_allclose(found.astype(float), expected, rtol=1e-2)
