"""Factors of matrices and systems with them: Cholesky, LU, triangular systems.

Each is one program whose block goes through the columns.  A column is computed from those before
it, so that no step rewrites the matrix, and rows are exchanged in an index, not in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module

from frontends.aten.contract import transposed
from frontends.aten.emitter import Check, Emitter
from frontends.aten.move import filled
from frontends.aten.pointwise import computed
from frontends.aten.registry import Arguments, lowering
from frontends.aten.values import Extent, Ref, Unsupported, is_empty

#: The most rows and columns; beyond, LAPACK's blocks are three to ten times as fast.
MOST = 128


def rows_and_columns(x: Ref) -> tuple[int, int]:
    """The extents of matrices.  Raises `Unsupported` for large and open ones."""
    rows, columns = x.shape[-2:]
    if not x.is_float:
        raise Unsupported(f"a factorisation of {x.dtype}")
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise Unsupported("a matrix of open size")
    if max(rows, columns) > MOST:
        raise Unsupported(f"a matrix over {MOST} by {MOST}, for which LAPACK is faster")
    return rows, columns


def stacked(e: Emitter, x: Ref, rank: int = 2) -> Ref:
    """All dimensions before the last `rank` joined."""
    lead = x.shape[: x.rank - rank]
    return e.reshape(x, (math.prod(lead), *x.shape[x.rank - rank :]))


def expanded(e: Emitter, x: Ref, lead: Sequence[Extent]) -> Ref:
    """Matrices repeated over these dimensions before the last two, which are then joined."""
    shape = (*lead, *x.shape[-2:])
    whole = x if x.shape == shape else computed(e, "{x}", {"x": x}, Ref("", x.dtype, shape))
    return stacked(e, whole)


def zeros(e: Emitter, outs: Sequence[Ref]) -> list[Ref | None]:
    """Results without elements, or of nothing."""
    return [filled(e, out, 0) for out in outs]


def identity(e: Emitter, x: Ref) -> Ref:
    """A stack of identity matrices, as large as another."""
    return e.each(x.dtype, x.shape, "select(i1 == i2, 1, 0)", {})


#: A range of an index: how many, or from where to where.
Bounds = int | tuple[int | str, int | str]


class Lines:
    """The statements of a program on `batches` matrices, whose index is b."""

    def __init__(self, e: Emitter, batches: Extent) -> None:
        self.batches = e.extent(batches)
        self.found: list[str] = []

    def add(self, assignment: str, *guards: str, **ranges: Bounds) -> None:
        """A statement for all b and the indices in `ranges`."""
        sides = {"b": self.batches, **ranges}
        where = [
            f"{name} in {f'{b[0]}:{b[1]}' if isinstance(b, tuple) else f'0:{b}'}"
            for name, b in sides.items()
        ]
        self.found.append(f"{assignment} where {', '.join([*where, *guards])}")

    def block(self, index: str, count: int) -> None:
        """What follows is repeated for an index until `end`."""
        self.found.append(f"for {index} in 0:{count} {{")

    def end(self) -> None:
        """The end of a block."""
        self.found.append("}")


# --- Cholesky -------------------------------------------------------------------------------------


@lowering("linalg_cholesky_ex.default")
def cholesky(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """A = L L^T, and the first column, from 1, whose root is of nothing positive, or 0."""
    x = a["self"]
    n, _ = rows_and_columns(x)
    if a.get("check_errors"):
        raise Unsupported("check_errors=True")
    if is_empty(x.shape):
        return zeros(e, outs)
    upper = bool(a.get("upper"))
    given = stacked(e, transposed(e, x) if upper else x)
    t = Lines(e, given.shape[0])
    t.add("Y[b,i,j] = 0", i=n, j=n)
    t.block("k", n)
    t.add("S[b,i,k] +=! Y[b,i,p] * Y[b,k,p]", i=("k", n), p=(0, "k"))
    t.add("D[b,k] = X[b,k,k] - S[b,k,k]")
    t.add("Y[b,k,k] = sqrt(D[b,k])")
    t.add("Y[b,i,k] = (X[b,i,k] - S[b,i,k]) / Y[b,k,k]", i=("k + 1", n))
    t.end()
    t.add(f"F[b] min=! select(D[b,k] > 0, int32({n}), int32(k))", k=n)
    t.add(f"Y1[b] = select(F[b] == {n}, 0, F[b] + 1)")
    count = given.shape[0]
    factor, info = e.program(
        [(x.dtype, given.shape), ("int32", (count,))], t.found, {"X": given},
        [("S", x.dtype, given.shape), ("D", x.dtype, (count, n)), ("F", "int32", (count,))],
    )  # fmt: skip
    factor = e.reshape(factor, x.shape)
    return [transposed(e, factor) if upper else factor, e.reshape(info, outs[1].shape)]


@lowering("cholesky.default")
def checked_cholesky(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """L with A = L L^T; an error if there is none."""
    x = a["self"]
    info = Ref("", "int32", x.shape[:-2])
    factor, failed = cholesky(e, a, [outs[0], info])
    assert factor is not None and failed is not None
    _fail(
        e, failed, x.shape[-1],
        "cholesky: {where}The factorization could not be completed because the input is not"
        " positive-definite (the leading minor of order {order} is not positive-definite).",
    )  # fmt: skip
    return factor


@lowering("cholesky_inverse.default")
def cholesky_inverse(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """The inverse of L L^T; an error if L is singular."""
    x = a["self"]
    n, _ = rows_and_columns(x)
    if is_empty(x.shape):
        return filled(e, outs[0], 0)
    given = stacked(e, transposed(e, x) if a.get("upper") else x)
    t = Lines(e, given.shape[0])
    t.add(f"F[b] min=! select(X[b,k,k] == 0, int32(k), int32({n}))", k=n)
    t.add(f"Y[b] = select(F[b] == {n}, 0, F[b] + 1)")
    flags = ("int32", given.shape[:1])
    (singular,) = e.program([flags], t.found, {"X": given}, [("F", *flags)])
    _fail(
        e, singular, n,
        "cholesky_inverse: {where}The diagonal element {order} is zero, the inversion could not be"
        " completed because the input matrix is singular.", x.rank == 2,
    )  # fmt: skip
    one = identity(e, given)
    half = triangular(e, given, one, upper=False)
    return e.reshape(triangular(e, transposed(e, given), half, upper=True), x.shape)


def _fail(e: Emitter, info: Ref, size: int, message: str, single: bool | None = None) -> None:
    """Let the call fail for the first info that is not 0."""
    if is_empty(info.shape):
        return
    alone = not info.rank if single is None else single
    flat, step, last = e.reshape(info, (math.prod(info.shape),)), size + 1, (1 << 31) - 1
    rows = e.line(
        f"F[] min=! select(X[i] != 0, int32(i)*{step} + X[i], int32({last}))", ["i"], flat.shape
    )
    one = f"Y[] = select(F[] == {last}, 0, F[])"
    (found,) = e.program([("int32", ())], [rows, one], {"X": flat}, [("F", "int32", ())])

    def explained(value: int) -> str:
        place, order = divmod(value, step)
        return message.format(where="" if alone else f"(Batch element {place}): ", order=order)

    e.checks.append(Check(found.name, import_module("torch").linalg.LinAlgError, explained))


# --- triangular systems ---------------------------------------------------------------------------


def triangular(
    e: Emitter, x: Ref, y: Ref, upper: bool, left: bool = True, unit: bool = False
) -> Ref:
    """The Z with X Z = Y, or Z X = Y, for stacks of triangles and of right sides."""
    n = x.shape[1]
    others = y.shape[2 if left else 1]

    def row(index: str) -> str:
        """The unknown that is found in step `index`: the last first if others depend on it."""
        return f"{n - 1} - {index}" if upper == left else index

    def factor(k: str, p: str) -> str:
        return f"X[b,{row(k)},{row(p)}]" if left else f"X[b,{row(p)},{row(k)}]"

    def place(name: str, k: str) -> str:
        return f"{name}[b,{row(k)},c]" if left else f"{name}[b,c,{row(k)}]"

    t = Lines(e, x.shape[0])
    t.block("k", n)
    t.add(f"S[b,k,c] +=! {factor('k', 'p')} * {place('Y', 'p')}", c=others, p=(0, "k"))
    rest = f"{place('R', 'k')} - S[b,k,c]"
    found = rest if unit else f"({rest}) / {factor('k', 'k')}"
    t.add(f"{place('Y', 'k')} = {found}", c=others)
    t.end()
    temps = [("S", x.dtype, (x.shape[0], n, others))]
    return e.program([(x.dtype, y.shape)], t.found, {"X": x, "R": y}, temps)[0]


def count_of_columns(y: Ref) -> None:
    """Refuse an open number of right sides.  Raises `Unsupported`."""
    if not all(isinstance(s, int) for s in y.shape[-2:]):
        raise Unsupported("a matrix of open size")


@lowering("linalg_solve_triangular.default")
def solve_triangular(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """X with A X = B, or X A = B, of which one triangle of A is read."""
    x, y, out = a["self"], a["B"], outs[0]
    rows_and_columns(x)
    count_of_columns(y)
    if is_empty(out.shape):
        return filled(e, out, 0)
    lead = out.shape[:-2]
    upper, left, unit = bool(a["upper"]), bool(a.get("left", True)), bool(a.get("unitriangular"))
    found = triangular(e, expanded(e, x, lead), expanded(e, y, lead), upper, left, unit)
    return e.reshape(found, out.shape)


# --- LU -------------------------------------------------------------------------------------------


@lowering("linalg_lu_factor_ex.default")
def lu_factor(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """P A = L U with rows exchanged for the largest pivot, as LAPACK's; L and U in one matrix.

    The rows of F are the columns of L, and those of C the columns before their division, in the
    order of A's rows; M[b,k,i] is the row of A that stands at i before step k.
    """
    x = a["A"]
    m, n = rows_and_columns(x)
    if a.get("check_errors") or not a.get("pivot", True):
        raise Unsupported("check_errors=True, or no pivots")
    if is_empty(x.shape):
        return zeros(e, outs)
    given = stacked(e, x)
    least, count, dtype = min(m, n), given.shape[0], x.dtype
    t = Lines(e, count)
    # Indices that are elements may, for all that is known, read everything.
    t.add("M[b,k,i] = int32(i)", k=least + 1, i=m)
    t.add("C[b,k,i] = 0", i=m, k=least)
    t.add("F[b,k,i] = 0", i=m, k=least)
    t.block("k", least)
    t.add("S[b,k,i] +=! F[b,p,i] * U[b,p,k]", i=m, p=(0, "k"))
    t.add("C[b,k,i] = X[b,i,k] - S[b,k,i]", i=m)
    candidate = "abs(C[b,k,M[b,k,i]])"
    t.add(f"T[b,k] max=! {candidate}", i=("k", m))
    t.add(f"V[b,k] min=! select({candidate} == T[b,k], int32(i), int32({m - 1}))", i=("k", m))
    exchanged = "select(i == V[b,k], M[b,k,k], M[b,k,i])"
    t.add(f"M[b,k+1,i] = select(i == k, M[b,k,V[b,k]], {exchanged})", i=m)
    t.add("R[b,k,j] +=! F[b,p,M[b,k+1,k]] * U[b,p,j]", j=("k", n), p=(0, "k"))
    t.add("U[b,k,j] = X[b,M[b,k+1,k],j] - R[b,k,j]", j=("k", n))
    t.add("F[b,k,i] = select(U[b,k,k] == 0, C[b,k,i], C[b,k,i] / U[b,k,k])", i=m)
    t.end()
    t.add("Y[b,i,j] = U[b,i,j]", i=least, j=("i", n))
    t.add(f"Y[b,i,j] = F[b,j,M[b,{least},i]]", "j < i", i=m, j=least)
    t.add("Y1[b,k] = V[b,k] + 1", k=least)
    t.add(f"W[b] min=! select(U[b,k,k] == 0, int32(k), int32({least}))", k=least)
    t.add(f"Y2[b] = select(W[b] == {least}, 0, W[b] + 1)")
    temps: list[tuple[str, str, Sequence[Extent]]] = [
        ("M", "int32", (count, least + 1, m)), ("S", dtype, (count, least, m)),
        ("C", dtype, (count, least, m)), ("F", dtype, (count, least, m)),
        ("T", dtype, (count, least)), ("V", "int32", (count, least)),
        ("R", dtype, (count, least, n)), ("U", dtype, (count, least, n)), ("W", "int32", (count,)),
    ]  # fmt: skip
    kinds = [(dtype, given.shape), ("int32", (count, least)), ("int32", (count,))]
    found = e.program(kinds, t.found, {"X": given}, temps)
    return [e.reshape(f, out.shape) for f, out in zip(found, outs, strict=True)]


def exchanged_rows(e: Emitter, pivots: Ref, rows: int, back: bool = False) -> Ref:
    """The rows, from 0, that stand one below the other after exchanges; or after those undone.

    pivots : a stack of vectors of rows, from 1, with which the first ones are exchanged in order
    """
    count, steps = pivots.shape
    step = f"{steps - 1} - k" if back else "k"
    t = Lines(e, count)
    t.add("M[b,k,i] = int32(i)", k=steps + 1, i=rows)
    t.block("k", steps)
    t.add(f"V[b,k] = int32(P[b,{step}]) - 1")
    first = f"select(i == V[b,k], M[b,k,{step}], M[b,k,i])"
    t.add(f"M[b,k+1,i] = select(i == {step}, M[b,k,V[b,k]], {first})", i=rows)
    t.end()
    t.add(f"Y[b,i] = M[b,{steps},i]", i=rows)
    temps = [("M", "int32", (count, steps + 1, rows)), ("V", "int32", (count, steps))]
    return e.program([("int32", (count, rows))], t.found, {"P": pivots}, temps)[0]


@lowering("lu_unpack.default")
def lu_unpack(e: Emitter, a: Arguments, outs: list[Ref]) -> list[Ref | None]:
    """P, L and U of what `lu_factor` packs."""
    x, pivots = a["LU_data"], a["LU_pivots"]
    m, n = rows_and_columns(x)
    p, lower, upper = outs
    found: list[Ref | None] = zeros(e, outs)
    if is_empty(x.shape):
        return found
    if a.get("unpack_pivots", True):
        order = exchanged_rows(e, stacked(e, pivots, 1), m)
        found[0] = _of_rows(e, p, "select(R[i0,i2] == i1, 1, 0)", {"R": order}, m, m)
    if a.get("unpack_data", True):
        least, parts = min(m, n), {"X": stacked(e, x)}
        below = "select(i1 > i2, X[i0,i1,i2], select(i1 == i2, 1, 0))"
        found[1] = _of_rows(e, lower, below, parts, m, least)
        found[2] = _of_rows(e, upper, "select(i1 <= i2, X[i0,i1,i2], 0)", parts, least, n)
    return found


def _of_rows(e: Emitter, out: Ref, value: str, given: dict[str, Ref], m: int, n: int) -> Ref:
    """Matrices of m rows and n columns by a formula over their indices i0, i1, i2."""
    count = next(iter(given.values())).shape[0]
    return e.reshape(e.each(out.dtype, (count, m, n), value, given), out.shape)


@lowering("linalg_lu_solve.default")
def lu_solve(e: Emitter, a: Arguments, outs: list[Ref]) -> Ref:
    """X with A X = B, of the LU factors of A; or with X A = B, or the transposed A."""
    x, pivots, y, out = a["LU"], a["pivots"], a["B"], outs[0]
    left, adjoint = bool(a.get("left", True)), bool(a.get("adjoint"))
    n, _ = rows_and_columns(x)
    count_of_columns(y)
    if is_empty(out.shape):
        return filled(e, out, 0)
    lead = out.shape[:-2]
    factors, right = expanded(e, x, lead), expanded(e, y, lead)
    wide = Ref("", pivots.dtype, (*lead, n))
    swaps = stacked(e, computed(e, "{p}", {"p": pivots}, wide), 1)
    if adjoint:
        right = transposed(e, right)
    found = _solved(e, factors, swaps, right, left != adjoint)
    return e.reshape(transposed(e, found) if adjoint else found, out.shape)


def _solved(e: Emitter, factors: Ref, swaps: Ref, y: Ref, left: bool) -> Ref:
    """X with P L U X = Y, or X P L U = Y."""
    rows = exchanged_rows(e, swaps, factors.shape[1], back=not left)
    if left:
        moved = e.each(y.dtype, y.shape, "X[i0,R[i0,i1],i2]", {"X": y, "R": rows})
        half = triangular(e, factors, moved, upper=False, unit=True)
        return triangular(e, factors, half, upper=True)
    half = triangular(e, factors, y, upper=True, left=False)
    whole = triangular(e, factors, half, upper=False, left=False, unit=True)
    return e.each(y.dtype, y.shape, "X[i0,i1,R[i0,i2]]", {"X": whole, "R": rows})
