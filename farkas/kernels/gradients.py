"""`grad`, `value_and_grad` and `jvp`: from programs to programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farkas.kernels.source_text import DTypes, parse
from poly.ir.program import Program

#: Names of tensors: one, several, or all that there are.
Tensors = str | Sequence[str] | None


def grad(
    program: str | Program, wrt: Tensors = None, of: Tensors = None, *, dtypes: DTypes | None = None
) -> Program:
    """The gradient of outputs with respect to inputs, as a program.

    >>> print(grad("def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
    ...            wrt="A"))
    def f(float32 A[M,K], float32 B[K,N], float32 dC[M,N]) -> (float32 dA[M,K]) {
        dA[i, k] +=! dC[i, j] * B[k, j] where i in 0:M, k in 0:K, j in 0:N
    }

    The result is compiled, scheduled, verified, printed and differentiated like any other program.

    Parameters
    ----------
    program : a text, or what `parse` makes of it
    wrt : inputs; by default all floats on which the outputs depend.  The result has a tensor
        ``dA`` of the shape and type of each A, in this order
    of : outputs; by default all floats.  For each Y of them the result has an input ``dY`` of the
        same shape, the gradient of what comes after with respect to Y; for a scalar it is 1, and
        there is no such input
    dtypes : element types that the text leaves open, as for `parse`

    Raises
    ------
    GradientError : a tensor without a gradient, or a program that cannot be reversed.
    LanguageError : a mistake in the text.
    """
    from poly.gradients.reverse import gradient

    return _differentiated(gradient, program, wrt, of, dtypes, with_values=False)


def value_and_grad(
    program: str | Program, wrt: Tensors = None, of: Tensors = None, *, dtypes: DTypes | None = None
) -> Program:
    """`grad` with the program's own outputs first; both share what they compute."""
    from poly.gradients.reverse import gradient

    return _differentiated(gradient, program, wrt, of, dtypes, with_values=True)


def jvp(
    program: str | Program, wrt: Tensors = None, of: Tensors = None, *, dtypes: DTypes | None = None
) -> Program:
    """What outputs change by along a change of inputs, as a program.

    The result has an input ``dA`` for each A of `wrt`, and a tensor ``dY`` for each Y of `of`.
    Parameters and errors are those of `grad`.
    """
    from poly.gradients.forward import derivative

    return _differentiated(derivative, program, wrt, of, dtypes, with_values=False)


def _differentiated(
    how: Callable[[Program, Sequence[str], Sequence[str], bool], Program],
    program: str | Program, wrt: Tensors, of: Tensors, dtypes: DTypes | None, with_values: bool,
) -> Program:  # fmt: skip
    from poly.gradients.request import named

    source = parse(program, dtypes=dtypes) if isinstance(program, str) else program
    inputs, outputs = named(source, wrt, of)
    return how(source, inputs, outputs, with_values)
