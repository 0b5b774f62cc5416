"""Stencils with weights: all tiles of a row come before the next row."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.pipeline import CPU
from poly.machine.cpu import Machine

MACHINE = Machine(64, 32, 32 << 10, 1 << 20, 8 << 20, 2, ())


def stencil(rows: int, columns: int, u: int, v: int, step: int = 1) -> str:
    height = (rows - 1) * step + u
    return (
        f"def f(float32 X[{height},{columns + v - 1}], float32 W[{u},{v}]) -> (Y) {{ "
        f"Y[i,j] +=! X[{step}*i+u,j+v] * W[u,v] "
        f"where i in 0:{rows}, j in 0:{columns}, u in 0:{u}, v in 0:{v} }}"
    )


def steps(text: str) -> str:
    return str(CPU.automatic(CPU.prepare(fk.parse(text), MACHINE), MACHINE).schedule)


@pytest.mark.parametrize("step", [1, 2])
def test_rows_are_read_one_after_the_other(step: int) -> None:
    """A column of tiles would touch each row's page for a few elements."""
    assert "reorder S0: i_o, j_o, i_i, j_i" in steps(stencil(1000, 1200, 5, 5, step))


def test_products_keep_a_packed_panel() -> None:
    """B moves along the lanes and has no rows of its own."""
    text = "def f(float32 A[768,1024], float32 B[1024,768]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
    assert "j_o, i_o" in steps(text)


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
