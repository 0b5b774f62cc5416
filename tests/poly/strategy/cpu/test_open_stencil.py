"""Tiles along the rows of images whose sizes are not known when they are compiled."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import farkas as fk
from poly.machine.cpu import host_machine
from runtime.reference.evaluate import run

FORM = """def f({t} X[N,C,H,W], {t} F[C,{kh},{kw}], {t} B[C]) -> (Z) {{
    Y[n,c,p,q] +=! X[n,c,{s}*p+{d}*r-{top},{s}*q+{d}*u-{left}] * F[c,r,u]
        where n in 0:N, c in 0:C, r in 0:{kh}, u in 0:{kw},
              p in 0:(H+{down})//{s}+1, q in 0:(W+{right})//{s}+1,
              0 <= {s}*p+{d}*r-{top} < H, 0 <= {s}*q+{d}*u-{left} < W
    Z[n,c,p,q] = max(Y[n,c,p,q] + B[c], 0)
}}"""
#: Taps, stride, distance of the taps, and padding: at the top, left, bottom, right.
WINDOWS = [
    ((3, 3), 1, 1, (1, 1, 1, 1)), ((3, 3), 2, 1, (1, 1, 1, 1)), ((3, 3), 1, 2, (2, 2, 2, 2)),
    ((5, 5), 1, 1, (2, 2, 2, 2)), ((5, 5), 2, 1, (2, 2, 2, 2)), ((3, 3), 2, 1, (0, 0, 1, 1)),
    ((3, 5), 1, 1, (2, 0, 0, 4)), ((2, 3), 2, 1, (0, 2, 1, 0)), ((1, 3), 1, 1, (0, 1, 0, 1)),
    ((3, 2), 1, 1, (1, 0, 1, 0)), ((3, 3), 1, 1, (0, 0, 0, 0)), ((3, 3), 1, 1, (3, 3, 3, 3)),
]  # fmt: skip
#: Rows and columns: none, one, fewer than the window, than a vector; multiples, and one off.
IMAGES = [
    (7, 7), (14, 14), (0, 5), (5, 0), (1, 1), (1, 16), (2, 17), (16, 2), (6, 8), (8, 9), (13, 15),
    (15, 31), (21, 32), (28, 33), (9, 48), (3, 100), (29, 3),
]  # fmt: skip

Window = tuple[tuple[int, int], int, int, tuple[int, int, int, int]]


def text_of(window: Window, t: str = "float32") -> str:
    (kh, kw), s, d, (top, left, bottom, right) = window
    down, across = (
        a + b - d * (k - 1) - 1 for a, b, k in ((top, bottom, kh), (left, right, kw))
    )  # fmt: skip
    return FORM.format(t=t, kh=kh, kw=kw, s=s, d=d, top=top, left=left, down=down, right=across)


@cache
def kernel_of(window: Window, t: str = "float32") -> fk.Kernel:
    """One kernel for all tests of a window."""
    return fk.compile(text_of(window, t))


def check(kernel: fk.Kernel, t: str, window: Window, n: int, c: int, h: int, w: int) -> None:
    """Compare with the reference; small integers, so that sums are exact."""
    (kh, kw), s, d, (top, left, bottom, right) = window
    out = [
        (x + a + b - d * (k - 1) - 1) // s + 1
        for x, a, b, k in ((h, top, bottom, kh), (w, left, right, kw))
    ]
    if min(out) < 0:
        return
    rng = np.random.default_rng(0)
    shapes = {"X": (n, c, h, w), "F": (c, kh, kw), "B": (c,)}
    inputs = {k: rng.integers(-9, 9, shape).astype(t) for k, shape in shapes.items()}
    expected = run(kernel.program, inputs, {}).values["Z"]
    guarded = np.full((n, c, *out), np.nan, t)
    result = kernel(**inputs, out=guarded)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_one_kernel_for_all_sizes(window: Window) -> None:
    kernel = kernel_of(window)
    assert len(kernel.source.splitlines()) < 1500
    for h, w in IMAGES:
        check(kernel, "float32", window, 2, 3, h, w)


@pytest.mark.parametrize("window", WINDOWS[:3], ids=str)
def test_doubles(window: Window) -> None:
    kernel = kernel_of(window, "float64")
    for h, w in IMAGES:
        check(kernel, "float64", window, 1, 2, h, w)


def test_some_sizes_known() -> None:
    window = WINDOWS[0]
    for fixed in ({"W": 28}, {"H": 21}, {"N": 1, "C": 3}, {"H": 7, "W": 19}):
        kernel = fk.compile(text_of(window), sizes=fixed)
        for h, w in IMAGES:
            check(kernel, "float32", window, 1, 3, fixed.get("H", h), fixed.get("W", w))


def test_square_images() -> None:
    """One size for rows and columns."""
    text = text_of(WINDOWS[0]).replace("W", "H")
    kernel = fk.compile(text)
    for h in (0, 1, 2, 7, 8, 14, 15, 16, 17, 33):
        check(kernel, "float32", WINDOWS[0], 1, 2, h, h)


def test_padding_is_left_out_and_not_taken_for_zeros() -> None:
    """Weights that meet only padding may be infinite: 0 times them would not be 0."""
    kernel = kernel_of(WINDOWS[0])
    for h, w in ((7, 1), (1, 7), (1, 1)):
        weights = np.full((2, 3, 3), np.inf, np.float32)
        weights[:, 1 if h == 1 else slice(None), 1 if w == 1 else slice(None)] = 1
        image = np.ones((1, 2, h, w), np.float32)
        result = kernel(X=image, F=weights, B=np.zeros(2, np.float32))
        assert np.isfinite(result).all()


@pytest.mark.skipif(host_machine().vector_bytes < 64, reason="there are no masked vectors")
def test_tiles_lie_along_rows() -> None:
    kernel = kernel_of(WINDOWS[0])
    assert "vectorize S0: q_i" in str(kernel.schedule)
    assert "unroll S0: p_i" in str(kernel.schedule)
    # A case for each number of rows, and narrow images in vectors of half the lanes.
    assert "fk_some_f32x16(" in kernel.source
    assert "fk_some_f32x8(" in kernel.source


#: Sizes of results as the importer of ONNX names them where they would be quotients.
NAMED = """def f(float32 X[C,H,W], float32 F[C,{k},{k}], float32 R[P], float32 S[Q]) -> (Z)
where {s}*P <= H + {s} - 1, H <= {s}*P, {s}*Q <= W + {s} - 1, W <= {s}*Q {{
    Y[c,p,q] +=! X[c,{s}*p+r-{a},{s}*q+u-{a}] * F[c,r,u]
        where c in 0:C, r in 0:{k}, u in 0:{k}, p in 0:P, q in 0:Q,
              0 <= {s}*p+r-{a} < H, 0 <= {s}*q+u-{a} < W
    Z[c,p,q] = Y[c,p,q] + R[p] * S[q]
}}"""


@pytest.mark.parametrize(("taps", "stride", "rolled"), [(5, 2, True), (3, 2, True), (5, 1, False)])
def test_named_sizes_of_results(taps: int, stride: int, rolled: bool) -> None:
    """Where hardly a row shares a mask with another, tiles loop over the rows of the filter."""
    kernel = fk.compile(NAMED.format(k=taps, s=stride, a=taps // 2))
    if host_machine().vector_bytes == 64:
        assert ("for (int64_t r = " in kernel.source) == rolled
        assert (kernel.source.count("const int64_t lane_") > 40) != rolled
    rng = np.random.default_rng(1)
    for h, w in IMAGES:
        rows, columns = -(-h // stride), -(-w // stride)
        shapes = {"X": (2, h, w), "F": (2, taps, taps), "R": (rows,), "S": (columns,)}
        inputs = {k: rng.integers(-9, 9, s).astype("float32") for k, s in shapes.items()}
        expected = run(kernel.program, inputs, {}).values["Z"]
        guarded = np.full((2, rows, columns), np.nan, "float32")
        np.testing.assert_array_equal(kernel(**inputs, out=guarded), expected)
