"""Operators of linear algebra by others: torch has no decompositions of them.

Imported where torch is.  They follow torch's own kernels in what is saved for the backward pass.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from farkas.frameworks.torch_table import decomposition

torch: Any = import_module("torch")


def _factored(a: Any) -> tuple[Any, Any]:
    """The LU factors and pivots of A; or as torch does of A^T, if A is real and dense in order."""
    factor = torch.linalg.lu_factor_ex
    turned = a.is_contiguous() and not a.is_complex()
    factors, pivots, _ = factor(a.mT if turned else a)
    return factors, pivots


def _odd_exchanges(pivots: Any) -> Any:
    """Whether rows were exchanged an odd number of times."""
    places = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return (pivots != places).sum(-1) % 2 == 1


@decomposition("_linalg_det.default")
def determinant(a: Any) -> tuple[Any, Any, Any]:
    """The product of the pivots, with the sign of the exchanges; LU and pivots."""
    factors, pivots = _factored(a)
    size = factors.diagonal(0, -2, -1).prod(-1)
    return size.where(~_odd_exchanges(pivots), -size), factors, pivots


@decomposition("_linalg_slogdet.default")
def log_determinant(a: Any) -> tuple[Any, Any, Any, Any]:
    """The sign and the logarithm of the determinant; LU and pivots."""
    factors, pivots = _factored(a)
    diagonal = factors.diagonal(0, -2, -1)
    sign = diagonal.sgn().prod(-1)
    sign = sign.where(~_odd_exchanges(pivots), -sign)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


@decomposition("_linalg_solve_ex.default")
def solve(a: Any, b: Any, *, left: bool = True, check_errors: bool = False) -> Any:
    """X with A X = B, or X A = B; LU, pivots and info."""
    if check_errors:
        return NotImplemented  # it stays as it is
    factors, pivots, info = torch.linalg.lu_factor_ex(a)
    # One vector, or one for each matrix.
    is_vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    found = torch.linalg.lu_solve(factors, pivots, right, left=left)
    return found.squeeze(-1) if is_vector else found, factors, pivots, info


@decomposition("linalg_inv_ex.default")
def inverse(a: Any, *, check_errors: bool = False) -> Any:
    """The inverse, and info."""
    if check_errors:
        return NotImplemented  # it stays as it is
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    found, _, _, info = solve(a, one.expand(a.shape))
    return found, info


@decomposition("linalg_lu.default")
def lu(a: Any, *, pivot: bool = True) -> tuple[Any, Any, Any]:
    """P, L and U."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(a, pivot=pivot)
    p, lower, upper = torch.lu_unpack(factors, pivots)
    return p, lower, upper


@decomposition("triangular_solve.default")
def triangular_solve(
    b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, Any]:
    """X with A X = B, or with A^T, of which one triangle is read; and A."""
    x = a.mT if transpose else a
    found = torch.linalg.solve_triangular(
        x, b, upper=upper != transpose, unitriangular=unitriangular
    )
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return found, a.expand((*lead, *a.shape[-2:])).clone()


@decomposition("cholesky_solve.default")
def cholesky_solve(b: Any, a: Any, upper: bool = False) -> Any:
    """X with A A^T X = B of a triangular factor."""
    solve_triangular = torch.linalg.solve_triangular
    first, second = (a.mT, a) if upper else (a, a.mT)
    return solve_triangular(second, solve_triangular(first, b, upper=False), upper=True)


# --- orthogonal factors ---------------------------------------------------------------------------


@decomposition("linalg_qr.default")
def qr(a: Any, mode: str = "reduced") -> tuple[Any, Any]:
    """Q and R of A = Q R, of which R may come alone."""
    m, n = a.shape[-2:]
    least = min(m, n)
    packed, tau = torch.geqrf(a)
    rows = m if mode == "complete" else least
    r = packed[..., :rows, :].triu()
    if mode == "r":
        return a.new_empty((0,)), r
    return _columns(packed[..., :least], tau, rows), r


@decomposition("linalg_householder_product.default")
def householder_product(a: Any, tau: Any) -> Any:
    """The first columns of a product of reflections."""
    k = tau.shape[-1]
    return _columns(a[..., :k], tau, a.shape[-1])


def _columns(reflections: Any, tau: Any, count: int) -> Any:
    """The first columns of their product."""
    m = reflections.shape[-2]
    one = torch.eye(m, count, dtype=reflections.dtype, device=reflections.device)
    one = one.expand((*reflections.shape[:-2], m, count))
    return torch.ormqr(reflections, tau, one)
