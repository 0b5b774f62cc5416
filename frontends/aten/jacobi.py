"""Singular values and eigenvalues by Jacobi's rotations of pairs of columns.

One-sided: columns are rotated until all are orthogonal, which gives X V = U S (Hestenes, 1958).  In
each step the columns at i and n-1-i are rotated, all pairs at once; then all but the first move on
by one, so that n-1 steps are a sweep in which all pairs meet, and every index is affine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontends.aten.contract import matmul, transposed
from frontends.aten.emitter import Check, Emitter
from frontends.aten.factor import Lines, rows_and_columns, stacked, zeros
from frontends.aten.move import filled
from frontends.aten.pointwise import computed
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, is_empty

#: The most columns; beyond, LAPACK is much faster.
MOST = 32

#: How many sweeps are made.
SWEEPS = {"float32": 8, "float64": 11}


@dataclass(frozen=True)
class Singular:
    """The singular values S of a stack of m by n matrices X, not in order, m >= n.

    w : [b,i,r], column i of X V = U S; v : [b,i,r], column i of V; s : [b,i]
    """

    w: Ref
    v: Ref
    s: Ref


def singular(e: Emitter, x: Ref) -> Singular:
    """Rotate the columns of a stack of matrices, which are given as rows [b,i,r]."""
    count, n, m = x.shape
    dtype, even = x.dtype, n + n % 2
    steps = SWEEPS[dtype] * (even - 1)
    t = Lines(e, count)
    # Squares of what is at most 1 do not overflow.
    t.add("T[b] max=! abs(X[b,i,r])", i=n, r=m)
    t.add("D[b] = select(T[b] == 0, 1, T[b])")
    t.add("A[0,b,i,r] = X[b,i,r] / D[b]", i=n, r=m)
    t.add(f"A[0,b,i,{m} + r] = select(i == r, 1, 0)", i=n, r=n)
    if even > n:
        t.add(f"A[0,b,{n},r] = 0", r=m + n)
    t.block("k", steps)
    _step(t, even, m, m + n)
    t.end()
    last = f"A[{steps % 2},b"
    t.add(f"Y[b,i,r] = {last},i,r] * D[b]", i=n, r=m)
    t.add(f"Y1[b,i,r] = {last},i,{m} + r]", i=n, r=n)
    t.add(f"M[b,i] +=! {last},i,r] * {last},i,r]", i=n, r=m)
    t.add("Y2[b,i] = sqrt(M[b,i]) * D[b]", i=n)
    _remainder(t, last, n, m, dtype)
    kinds = [(dtype, x.shape), (dtype, (count, n, n)), (dtype, (count, n)), ("int32", ())]
    temps: list[tuple[str, str, Sequence[Extent]]] = [
        ("A", dtype, (2, count, even, m + n)),
        ("M", dtype, (count, n)), ("G", dtype, (count, n, n)),
        *((name, dtype, (count,)) for name in "TDLF"),
        *((name, dtype, (steps, count, even)) for name in "PQZHC"),
    ]  # fmt: skip
    w, v, sizes, wrong = e.program(kinds, t.found, {"X": x}, temps)
    e.checks.append(Check(wrong.name, None, "rotations that have not come to an end"))
    return Singular(w, v, sizes)


def _step(t: Lines, n: int, m: int, rows: int) -> None:
    """Rotate the pairs at i and n-1-i, by what is in the first m rows, and move on."""
    own, other = "A[k % 2,b,i,r]", f"A[k % 2,b,{n - 1} - i,r]"
    t.add(f"P[k,b,i] +=! {own} * {own}", i=n, r=m)
    t.add(f"Q[k,b,i] +=! {own} * {other}", i=n, r=m)
    # Both of a pair find the same angle, with opposite signs.
    t.add(f"Z[k,b,i] = (P[k,b,{n - 1} - i] - P[k,b,i]) / (2 * Q[k,b,i])", i=n)
    sign = f"select(Z[k,b,i] > 0 or (Z[k,b,i] == 0 and i < {n // 2}), 1, -1)"
    tangent = f"{sign} / (abs(Z[k,b,i]) + sqrt(1 + Z[k,b,i] * Z[k,b,i]))"
    t.add(f"H[k,b,i] = select(Q[k,b,i] == 0, 0, {tangent})", i=n)
    t.add("C[k,b,i] = 1 / sqrt(1 + H[k,b,i] * H[k,b,i])", i=n)

    def rotated(i: str, back: str) -> str:
        return f"C[k,b,{i}] * (A[k % 2,b,{i},r] - H[k,b,{i}] * A[k % 2,b,{back},r])"

    after = "A[(k + 1) % 2,b"
    t.add(f"{after},0,r] = {rotated('0', str(n - 1))}", r=rows)
    t.add(f"{after},1,r] = {rotated(str(n - 1), '0')}", r=rows)
    if n > 2:
        t.add(f"{after},i,r] = {rotated('i - 1', f'{n} - i')}", i=(2, n), r=rows)


def _remainder(t: Lines, last: str, n: int, m: int, dtype: str) -> None:
    """Whether columns are not orthogonal, beside the largest; also for NaN."""
    t.add("L[b] max=! M[b,i]", i=n)
    t.add(f"G[b,i,j] +=! {last},i,r] * {last},j,r]", i=n, j=n, r=m)
    size = "max(M[b,i] * L[b], 1e-30)"
    t.add(f"F[b] max=! select(i == j, 0, abs(G[b,i,j]) / sqrt({size}))", i=n, j=n)
    bound = 16 * max(m, 4) * float(np.finfo(dtype).eps)
    t.add(f"Y3[] max=! select(F[b] <= {bound!r}, 0, 1)")


def _columns(x: Ref) -> None:
    """Refuse what is large or of another type.  Raises `Unsupported`."""
    m, n = rows_and_columns(x)
    if x.dtype not in SWEEPS:
        raise Unsupported(f"singular values of {x.dtype}")
    if min(m, n) > MOST:
        raise Unsupported(f"singular values of over {MOST} columns, for which LAPACK is faster")


# --- in order -------------------------------------------------------------------------------------


def _order(e: Emitter, s: Ref, symbol: str) -> Ref:
    """Where the elements of rows are found in order, the largest first for >."""
    count, n = s.shape
    t = Lines(e, count)
    before = f"X[b,j] {symbol} X[b,i] or (X[b,j] == X[b,i] and j < i)"
    t.add(f"K[b,i] +=! select({before}, 1, 0)", i=n, j=n)
    t.add("Y[b,k] +=! select(K[b,i] == k, int32(i), 0)", k=n, i=n)
    kind = ("int32", (count, n))
    return e.program([kind], t.found, {"X": s}, [("K", *kind)])[0]


def _ordered(e: Emitter, x: Ref, order: Ref) -> Ref:
    """Rows in an order, or elements of rows."""
    rest = "" if x.rank == 2 else ",i2"
    return e.each(x.dtype, x.shape, f"X[i0,R[i0,i1]{rest}]", {"X": x, "R": order})


@lowering("_linalg_svd.default")
def svd(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """U, S, V^T with X = U S V^T; signs of columns are others than LAPACK's."""
    x: Ref = a["A"]
    _columns(x)
    m, n = x.shape[-2:]
    vectors = bool(a.get("compute_uv", True))
    if vectors and a.get("full_matrices") and m != n:
        raise Unsupported("more singular vectors than values")
    if is_empty(x.shape):
        return zeros(e, outs)
    wide = m < n
    found = singular(e, stacked(e, x if wide else transposed(e, x)))
    order = _order(e, found.s, ">")
    values = e.reshape(_ordered(e, found.s, order), outs[1].shape)
    if not vectors:
        return [filled(e, outs[0], 0), values, filled(e, outs[2], 0)]
    _full_rank(e, found.s, max(m, n))
    left = e.each(x.dtype, found.w.shape, "W[i0,i1,i2] / S[i0,i1]", {"W": found.w, "S": found.s})
    left, right = _ordered(e, left, order), _ordered(e, found.v, order)
    if wide:
        left, right = right, left
    u, v = e.reshape(transposed(e, left), outs[0].shape), e.reshape(right, outs[2].shape)
    return [u, values, v]


def _full_rank(e: Emitter, s: Ref, size: int) -> None:
    """Leave matrices to torch whose singular vectors are not all given by columns."""
    count, n = s.shape
    t = Lines(e, count)
    t.add("T[b] max=! X[b,i]", i=n)
    small = f"X[b,i] <= T[b] * {size * float(np.finfo(s.dtype).eps)!r}"
    t.add(f"Y[] max=! select({small}, 1, 0)", i=n)
    (wrong,) = e.program([("int32", ())], t.found, {"X": s}, [("T", s.dtype, (count,))])
    e.checks.append(Check(wrong.name, None, "a matrix of lower rank"))


# --- symmetric ------------------------------------------------------------------------------------


def _symmetric(e: Emitter, x: Ref, lower: bool) -> tuple[Ref, Ref]:
    """Eigenvalues and vectors, as rows, of a stack of triangles, not in order.

    A shift by a bound of the eigenvalues makes all positive: then they are singular values.
    """
    count, n, _ = x.shape
    t = Lines(e, count)
    high, low = ("max(i, j)", "min(i, j)") if lower else ("min(i, j)", "max(i, j)")
    t.add(f"A[b,i,j] = X[b,{high},{low}]", i=n, j=n)
    t.add("R[b,i] +=! abs(A[b,i,j])", i=n, j=n)
    t.add("Y1[b] max=! R[b,i]", i=n)
    t.add("Y[b,i,j] = A[b,i,j] + select(i == j, Y1[b], 0)", i=n, j=n)
    temps = [("A", x.dtype, x.shape), ("R", x.dtype, (count, n))]
    kinds = [(x.dtype, x.shape), (x.dtype, (count,))]
    moved, shift = e.program(kinds, t.found, {"X": x}, temps)
    found = singular(e, moved)
    given = {"S": found.s, "C": shift}
    return e.each(x.dtype, (count, n), "S[i0,i1] - C[i0]", given), found.v


@lowering("_linalg_eigh.default")
def eigh(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """Eigenvalues and vectors; signs of vectors are others than LAPACK's."""
    x: Ref = a["A"]
    _columns(x)
    if is_empty(x.shape):
        return zeros(e, outs)
    values, vectors = _symmetric(e, stacked(e, x), str(a.get("UPLO", "L")).upper() == "L")
    order = _order(e, values, "<")
    found = e.reshape(_ordered(e, values, order), outs[0].shape)
    if not a.get("compute_v", True):
        return [found, filled(e, outs[1], 0)]
    rows = _ordered(e, vectors, order)
    return [found, e.reshape(transposed(e, rows), outs[1].shape)]


# --- pseudo-inverses ------------------------------------------------------------------------------


@lowering("linalg_pinv.atol_rtol_tensor")
def pseudo_inverse(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """V S^-1 U^T of the singular values over a bound."""
    x: Ref = a["self"]
    _columns(x)
    if is_empty(x.shape):
        return filled(e, outs[0], 0)
    m, n = x.shape[-2:]
    given, wide = stacked(e, x), m < n
    if a.get("hermitian"):
        values, rows = _symmetric(e, given, lower=True)
        inverse = "{w} / {s}"
        left = rows
    else:
        found = singular(e, given if wide else transposed(e, given))
        values, rows, left = found.s, found.v, found.w
        inverse = "{w} / {s} / {s}"
    bound = _bound(e, a, values, x, max(m, n))
    places = {"w": left, "s": _column(e, values), "t": e.reshape(bound, (given.shape[0], 1, 1))}
    kept = computed(e, f"select(abs({{s}}) > {{t}}, {inverse}, 0)", places, left)
    shape = (given.shape[0], rows.shape[2], kept.shape[2])
    product = matmul(e, transposed(e, rows), kept, shape)
    turned = wide and not a.get("hermitian")
    return e.reshape(transposed(e, product) if turned else product, outs[0].shape)


def _column(e: Emitter, x: Ref) -> Ref:
    return e.reshape(x, (*x.shape, 1))


def _bound(e: Emitter, a: Arguments, values: Ref, x: Ref, size: int) -> Ref:
    """max(atol, rtol * the largest value), for each matrix."""
    count, n = values.shape
    line = e.line("Y[b] max=! abs(X[b,i])", ["b", "i"], (count, n))
    (top,) = e.program([(values.dtype, (count,))], [line], {"X": values}, more=[count])
    shaped = Ref("", values.dtype, x.shape[:-2])
    given = {"top": e.reshape(top, shaped.shape)}
    given |= {name: a[name] for name in ("atol", "rtol") if a.get(name) is not None}
    least = "{atol}" if "atol" in given else "0"
    # By default what rounding leaves, unless another bound is given.
    part = repr(size * float(np.finfo(values.dtype).eps))
    if "rtol" in given:
        part = "{rtol}"
    elif "atol" in given:
        part = f"select({{atol}} > 0, 0, {part})"
    return computed(e, f"max({least}, {part} * {{top}})", given, shaped)
