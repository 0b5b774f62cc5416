"""Lanes around other loops: windows, sums of columns; and rows in one pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.dtypes import DTYPES
from runtime.reference import run
from tests.differential.harness import difference

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
        / float32((min({s}*q-{pad}+{k}, {w}) - max({s}*q-{pad}, 0)) * {k}) - X[n,c,0,q]
        where n in 0:2, c in 0:3, p in 0:{oh}, q in 0:{ow}
}}"""
SHAPES = [(17, 3, 2, 1), (40, 3, 2, 1), (112, 3, 2, 1), (13, 3, 2, 0), (56, 2, 2, 0), (36, 3, 1, 1),
          (9, 5, 1, 2), (7, 7, 1, 3), (20, 3, 3, 0), (5, 5, 1, 0), (34, 2, 1, 1), (1, 1, 1, 0)]  # fmt: skip


def pool(text: str, w: int, k: int, s: int, pad: int, **more: Any) -> str:
    h = min(w, 12)
    sizes = {"h": h, "w": w, "oh": (h + 2 * pad - k) // s + 1, "ow": (w + 2 * pad - k) // s + 1}
    return text.format(k=k, s=s, pad=pad, **sizes, **more)


def check(text: str, sizes: dict[str, int] | None = None, **options: Any) -> str:
    """Compile, compare with the reference, and give the schedule's tree."""
    kernel = fk.compile(text, **options)
    rng = np.random.default_rng(0)
    inputs = {}
    for t in kernel.program.inputs:
        shape = [int(fk.evaluate_size(x, sizes or {})) for x in t.shape]
        inputs[t.name] = rng.integers(-9, 9, shape).astype(DTYPES[t.dtype.name].numpy)
    expected = run(kernel.program, inputs, sizes or {})
    got = kernel(**inputs)
    names = [t.name for t in kernel.program.outputs]
    for name, array in zip(names, got if isinstance(got, tuple) else (got,), strict=True):
        assert not difference(expected, name, array, kernel.program)
    return kernel.schedule.show
