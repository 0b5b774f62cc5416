"""Linear algebra in ``torch.compile(backend="farkas")`` beside eager torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import farkas as fk
from tests.farkas.frameworks.torch_checks import agrees as torch_agrees
from tests.farkas.frameworks.torch_checks import torch

pytestmark = pytest.mark.usefixtures("fresh_torch")


#: Within the rounding errors of factorisations.
agrees = partial(torch_agrees, rtol=1e-6, atol=1e-8)


def matrices(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


def definite(*shape: int) -> Any:
    x = matrices(*shape)
    return x @ x.mT + torch.eye(shape[-1])


def test_cholesky() -> None:
    agrees(lambda x: torch.linalg.cholesky_ex(x, upper=True), definite(2, 3, 5, 5))
    failed = torch.diag(torch.tensor([1.0, 2, -1, 4]))
    info = torch.compile(torch.linalg.cholesky_ex, backend="farkas")(failed).info
    assert info.item() == 3


@pytest.mark.parametrize(("left", "upper"), [(True, True), (False, True)])
def test_triangular_systems(left: bool, upper: bool) -> None:
    def f(a: Any, b: Any) -> Any:
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left)

    agrees(f, definite(4, 4), matrices(2, 4, 3) if left else matrices(2, 3, 4))


@pytest.mark.parametrize("shape", [(3, 4, 7), (2, 7, 3), (2, 0, 3)])
def test_lu(shape: tuple[int, ...]) -> None:
    agrees(torch.linalg.lu, matrices(*shape), back=False)


def test_pivots_of_equal_size() -> None:
    x = torch.tensor([[1.0, 2, 3], [-1, 1, 1], [1, 2, 5]])
    agrees(torch.linalg.lu_factor_ex, x, back=False)
    agrees(torch.linalg.lu_factor_ex, torch.zeros(3, 3), back=False)


@pytest.mark.parametrize(("left", "adjoint"), [(True, False), (False, False), (True, True)])
def test_systems_of_factors(left: bool, adjoint: bool) -> None:
    def f(a: Any, b: Any) -> Any:
        factors, pivots = torch.linalg.lu_factor(a)
        return torch.linalg.lu_solve(factors, pivots, b, left=left, adjoint=adjoint)

    agrees(f, matrices(2, 5, 5), matrices(5, 2) if left else matrices(2, 5), back=False)


def test_determinants_and_inverses() -> None:
    x = matrices(3, 4, 4)
    agrees(torch.linalg.slogdet, x.mT.contiguous().mT)
    agrees(torch.linalg.inv, x)
    agrees(torch.linalg.solve, x[0], matrices(4))


def test_complex_determinants_have_gradients() -> None:
    x = torch.randn(3, 3, dtype=torch.complex128, requires_grad=True)
    determinant = torch.compile(torch.linalg.det, backend="farkas")
    found, expected = (torch.autograd.grad(f(x).abs(), x) for f in (determinant, torch.linalg.det))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("shape", "mode"), [((2, 6, 3), "complete"), ((3, 6), "reduced")])
def test_orthogonal_factors(shape: tuple[int, ...], mode: str) -> None:
    agrees(lambda x: torch.linalg.qr(x, mode), matrices(*shape), back=False)


def test_singular_values() -> None:
    agrees(torch.linalg.svdvals, matrices(2, 6, 3))
    agrees(lambda x: torch.linalg.pinv(x[..., :1] * x[..., :1, :]), matrices(3, 5), back=False)


def test_eigenvalues() -> None:
    agrees(torch.linalg.eigvalsh, matrices(2, 5, 5))
    agrees(lambda x: torch.linalg.pinv(x, hermitian=True), definite(1, 1) - 2, back=False)
    repeated = torch.diag(torch.tensor([1.0, -1, 1, 0, -1], dtype=torch.float64))
    agrees(torch.linalg.eigvalsh, repeated, back=False)


def test_signs_of_vectors_are_lapacks() -> None:
    call = torch.compile(torch.linalg.eigh, backend="farkas")
    for x in (matrices(4, 4), matrices(4, 4).requires_grad_()):
        torch.testing.assert_close(call(x), torch.linalg.eigh(x))
    assert all("the signs of singular" in str(r) for r in fk.torch.reports)
    assert fk.torch.reports


def test_what_torch_computes_for_some_elements() -> None:
    agrees(torch.linalg.matrix_exp, matrices(3, 3) * 4)
    call = torch.compile(torch.linalg.matrix_exp, backend="farkas", dynamic=False)
    for x in (matrices(2, 3, 3), -1e4 * torch.eye(2).double(), matrices(2, 2) * torch.nan):
        expected = torch.linalg.matrix_exp(x)
        torch.testing.assert_close(call(x), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (torch.linalg.inv, torch.zeros(3, 3)),
        (torch.linalg.cholesky, -torch.eye(4)),
        (torch.cholesky, torch.stack([torch.eye(2), -torch.eye(2)])),
        (torch.cholesky_inverse, torch.diag(torch.tensor([1.0, 0]))),
    ],
)
def test_matrices_without_a_result(function: Any, given: Any) -> None:
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        function(given)
    with pytest.raises(torch.linalg.LinAlgError) as found:
        torch.compile(function, backend="farkas")(given)
    assert str(found.value) == str(expected.value)


def test_large_matrices_stay_with_torch() -> None:
    x = definite(130, 130)
    torch.compile(torch.linalg.cholesky_ex, backend="farkas")(x)
    (report,) = fk.torch.reports
    assert "a matrix over 128 by 128, for which LAPACK is faster" in str(report)
