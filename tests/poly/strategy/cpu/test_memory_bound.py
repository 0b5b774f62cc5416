"""Lanes around other loops: windows, sums of columns; and rows in one pass."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.ir.expr import Const
from runtime.reference.evaluate import run
from tests.machines import automatic

POOL = """def f({t} X[2,3,{h},{w}]) -> (Y) {{
    Y[n,c,p,q] max=! X[n,c,{s}*p+r-{pad},{s}*q+u-{pad}]
        where n in 0:2, c in 0:3, p in 0:{oh}, q in 0:{ow}, r in 0:{k}, u in 0:{k},
              0 <= {s}*p+r-{pad}, {s}*p+r-{pad} < {h}, 0 <= {s}*q+u-{pad}, {s}*q+u-{pad} < {w}
}}"""
MEAN = """def f(float32 X[2,3,{h},{w}]) -> (Y) {{
    float32 T[2,3,{oh},{ow}]
    T[n,c,p,q] +=! X[n,c,{s}*p+r-{pad},{s}*q+u-{pad}]
        where n in 0:2, c in 0:3, p in 0:{oh}, q in 0:{ow}, r in 0:{k}, u in 0:{k},
              0 <= {s}*p+r-{pad}, {s}*p+r-{pad} < {h}, 0 <= {s}*q+u-{pad}, {s}*q+u-{pad} < {w}
    Y[n,c,p,q] = T[n,c,p,q]
        / float32((min({s}*q-{pad}+{k}, {w}) - max({s}*q-{pad}, 0)) * {k}) - X[n,c,0,0]
        where n in 0:2, c in 0:3, p in 0:{oh}, q in 0:{ow}
}}"""
SHAPES = [
    (17, 3, 2, 1), (40, 3, 2, 1), (112, 3, 2, 1), (13, 3, 2, 0), (56, 2, 2, 0), (36, 3, 1, 1),
    (9, 5, 1, 2), (7, 7, 1, 3), (20, 3, 3, 0), (5, 5, 1, 0), (34, 2, 1, 1), (1, 1, 1, 0),
]  # fmt: skip


def pool(text: str, w: int, k: int, s: int, pad: int, **more: Any) -> str:
    h = min(w, 12)
    sizes = {"h": h, "w": w, "oh": (h + 2 * pad - k) // s + 1, "ow": (w + 2 * pad - k) // s + 1}
    return text.format(k=k, s=s, pad=pad, **sizes, **more)


def check(text: str, inputs: dict[str, Any] | None = None, **options: Any) -> str:
    """Compile, compare with the reference, and give the schedule's tree."""
    kernel = fk.compile(text, **options)
    rng = np.random.default_rng(0)
    if inputs is None:
        inputs = {}
        for t in kernel.program.inputs:
            shape = [int(x.value) for x in t.shape if isinstance(x, Const)]
            inputs[t.name] = rng.integers(-9, 9, shape).astype(t.dtype.numpy)
    expected = run(kernel.program, inputs, {})
    got = kernel(**inputs)
    results = got if isinstance(got, tuple) else (got,)
    for t, result in zip(kernel.program.outputs, results, strict=True):
        want = expected.values[t.name]
        np.testing.assert_allclose(
            result.astype(np.float64), want.astype(np.float64), rtol=1e-5, atol=1e-6
        )
    return kernel.schedule.show


@pytest.mark.parametrize("shape", SHAPES)
def test_windows(shape: tuple[int, int, int, int]) -> None:
    for text in (pool(POOL, *shape, t="float32"), pool(MEAN, *shape)):
        shown = check(text)
        if shape[2] < 3 and shape[0] > 5:
            assert re.search(r"for q(_i)?  \[vector\]", shown)
            assert "register" in shown


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "uint8", "int64"])
def test_windows_of_every_type(dtype: str) -> None:
    check(pool(POOL, 40, 3, 2, 1, t=dtype))
    check(pool(POOL, 40, 3, 1, 1, t=dtype), exact=True)


@pytest.mark.parametrize("width", [1, 3, 16, 37, 300])
def test_windows_of_any_size(width: int) -> None:
    text = """def f(float32 X[H,W]) -> (Y, Z) {
        Y[p,q] max=! X[p+r,q+s] where r in 0:3, s in 0:3
        Z[p,q] +=! X[p+r,2*q+s] where r in 0:3, s in 0:2
    }"""
    x = np.random.default_rng(0).normal(size=(5, width + 2)).astype(np.float32)
    check(text, {"X": x})


def test_sums_of_columns() -> None:
    for n in (1, 7, 33, 700):
        shown = check(f"def f(float32 X[9,{n}]) -> (Y) {{ Y[j] +=! X[i,j] }}")
        assert n < 4 or "[vector]" in shown
    x = np.random.default_rng(0).normal(size=(9, 700)).astype(np.float32)
    check("def f(float32 X[N,M]) -> (Y) { Y[j] +=! X[i,j] }", {"X": x})
    check(
        "def f(float32 X[N,M]) -> (Y) { Y[j] max=! X[i,j]\n Y[j] max= 0 where j in 0:M }", {"X": x}
    )


def test_products_of_integers() -> None:
    check("def f(int32 A[5,7], int32 B[7,40]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }")


def test_lanes_by_hand() -> None:
    """A body with loops, and with what depends on the lanes in ways that lanes do not allow."""
    text = "def f(float32 X[40,40]) -> (Y) { Y[i] +=! X[i,j] where j in 0:i+1 }"
    check(text, schedule="fuse S0_init, S0: i\nvectorize S0: i")
    check(text, schedule="fuse S0_init, S0: i\npromote S0: i as Y, register\nvectorize S0: i")
    text = "def f(float32 X[40,40]) -> (Y) { Y[i] +=! X[i,j] }"
    check(text, schedule="fuse S0_init, S0: i\nvectorize S0: i")
    check(text, schedule="fuse S0_init, S0: i\npromote S0: i as Y, register\nvectorize S0: i")
    text = "def f(float32 X[40,40]) -> (Y) { Y[k] +=! X[i,k] where k in 0:40, i in 0:40 }"
    check(text, schedule="vectorize S0: k")
    check(text, schedule="interchange S0: k, i\nvectorize S0: i")


def test_rows_are_one_pass() -> None:
    text = """def f(float32 X[6,{n}]) -> (Y) {{
        float32 M[6]
        float32 E[6,{n}]
        float32 T[6]
        M[i] max=! X[i,j]
        E[i,j] = exp(X[i,j] - M[i])
        T[i] +=! E[i,j]
        Y[i,j] = E[i,j] / T[i]
    }}"""
    check(text.format(n=1))
    for n in (5, 16, 50, 128):
        shown = check(text.format(n=n))
        assert shown.count("[vector]") == 3
        assert "promote E to local" in shown
        assert "promote T to register" in shown


def test_nan_stays_in_windows() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 12, 40)).astype(np.float32)
    for at in (0, 3, 17, 39):
        y = x.copy()
        y[1, 1, 5, at] = np.nan
        check(pool(POOL, 40, 3, 2, 1, t="float32"), {"X": y})


@pytest.mark.parametrize(
    "text",
    [
        "def f({t} A[40,33,7]) -> (Y) {{ Y[j,i,k] = A[i,j,k] }}",
        "def f({t} X[1,20,9,28]) -> (Y) {{ Y[n,h,w,c] = X[n,c,h,w] }}",
        "def f({t} X[1,5,18,37]) -> (Y) {{ Y[n,c,h,w] = X[n,h,w,c] + 1 }}",
        "def f({t} X[64,48]) -> (Y) {{ Y[j,i] = X[i,j] }}",
        "def f({t} X[100,45]) -> (Y) {{ Y[j,i] = X[i,j] * X[i,j] }}",
        "def f({t} X[50,4]) -> (Y) {{ Y[j,i] = X[i,j] }}",
        "def f({t} X[3,50]) -> (Y) {{ Y[j,i] = X[i,j] }}",
        "def f({t} X[30,50], {t} Z[50]) -> (Y) {{ Y[j,i] = X[i,j] + Z[j] }}",
        "def f({t} X[30,50], {t} Z[50,30]) -> (Y) {{ Y[j,i] = X[i,j] + Z[j,i] }}",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64"])
def test_layouts(text: str, dtype: str) -> None:
    check(text.format(t=dtype))


def test_a_matrix_is_turned_around_in_registers() -> None:
    kernel = fk.compile("def f(float32 X[64,48]) -> (Y) { Y[j,i] = X[i,j] }")
    assert "tile S0: j, i by" in str(kernel.schedule)
    assert "fk_transpose_" in kernel.source


def test_little_work_stays_on_one_thread() -> None:
    assert "parallel" not in check("def f(float32 X[16]) -> (Y) { Y[i] = max(X[i], 0) }")
    assert "parallel" in check("def f(float32 X[64,500]) -> (Y) { Y[i,j] = max(X[i,j], 0) }")


def test_scalars_do_not_keep_a_maximum_from_its_lanes() -> None:
    """Most of what S1 touches is contiguous along d, if elements that do not move are left out."""
    text = """def f(float32 A[4,300,16], float32 B[4,16], float32 C[], float32 D[1]) -> (Y) {
        float32 T[4,300,16]
        T[i,k,l] = A[i,k,l] + B[i,l]
        Y[n,d] max=! T[n,p,d] * (D[0] + C[] + tanh(C[] * T[n,p,d]))
    }"""
    assert "reorder S1: p, d\nvectorize S1: d" in automatic(text)
    check(text)
