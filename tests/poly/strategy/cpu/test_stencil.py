"""Tiles along the rows of an image, with lanes left out where taps lie on the padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import farkas as fk
from codegen.pipeline import CPU
from poly.ir.expr import Const
from poly.space.space import Space
from poly.strategy.common.point import Pick, Point
from runtime.reference.evaluate import run
from tests.machines import AVX512, automatic
from tests.poly.strategy.cpu.test_tile_order import stencil

DEPTHWISE = """def f({t} X[{c},{h},{w}], {t} W[{c},{k},{k}], {t} B[{c}])
        -> ({t} Z[{c},{oh},{ow}]) {{
    {t} Y[{c},{oh},{ow}]
    Y[c,p,q] +=! X[c,{s}*p+{d}*r-{pad},{s}*q+{d}*u-{pad}] * W[c,r,u]
        where c in 0:{c}, p in 0:{oh}, q in 0:{ow}, r in 0:{k}, u in 0:{k},
              0 <= {s}*p+{d}*r-{pad} < {h}, 0 <= {s}*q+{d}*u-{pad} < {w}
    Z[c,p,q] = max(Y[c,p,q] + B[c], 0)
}}"""
GROUPED = """def f({t} X[{c},2,{h},{w}], {t} W[{c},3,2,{k},{k}]) -> (Y) {{
    Y[g,o,p,q] +=! X[g,i,{s}*p+{d}*r-{pad},{s}*q+{d}*u-{pad}] * W[g,o,i,r,u]
        where g in 0:{c}, o in 0:3, i in 0:2, p in 0:{oh}, q in 0:{ow}, r in 0:{k}, u in 0:{k},
              0 <= {s}*p+{d}*r-{pad} < {h}, 0 <= {s}*q+{d}*u-{pad} < {w}
}}"""
#: Extent of a row, taps, stride, padding, distance of the taps.
SHAPES = [
    (56, 3, 1, 1, 1), (56, 3, 2, 1, 1), (14, 3, 1, 1, 1), (28, 3, 2, 1, 1), (7, 3, 1, 1, 1),
    (14, 3, 2, 1, 1), (15, 3, 2, 1, 1), (17, 5, 1, 2, 1), (33, 5, 2, 2, 1), (61, 3, 1, 2, 2),
    (40, 3, 1, 0, 1), (129, 3, 1, 1, 1), (300, 3, 1, 1, 1), (19, 3, 2, 0, 1), (13, 4, 1, 2, 1),
]  # fmt: skip


def text_of(form: str, w: int, k: int, s: int, pad: int, d: int, t: str = "float32") -> str:
    h = min(w, 11)
    oh, ow = ((n + 2 * pad - d * (k - 1) - 1) // s + 1 for n in (h, w))
    return form.format(t=t, c=5, h=h, w=w, oh=oh, ow=ow, k=k, s=s, pad=pad, d=d)


def check(text: str, **given: Any) -> fk.Kernel:
    """Compile and compare with the reference; small integers, so that sums are exact."""
    kernel = fk.compile(text)
    rng = np.random.default_rng(0)
    inputs = {}
    for t in kernel.program.inputs:
        shape = [int(x.value) for x in t.shape if isinstance(x, Const)]
        inputs[t.name] = rng.integers(-9, 9, shape).astype(t.dtype.numpy)
    inputs |= given
    expected = run(kernel.program, inputs, {}).values[kernel.program.outputs[0].name]
    np.testing.assert_array_equal(kernel(**inputs), expected)
    return kernel


@pytest.mark.parametrize("shape", SHAPES)
def test_depthwise(shape: tuple[int, int, int, int, int]) -> None:
    check(text_of(DEPTHWISE, *shape))


@pytest.mark.parametrize("shape", SHAPES[:6])
def test_groups_and_doubles(shape: tuple[int, int, int, int, int]) -> None:
    check(text_of(GROUPED, *shape))
    check(text_of(DEPTHWISE, *shape, t="float64"))


def test_lanes_go_along_rows_without_copies() -> None:
    kernel = check(text_of(DEPTHWISE, 56, 3, 1, 1, 1))
    script = str(kernel.schedule)
    assert "vectorize S0: q_i" in script
    assert "local" not in script
    # The leftmost vector leaves out its first lane, and the last one those behind the row.
    assert "fk_among_f32x16(1, 16, " in kernel.source
    assert "fk_put_f32x16(" in kernel.source


def test_padding_is_left_out_and_not_taken_for_zeros() -> None:
    """A weight that meets only padding may be infinite: 0 times it would not be 0."""
    text = text_of(DEPTHWISE, 14, 3, 1, 1, 1)
    text = text.replace("u in 0:3,", "u in 0:3, 1 <= q + u,")
    weights = np.ones((5, 3, 3), np.float32)
    kernel = fk.compile(text)
    image = np.ones((5, 11, 14), np.float32)
    weights[:, :, 0] = np.inf
    result = kernel(X=image, W=weights, B=np.zeros(5, np.float32))
    assert np.isfinite(result[:, :, 0]).all()
    assert np.isinf(result[:, :, 1:]).all()
    assert not np.isnan(result).any()


@pytest.mark.parametrize("taps", [(5, 5), (11, 11), (3, 9), (9, 2)])
def test_without_padding_only_the_taps_of_a_column_are_unrolled(taps: tuple[int, int]) -> None:
    """Many rows of a tile read the same vectors then."""
    u, v = taps
    text = stencil(60, 100, u, v)
    script = automatic(text).splitlines()
    assert {"split S0: i by 12 as i_o, i_i", "unroll S0: u"} <= {*script}
    assert "unroll S0: v" not in script
    check(text)


def test_one_row_of_taps_reuses_no_vectors() -> None:
    text = stencil(60, 100, 1, 9)
    assert "split S0: j by 32 as j_o, j_i" in automatic(text).splitlines()
    check(text)


@pytest.mark.parametrize(("tactic", "lanes"), [("contraction", 32), ("stencil", 16)])
def test_a_point_may_ask_for_the_tile_that_seems_worse(tactic: str, lanes: int) -> None:
    start = fk.Schedule.of(fk.parse(stencil(60, 100, 5, 5)))
    space = Space(start, AVX512, CPU.strategy)
    point = Point(picks=((tuple(start.statements), Pick(tactic)),))
    assert f"split S0: j by {lanes} as j_o, j_i" in str(space.schedule(point)).splitlines()
