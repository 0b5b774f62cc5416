"""Tiles run row by row in stencils with weights, and where results take longest to be stored."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from tests.machines import automatic


def stencil(rows: int, columns: int, u: int, v: int, step: int = 1) -> str:
    height = (rows - 1) * step + u
    return (
        f"def f(float32 X[{height},{columns + v - 1}], float32 W[{u},{v}]) -> (Y) {{ "
        f"Y[i,j] +=! X[{step}*i+u,j+v] * W[u,v] "
        f"where i in 0:{rows}, j in 0:{columns}, u in 0:{u}, v in 0:{v} }}"
    )


@pytest.mark.parametrize("step", [1, 2])
def test_rows_are_read_one_after_the_other(step: int) -> None:
    """A column of tiles would touch each row's page for a few elements."""
    assert "reorder S0: i_o, j_o, i_i, j_i" in automatic(stencil(1000, 1200, 5, 5, step))


def product(rows: int, terms: int, columns: int, b: str = "k,j") -> str:
    shape = f"{terms},{columns}" if b == "k,j" else f"{columns},{terms}"
    return (
        f"def f(float32 A[{rows},{terms}], float32 B[{shape}]) -> (C) {{ "
        f"C[i,j] +=! A[i,k] * B[{b}] }}"
    )


def test_products_keep_a_packed_panel() -> None:
    """B moves along the lanes and has no rows of its own."""
    found = automatic(product(768, 1024, 768))
    assert "j_o, i_o" in found and "as B" in found


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        pytest.param(300, 600, id="parts of cache lines"),
        pytest.param(256, 512, id="few sets of the cache"),
        pytest.param(2000, 2000, id="more than the second cache"),
    ],
)
def test_products_of_few_terms_are_stored_row_by_row(rows: int, columns: int) -> None:
    found = automatic(product(rows, 17, columns))
    assert "i_o, j_o" in found and "as B" not in found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(product(96, 17, 2000), id="rows that stay in the cache"),
        pytest.param(product(300, 33, 600), id="more terms"),
        pytest.param(product(300, 17, 600, "j,k"), id="lanes that are not adjacent"),
        pytest.param(product(300, 17, 90), id="few columns"),
        pytest.param(product(16, 32, 12544), id="few rows, each of which would read all of B"),
        pytest.param(product(4000, 32, 12544), id="an operand that exceeds the second cache"),
        pytest.param(product(300, 17, 600).replace("float32", "float16"), id="converted operands"),
    ],
)
def test_others_are_stored_column_by_column(text: str) -> None:
    assert "i_o, j_o" not in automatic(text)


@pytest.mark.parametrize("shape", [(37, 5, 321), (301, 17, 603), (64, 32, 512), (9, 1, 130)])
def test_products_of_few_terms_are_right(shape: tuple[int, int, int]) -> None:
    rows, terms, columns = shape
    draw = np.random.default_rng(0)
    a, b, d = (
        draw.integers(-4, 5, s).astype(np.float32) for s in ((rows, terms), (terms, columns), rows)
    )
    np.testing.assert_array_equal(fk.compile(product(*shape), threads=2)(a, b), a @ b)
    with_bias = (
        f"def f(float32 A[{rows},{terms}], float32 B[{terms},{columns}], float32 D[{rows}]) -> (E) "
        "{ C[i,j] +=! A[i,k] * B[k,j]\n E[i,j] = max(C[i,j] + D[i], 0.0) }"
    )
    found = fk.compile(with_bias, threads=2)(a, b, d)
    np.testing.assert_array_equal(found, np.maximum(a @ b + d[:, None], 0))


@pytest.mark.parametrize("shape", [(37, 65, 3, 3), (30, 100, 5, 1), (23, 40, 1, 5), (9, 129, 2, 7)])
@pytest.mark.parametrize("step", [1, 2])
def test_they_are_right(shape: tuple[int, int, int, int], step: int) -> None:
    rows, columns, u, v = shape
    draw = np.random.default_rng(0)
    x = draw.integers(-4, 5, ((rows - 1) * step + u, columns + v - 1)).astype(np.float32)
    w = draw.integers(-4, 5, (u, v)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x, (u, v))[::step]
    expected = np.einsum("ijuv,uv->ij", windows, w)
    np.testing.assert_array_equal(fk.compile(stencil(*shape, step), threads=2)(x, w), expected)
