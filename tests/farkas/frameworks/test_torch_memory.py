"""How results under ``torch.compile`` lie in memory: views, orders, and what shares memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.farkas.frameworks.torch_checks import torch

pytestmark = pytest.mark.usefixtures("fresh_torch")


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="farkas", **options)


def second_half_in_place(x: Any) -> Any:
    x.add_(1)
    return x[x.shape[0] // 2 :]


def cached(cache: Any, new: Any) -> Any:
    cache[:, : new.shape[1]] = new
    return cache[:, : new.shape[1]]


def with_its_half(x: Any) -> Any:
    y = x * 2
    return y, y[x.shape[0] // 2 :]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(("function", "given"), [
    (second_half_in_place, lambda n: [torch.arange(8.0 * n)]),
    (second_half_in_place, lambda n: [torch.arange(6.0 * n).reshape(3, 2 * n).t()]),
    (cached, lambda n: [torch.zeros(2, 9), torch.arange(2.0 * n).reshape(2, n)]),
    (with_its_half, lambda n: [torch.arange(4.0 * n)]),
    (with_its_half, lambda n: [torch.arange(4.0 * n).requires_grad_()]),
])  # fmt: skip
def test_views_of_results(
    function: Callable[..., Any], given: Callable[[int], list[Any]], dynamic: bool
) -> None:
    """torch makes them anew from strides and offsets, where sizes are open."""
    run = compiled(function, dynamic=dynamic)
    for n in (3, 5):
        arguments, others = given(n), given(n)
        torch.testing.assert_close(run(*arguments), function(*others), rtol=0, atol=0)
        torch.testing.assert_close(arguments, others, rtol=0, atol=0)


def test_results_that_share_memory_with_results() -> None:
    y, row, flat = compiled(lambda x: (y := x * 2, y[0], y.view(-1)))(torch.ones(3, 2))
    y.zero_()
    assert not row.any() and not flat.any()


@pytest.mark.parametrize("operator", [
    lambda x: torch.as_strided((x * 2)[:, 1:], (2,), (1,), 0) + 0,
    lambda x: torch.as_strided((x * 2)[:, 1:], (2, 2), (3, 1), 0) + 0,
])  # fmt: skip
def test_strides_of_a_part(operator: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(compiled(operator)(x), operator(x))


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("given", [
    lambda n: torch.randn(4, n).t(),
    lambda n: torch.randn(2, 3, n, 5).to(memory_format=torch.channels_last),
    lambda n: torch.randn(2, n, 3),
])  # fmt: skip
def test_the_order_of_the_operand(given: Any, dynamic: bool) -> None:
    function = lambda x: torch.relu(x) * 2  # noqa: E731
    run = compiled(function, dynamic=dynamic)
    for n in (6, 9):
        x = given(n)
        found, wanted = run(x), function(x)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("grad", [False, True])
def test_results_may_be_changed_in_place(dtype: Any, grad: bool) -> None:
    x = torch.ones(2, 3, 4, 4, dtype=dtype).to(memory_format=torch.channels_last)
    w = torch.ones((), dtype=dtype, requires_grad=grad)
    y = compiled(lambda x, w: x * w)(x, w)
    y.add_(torch.ones((), dtype=dtype, requires_grad=True))
    torch.testing.assert_close(y.detach(), x + 1)
