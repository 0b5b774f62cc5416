"""Orthogonal factors of matrices, as products of reflections.

Reflections H_k = I - tau_k v_k v_k^T have the product I - V T V^T with a triangle T (Schreiber and
Van Loan, 1989), so that a column is reflected by all before it at once.  Signs are LAPACK's.
"""

from __future__ import annotations

from frontends.aten.contract import matmul, transposed
from frontends.aten.emitter import Emitter
from frontends.aten.factor import (
    Bounds,
    Lines,
    count_of_columns,
    expanded,
    rows_and_columns,
    stacked,
    zeros,
)
from frontends.aten.pointwise import computed
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Ref, is_empty


def _next_of_triangle(t: Lines, rows: int) -> None:
    """Column k of T: tau_k below -tau_k T V^T v_k."""
    t.add("Z[b,k,p] +=! V[b,p,i] * V[b,k,i]", i=rows, p=(0, "k"))
    t.add("Q[b,k,p] +=! T[b,p,q] * Z[b,k,q]", "q >= p", p=(0, "k"), q=(0, "k"))
    t.add("T[b,p,k] = -U[b,k] * Q[b,k,p]", p=(0, "k"))
    t.add("T[b,k,k] = U[b,k]")


def _reflected(t: Lines, rows: int, before: str | int, j: str, **ranges: Bounds) -> None:
    """W = X - V T^T V^T X in column j, of the reflections before a number."""
    t.add(f"G[b,{j},p] +=! V[b,p,i] * X[b,{j},i]", i=rows, p=(0, before), **ranges)
    t.add(f"H[b,{j},q] +=! T[b,p,q] * G[b,{j},p]", "p <= q", p=(0, before), q=(0, before), **ranges)
    t.add(f"A[b,{j},i] +=! V[b,q,i] * H[b,{j},q]", i=rows, q=(0, before), **ranges)
    t.add(f"W[b,{j},i] = X[b,{j},i] - A[b,{j},i]", i=rows, **ranges)


def _next_reflection(t: Lines, rows: int) -> None:
    """v_k, tau_k and the diagonal element E_k of what is below the diagonal of column k."""
    # B is for norms without overflow.
    t.add("B[b,k] max=! abs(W[b,k,i])", i=("k", rows))
    part = "(W[b,k,i] / select(B[b,k] == 0, 1, B[b,k]))"
    t.add(f"N[b,k] +=! {part} * {part}", i=("k", rows))
    t.add("D[b,k] = B[b,k] * sqrt(N[b,k]) * select(W[b,k,k] < 0, 1, -1)")
    # Where there are zeros below the diagonal, nothing is reflected.
    t.add("C[b,k] = 0")
    t.add("C[b,k] max= abs(W[b,k,i])", i=("k + 1", rows))
    t.add("E[b,k] = select(C[b,k] == 0, W[b,k,k], D[b,k])")
    t.add("U[b,k] = select(C[b,k] == 0, 0, (E[b,k] - W[b,k,k]) / E[b,k])")
    t.add("V[b,k,i] = 0", i=(0, "k"))
    t.add("V[b,k,k] = 1")
    scale = "select(C[b,k] == 0, 1, W[b,k,k] - E[b,k])"
    t.add(f"V[b,k,i] = W[b,k,i] / {scale}", i=("k + 1", rows))


@lowering("geqrf.default")
def householder(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """R, below it the reflections, and their tau."""
    x = a["self"]
    m, n = rows_and_columns(x)
    if is_empty(x.shape):
        return zeros(e, outs)
    given = stacked(e, transposed(e, x))
    least, count, dtype = min(m, n), given.shape[0], x.dtype
    t = Lines(e, count)
    t.block("k", least)
    _reflected(t, m, "k", "k")
    _next_reflection(t, m)
    _next_of_triangle(t, m)
    t.end()
    if n > least:
        _reflected(t, m, least, "c", c=(least, n))
    t.add("Y[b,i,j] = W[b,j,i]", "i < j", i=m, j=n)
    t.add("Y[b,k,k] = E[b,k]", k=least)
    t.add("Y[b,i,j] = V[b,j,i]", "i > j", i=m, j=least)
    t.add("Y1[b,k] = U[b,k]", k=least)
    squares = [(name, dtype, (count, least, least)) for name in "ZQT"]
    wide = [(name, dtype, (count, n, least)) for name in "GH"]
    tall = [(name, dtype, (count, n, m)) for name in "AW"]
    rows = [(name, dtype, (count, least)) for name in "BNDCEU"]
    temps = [*squares, *wide, *tall, *rows, ("V", dtype, (count, least, m))]
    found = e.program(
        [(dtype, (count, m, n)), (dtype, (count, least))], t.found, {"X": given}, temps
    )
    return [e.reshape(f, out.shape) for f, out in zip(found, outs, strict=True)]


@lowering("ormqr.default")
def times_reflections(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """Q Y or Y Q, or with the transposed Q, a product of reflections."""
    x, tau, y, out = a["self"], a["input2"], a["input3"], outs[0]
    rows_and_columns(x)
    count_of_columns(y)
    if is_empty(y.shape) or is_empty(x.shape):
        return computed(e, "{y}", {"y": y}, out)
    lead = out.shape[:-2]
    packed, right = expanded(e, x, lead), expanded(e, y, lead)
    wide = Ref("", tau.dtype, (*lead, tau.shape[-1]))
    factors = stacked(e, computed(e, "{t}", {"t": tau}, wide), 1)
    v, triangle = _blocked(e, packed, factors)
    if a.get("transpose"):
        triangle = transposed(e, triangle)
    return e.reshape(_less(e, v, triangle, right, bool(a.get("left", True))), out.shape)


def _blocked(e: Emitter, packed: Ref, tau: Ref) -> tuple[Ref, Ref]:
    """V and T of what `householder` packs."""
    count, m, _ = packed.shape
    k = tau.shape[1]
    t = Lines(e, count)
    t.add("V[b,j,i] = select(i > j, X[b,i,j], select(i == j, 1, 0))", i=m, j=k)
    t.add("T[b,i,j] = 0", i=k, j=k)
    t.block("k", k)
    _next_of_triangle(t, m)
    t.end()
    t.add("Y[b,i,j] = V[b,j,i]", i=m, j=k)
    t.add("Y1[b,i,j] = T[b,i,j]", i=k, j=k)
    kinds = [(tau.dtype, (count, m, k)), (tau.dtype, (count, k, k))]
    temps = [("Z", *kinds[1]), ("Q", *kinds[1]), ("V", tau.dtype, (count, k, m)), ("T", *kinds[1])]
    v, triangle = e.program(kinds, t.found, {"X": packed, "U": tau}, temps)
    return v, triangle


def _less(e: Emitter, v: Ref, triangle: Ref, y: Ref, left: bool) -> Ref:
    """Y - V T V^T Y, or Y - Y V T V^T."""
    count, m, k = v.shape
    if left:
        inner = matmul(e, transposed(e, v), y, (count, k, y.shape[2]))
        part = matmul(e, matmul(e, v, triangle, (count, m, k)), inner, y.shape)
    else:
        inner = matmul(e, y, v, (count, y.shape[1], k))
        outer = matmul(e, triangle, transposed(e, v), (count, k, m))
        part = matmul(e, inner, outer, y.shape)
    return computed(e, "{y} - {part}", {"y": y, "part": part}, y)
