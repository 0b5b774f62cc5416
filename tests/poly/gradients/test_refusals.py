"""What has no gradient is refused, and the message says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import farkas as fk

PLAIN = "def f(float32 X[N], int32 I[N], float32 Z[N]) -> (Y, J) { Y[i] = X[i] * 2\nJ[i] = I[i] }"


@pytest.mark.parametrize(
    ("text", "wrt", "of", "message"),
    [
        (PLAIN, "Q", None, "there is no input 'Q'; there are X, I, Z"),
        (PLAIN, "Y", None, "there is no input 'Y'; there are X, I, Z"),
        (PLAIN, "X", "X", "there is no output 'X'; there are Y, J"),
        (PLAIN, "I", "Y", "input I is int32: only floats have gradients"),
        (PLAIN, "X", "J", "output J is int32: only floats have gradients"),
        (PLAIN, "Z", "Y", "Y does not depend on Z"),
        (PLAIN, ["X", "X"], "Y", "input X is named twice"),
        (PLAIN, 5, "Y", "5 names no tensor; there are X, I, Z"),
        (PLAIN, [], "Y", "a gradient needs an input: there are X, I, Z"),
        (PLAIN, "X", [], "a gradient needs an output: there are Y, J"),
        (
            "def f(float32 X[N]) -> (Y) { Y[i] = floor(X[i]) }", None, None,
            "no output of f depends on an input by floats",
        ),
        (
            "def f(float32 X[N]) -> (Y) { Y[i] = select(X[i] > 0, 1.0, 0.0) }", "X", None,
            "no output of f depends on X by floats",
        ),
        (
            "def f(float32 X[N]) -> (Y) { Y[i] = int32(X[i]) }", None, None,
            "no output of f depends on an input by floats",
        ),
        (
            "def f(float32 X[N]) -> (Y) { Y[i] = pow(X[i], 0) }", None, None,
            "no output of f depends on an input by floats",
        ),
        (
            "def f(float32 X[N]) -> (Y) { Y[i] = sign(X[i]) * ceil(X[i]) }", None, "Y",
            "Y does not depend on an input by floats",
        ),
        (
            "def f(float32 X[N], int64 I[M]) -> (Y) { Y[m] = I[m] + 1 }", None, None,
            "no output of f depends on an input by floats",
        ),
        (
            "def f(float32 X[N], float32 B[]) -> (Y) { Y[i] = select(X[i] > B[], 2.0, X[i]) }",
            "B", None, "no output of f depends on B by floats",
        ),
        (
            "def f(float32 X[N]) -> (Y, Z) { Y[i] = X[i]\nZ[] = 3.0 }", "X", "Z",
            "Z does not depend on X",
        ),
        (
            "def f(bool X[N], float32 Z[N]) -> (Y) { Y[i] = select(X[i], Z[i], 0) }", "X", None,
            "input X is bool: only floats have gradients",
        ),
        (
            "def f(float32 X[N]) -> (Y) { S[i] = X[i]\nY[i] = S[i] }", "S", None,
            "there is no input 'S'; there are X",
        ),
        (
            "def f(float32 X[N], int32 I[N]) -> (X) { X[i] = X[I[i]] }", "X", None,
            "statement S0 reads X_out[I[i]], which it overwrites, at places that depend on data",
        ),
    ],
)  # fmt: skip
def test_refused(text: str, wrt: object, of: object, message: str) -> None:
    for make in (fk.grad, fk.value_and_grad, fk.jvp):
        with pytest.raises(fk.GradientError) as caught:
            make(text, wrt=wrt, of=of)  # type: ignore[arg-type]
        assert message in str(caught.value)


def test_mistakes_in_texts_are_those_of_the_language() -> None:
    with pytest.raises(fk.LanguageError):
        fk.grad("def f(float32 X[N]) -> (Y) { Y[i] = X[i }")
    with pytest.raises(fk.ArgumentError, match="the element type of A, B is not known"):
        fk.grad("ij,jk->ik")


@pytest.mark.parametrize("how", [fk.grad, fk.value_and_grad, fk.jvp])
def test_what_is_no_program(how: Callable[..., object]) -> None:
    with pytest.raises(fk.ArgumentError, match="the text is a Kernel, expected a string"):
        how(fk.compile("Y[i] = X[i]"))
