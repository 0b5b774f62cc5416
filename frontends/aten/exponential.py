"""The exponential of matrices: a Taylor polynomial of a fraction, and squares of it."""

from __future__ import annotations

import math

from frontends.aten.contract import matmul
from frontends.aten.emitter import Check, Emitter
from frontends.aten.factor import Lines, identity, stacked
from frontends.aten.move import filled
from frontends.aten.pointwise import computed
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Ref, Unsupported, is_empty

#: The degree of the polynomial, and up to which norm its remainder is below the rounding error.
#: torch has the same, and so as many squares.
DEGREE, NORM = 18, 1.090863719290036

#: The most squares; what is larger than that is left to torch.
SQUARES = 10


@lowering("linalg_matrix_exp.default")
def matrix_exp(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """exp(X) = exp(X / 2^s)^(2^s), with s by the norm of each matrix."""
    x: Ref = a["self"]
    if x.dtype != "float64":  # of small elements beside large ones, nothing is left to agree on
        raise Unsupported("an exponential in float32, whose squares double rounding errors")
    if not all(isinstance(s, int) for s in x.shape[-2:]):
        raise Unsupported("a matrix of open size")
    if is_empty(x.shape):
        return filled(e, outs[0], 0)
    given = stacked(e, x)
    scaled, halvings = _scaled(e, given)
    found = _polynomial(e, scaled)
    for n in range(SQUARES):
        square = matmul(e, found, found, found.shape)
        operands = {"s": halvings, "x": found, "y": square}
        found = computed(e, f"select({{s}} > {n}, {{y}}, {{x}})", operands, found)
    return e.reshape(found, outs[0].shape)


def _scaled(e: Emitter, x: Ref) -> tuple[Ref, Ref]:
    """Matrices over powers of two, so that their norms are small, and the exponents."""
    count, n, _ = x.shape
    t = Lines(e, count)
    t.add("C[b,j] +=! abs(X[b,i,j])", i=n, j=n)
    t.add("N[b] max=! C[b,j]", j=n)
    bounds = [NORM * 2**k for k in range(SQUARES + 1)]
    powers = ["1"] + [f"select(N[b] > {bounds[k]!r}, {2 ** (k + 1)}, 1)" for k in range(SQUARES)]
    counted = " + ".join(f"select(N[b] > {bound!r}, 1, 0)" for bound in bounds[:-1])
    t.add(f"Y1[b,0,0] = {counted}")
    t.add(f"P[b] = max({', '.join(powers)})")
    t.add("Y[b,i,j] = X[b,i,j] / P[b]", i=n, j=n)
    t.add(f"Y2[] max=! select(N[b] <= {bounds[-1]!r}, 0, 1)")
    kinds = [(x.dtype, x.shape), ("int32", (count, 1, 1)), ("int32", ())]
    temps = [("C", x.dtype, (count, n)), ("N", x.dtype, (count,)), ("P", x.dtype, (count,))]
    scaled, halvings, wrong = e.program(kinds, t.found, {"X": x}, temps)
    e.checks.append(Check(wrong.name, None, "an exponential of large numbers"))
    return scaled, halvings


def _polynomial(e: Emitter, x: Ref) -> Ref:
    """The Taylor polynomial, in powers of X^4 whose coefficients are polynomials of degree 3."""

    def product(a: Ref, b: Ref) -> Ref:
        return matmul(e, a, b, x.shape)

    second = product(x, x)
    powers = {"a": x, "b": second, "c": product(second, x)}
    fourth = product(second, second)
    one = identity(e, x)

    def coefficient(first: int, more: dict[str, Ref]) -> Ref:
        terms = [
            f"{{{name}}} * {1 / math.factorial(first + k)!r}"
            for k, name in enumerate("iabc")
            if first + k <= DEGREE
        ]
        text = " + ".join([*reversed(terms), *(f"{{{name}}}" for name in more)])
        return computed(e, text, {"i": one, **powers, **more}, x)

    top = DEGREE - DEGREE % 4
    found = coefficient(top, {})
    for first in range(top - 4, -1, -4):
        found = coefficient(first, {"more": product(fourth, found)})
    return found
