"""Families of torch's operators under ``torch.compile(backend="farkas")``, beside eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.farkas.frameworks.torch_checks import torch, whole

pytestmark = pytest.mark.usefixtures("fresh_torch")
F = torch.nn.functional
NAN, INF = float("nan"), float("inf")


def same(function: Callable[..., Any], *given: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Results and gradients are eager torch's, and nothing stayed with torch."""

    def run(call: Callable[..., Any]) -> list[Any]:
        inputs = [g.detach().clone().requires_grad_(g.requires_grad) for g in given]
        found = call(*inputs)
        found = [*found] if isinstance(found, (tuple, list)) else [found]
        wanted = [i for i in inputs if i.requires_grad]
        total = sum(f.sum() for f in found if f.requires_grad)
        return [*found, *(torch.autograd.grad(total, wanted) if wanted else ())]

    expected = run(function)
    found = run(torch.compile(function, backend="farkas"))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    whole()


# --- functions of one element ---------------------------------------------------------------------

EDGES = [0.0, -0.0, 1.0, -1.0, 2.0, INF, -INF, NAN, 1e-9, 0.5, 8.0, 5.0, -2.09]


@pytest.mark.parametrize(
    "names",
    [
        "i0 i0e i1 i1e modified_bessel_k0 scaled_modified_bessel_k1 bessel_j0 bessel_j1 airy_ai",
        "bessel_y0 bessel_y1 erfc erfcx erfinv ndtri log_ndtr spherical_bessel_j0",
        "gammaln digamma",
    ],
)
def test_special_functions(names: str) -> None:
    x = torch.cat([torch.tensor(EDGES), torch.linspace(-20.3, 20, 501)]).double()

    def f(a: Any) -> Any:
        return [getattr(torch.special, name)(a) for name in names.split()]

    same(f, x, rtol=1e-11, atol=1e-13)


def test_lengths() -> None:
    x, y = torch.meshgrid(torch.tensor(EDGES), torch.tensor(EDGES), indexing="ij")
    same(lambda a, b: (torch.hypot(a, b), torch.complex(a, b).abs()), x, y)


def test_derivatives_of_the_gamma_function() -> None:
    x = torch.linspace(-3.7, 20, 301).double()
    same(lambda a: (torch.polygamma(1, a), torch.polygamma(4, a)), x, rtol=1e-7)
    s, q = torch.meshgrid(torch.tensor([2.0, 2.5, 7.0, 1.0, 0.5]).double(), x, indexing="ij")
    same(torch.special.zeta, s, q, rtol=1e-10)


def test_polynomials_of_many_degrees() -> None:
    n, x = torch.meshgrid(torch.arange(-1.0, 12), torch.linspace(-1.5, 1.5, 31), indexing="ij")

    def f(a: Any, k: Any) -> Any:
        kinds = "chebyshev_polynomial_t chebyshev_polynomial_w shifted_chebyshev_polynomial_v"
        kinds += " chebyshev_polynomial_u hermite_polynomial_h legendre_polynomial_p"
        return [getattr(torch.special, kind)(a, k) for kind in kinds.split()]

    same(f, x.double(), n.double(), rtol=1e-11, atol=1e-9)


def test_degrees_that_are_too_high_for_compiled_code() -> None:
    """torch computes them, in this call."""
    x = torch.linspace(-1, 1, 7).double()
    call = torch.compile(torch.special.laguerre_polynomial_l, backend="farkas")
    for n in (torch.full((7,), 5.0).double(), torch.full((7,), 600.0).double()):
        torch.testing.assert_close(call(x, n), torch.special.laguerre_polynomial_l(x, n))


def test_incomplete_gamma_functions() -> None:
    a, x = torch.meshgrid(
        torch.tensor([0.0, 0.1, 1.0, 5.5, 19.0, 21.0, 150.0, 5000.0, INF]).double(),
        torch.tensor([-1.0, 0.0, 0.2, 0.7, 1.05, 3.0, 18.0, 22.0, 160.0, 5100.0, INF]).double(),
        indexing="ij",
    )
    same(lambda p, q: (torch.igamma(p, q), torch.igammac(p, q)), a, x, rtol=1e-8, atol=1e-15)


def test_parts_of_numbers() -> None:
    low = [5e-324, -5e-324, 1e-310, 2.0**-1021, 1.7976931348623157e308, 1.5]
    x = torch.tensor([*EDGES, *low], dtype=torch.float64)
    x = torch.cat([x, -x])
    towards = x.flip(0)
    same(torch.frexp, x)
    same(lambda a, b: (torch.nextafter(a, b), torch.copysign(a, b), a.signbit()), x, towards)


def test_integers_in_loops() -> None:
    a = torch.randint(-(2**62), 2**62, (300,))
    b = torch.randint(-(2**62), 2**62, (300,))
    same(lambda x, y: (torch.gcd(x, y), x ** (y & 15), x**7), a, b)
    same(torch.pow, torch.arange(-3, 3), torch.tensor([-2, -1, -1, -3, 5, 70]))


# --- sorts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("descending", [False, True])
def test_sorts(dtype: str, descending: bool) -> None:
    x = torch.randint(-4, 4, (3, 37)).to(getattr(torch, dtype))
    if x.is_floating_point():
        x[0, [3, 5, 30]] = NAN
        x[1, [7, 8]] = torch.tensor([INF, -INF])
    same(lambda a: torch.sort(a, stable=True, descending=descending), x)
    same(lambda a: torch.sort(a, dim=0, descending=descending, stable=True), x)


def test_what_is_read_off_sorted_elements() -> None:
    x = torch.randn(3, 21, requires_grad=True)

    def f(a: Any) -> Any:
        return (
            a.sort(1).values * torch.arange(21), a.topk(4).values, a.kthvalue(3, 1).values,
            a.median(1).values, a.nanmedian(), a.quantile(0.3, 1), a.median(), a.mode(1).values,
        )  # fmt: skip

    same(f, x)
    missing = torch.tensor([[NAN, 2, 1, NAN], [3, 1, 2, 4], [NAN, NAN, NAN, 5]])
    same(lambda a: (*a.median(1), *a.nanmedian(1), *a.cummax(1)), missing)
    same(lambda a: a.mode(1), torch.randint(0, 4, (5, 15)))
    same(lambda a: torch.sort(a), torch.zeros(2, 0))


def test_searches() -> None:
    edges, x = torch.randn(2, 9).sort(1).values, torch.randn(2, 30)
    x[0, 0], x[:, 1] = NAN, edges[:, 3]
    same(lambda s, v: (torch.searchsorted(s, v), torch.searchsorted(s, v, right=True)), edges, x)
    same(lambda v, s: torch.bucketize(v, s, right=True), x, edges[0].contiguous())
    same(lambda v: (torch.histc(v, 7, -1, 1), torch.histc(v, 5)), torch.randn(100))
    same(lambda v: torch.histogram(v, 6, weight=v.abs(), density=True), torch.randn(100))
    same(torch.isin, torch.randint(0, 40, (60,)), torch.arange(3, 30, 3))


# --- places that depend on elements ---------------------------------------------------------------


def test_masks_and_places() -> None:
    x, source = torch.randn(4, 5, requires_grad=True), torch.randn(20, requires_grad=True)
    mask = torch.rand(4, 5) > 0.4
    same(lambda a, m, s: a.masked_scatter(m, s), x, mask, source)
    same(lambda m: torch.nonzero_static(m, size=14, fill_value=-7), mask)
    same(lambda a: torch.as_strided_scatter(a, torch.ones(2, 3), (2, 3), (1, 5), 1), x.detach())
    index = torch.tensor([2, 0, 2])
    rows, base = torch.randint(-5, 5, (3, 5)), torch.randint(-5, 5, (4, 5))

    def reduced(a: Any, i: Any, r: Any) -> Any:
        kinds = ("mean", "prod", "amin")
        return [a.index_reduce(0, i, r, how, include_self=False) for how in kinds]

    same(reduced, base, index, rows)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags(mode: str) -> None:
    weight = torch.randn(10, 4, requires_grad=True)
    words, bags = torch.randint(0, 10, (12,)), torch.tensor([0, 3, 3, 9])
    same(lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=2), weight, words, bags)


def test_embeddings() -> None:
    weight, words = torch.randn(10, 4, requires_grad=True), torch.randint(0, 10, (3, 5))
    same(lambda w, i: F.embedding(i, w, 3, scale_grad_by_freq=True), weight, words)


@pytest.mark.parametrize("how", ["sum", "mean", "max", "prod"])
def test_segments(how: str) -> None:
    x, lengths = torch.randn(9, 2, requires_grad=True), torch.tensor([2, 0, 4, 3])
    same(lambda a, n: torch.segment_reduce(a, how, lengths=n, initial=1), x, lengths)


# --- images and distances -------------------------------------------------------------------------


@pytest.mark.parametrize("border", ["zeros", "border", "reflection"])
def test_samples_of_images(border: str) -> None:
    image, grid = torch.randn(1, 2, 4, 5), torch.rand(1, 3, 2, 2) * 3 - 1.5
    image.requires_grad_()
    grid.requires_grad_()
    same(lambda a, g: F.grid_sample(a, g, padding_mode=border, align_corners=False), image, grid)
    solid, places = torch.randn(1, 1, 3, 4, 3), torch.rand(1, 2, 2, 2, 3) * 3 - 1.5
    places.requires_grad_()
    same(lambda a, g: F.grid_sample(a, g, padding_mode=border, align_corners=True), solid, places)


def test_borders_and_smoothing() -> None:
    x = torch.randn(1, 2, 6, 7, requires_grad=True)
    same(lambda a: F.pad(a, (2, -1, 0, 3), mode="replicate"), x)
    same(lambda a: F.interpolate(a, (4, 9), mode="bilinear", antialias=True), x)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5, INF])
def test_distances(p: float) -> None:
    x, y = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3)
    same(lambda a, b: (torch.cdist(a, b, p), F.pdist(a, p)), x, y, rtol=1e-4)


def test_transposed_convolutions_of_integers() -> None:
    x, w = torch.randint(-9, 9, (2, 4, 5, 6)), torch.randint(-9, 9, (4, 3, 3, 2))
    same(lambda a, b: F.conv_transpose2d(a, b, stride=2, padding=1, groups=2), x, w)


@pytest.mark.parametrize(("size", "step"), [(3, 1), (2, 2), (2, 3), (5, 2), (4, 5)])
def test_windows_of_a_dimension(size: int, step: int) -> None:
    weight = torch.linspace(-1, 1, size)
    for axis in (0, 1, -1):
        shape = [2, 3, 4]
        shape[axis] = 11
        x = torch.rand(shape, requires_grad=True)
        same(lambda x, axis=axis: x.unfold(axis, size, step) * weight, x)
    same(lambda x: x.unfold(0, 1, 1) * 3, torch.rand((), requires_grad=True))
