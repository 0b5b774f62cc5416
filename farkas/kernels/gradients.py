"""`grad`, `value_and_grad` and `jvp`: from programs to programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from farkas.kernels.source_text import DTypes, parse
from poly.errors import GradientError
from poly.ir.program import Program

#: Names of tensors: one, several, or all that there are.
Tensors = str | Sequence[str] | None
#: Tensors of blocks whose states are computed again, perhaps with the steps of a segment.
Recomputed = str | Sequence[str] | Mapping[str, int | None]


def grad(
    program: str | Program, wrt: Tensors = None, of: Tensors = None, *,
    dtypes: DTypes | None = None, recompute: Recomputed = (),
) -> Program:  # fmt: skip
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
    recompute : tensors of ``for`` blocks whose states are not kept for the gradient, but those of
        every K-th step only; the steps between are computed again, segment by segment.  A mapping
        says K for each; by default it is about the root of the number of steps, or 32 if that is
        not known.  Memory goes down from T states to T/K + K, and one more forward pass is made

    Raises
    ------
    GradientError : a tensor without a gradient, a program that cannot be reversed, or states that
        cannot be computed again.
    ArgumentError : neither a text nor a program.
    LanguageError : a mistake in the text.
    """
    from poly.gradients.reverse import gradient

    how = partial(gradient, recompute=segments_asked(recompute))
    return _differentiated(how, program, wrt, of, dtypes, with_values=False)


def value_and_grad(
    program: str | Program, wrt: Tensors = None, of: Tensors = None, *,
    dtypes: DTypes | None = None, recompute: Recomputed = (),
) -> Program:  # fmt: skip
    """`grad` with the program's own outputs first; both share what they compute."""
    from poly.gradients.reverse import gradient

    how = partial(gradient, recompute=segments_asked(recompute))
    return _differentiated(how, program, wrt, of, dtypes, with_values=True)


def jvp(
    program: str | Program, wrt: Tensors = None, of: Tensors = None, *, dtypes: DTypes | None = None
) -> Program:
    """What outputs change by along a change of inputs, as a program.

    The result has an input ``dA`` for each A of `wrt`, and a tensor ``dY`` for each Y of `of`.
    Parameters and errors are those of `grad`; nothing is kept.
    """
    from poly.gradients.forward import derivative

    return _differentiated(derivative, program, wrt, of, dtypes, with_values=False)


def _differentiated(
    how: Callable[[Program, Sequence[str], Sequence[str], bool], Program],
    program: str | Program, wrt: Tensors, of: Tensors, dtypes: DTypes | None, with_values: bool,
) -> Program:  # fmt: skip
    from poly.gradients.request import named

    source = program if isinstance(program, Program) else parse(program, dtypes=dtypes)
    inputs, outputs = named(source, wrt, of)
    return how(source, inputs, outputs, with_values)


def segments_asked(recompute: Recomputed) -> dict[str, int | None]:
    """The tensors to compute again, with the steps of their segments.

    Raises
    ------
    GradientError : steps that are no positive number.
    """
    if isinstance(recompute, str):
        return {recompute: None}
    if not isinstance(recompute, Mapping):
        return dict.fromkeys(recompute)
    for name, steps in recompute.items():
        is_number = isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1
        if steps is not None and not is_number:
            raise GradientError(f"recompute: {steps!r} steps for {name}, expected 1 or more")
    return dict(recompute)
