"""Operands in 16-bit floats: which are converted before, which are packed as float32."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16

import farkas as fk
from poly.machine.cpu import Machine
from poly.rewrites.widen_sums import widen_sums
from poly.strategy.cpu.widen_operands import widen_operands
from tests.machines import AVX512, ONE_CORE, automatic

PRODUCT = "def f({t} A[{m},{k}], {t} B[{k},{n}]) -> (C) {{ C[i,j] +=! A[i,k] * B[k,j] }}"
BATCH = """def f(float16 A[8,64,64], float16 B[8,64,64]) -> (C) {
    C[b,i,j] +=! A[b,i,k] * B[b,k,j]
}"""
NUMPY = {"float16": np.float16, "bfloat16": bfloat16}


def converted(text: str, machine: Machine = AVX512) -> set[str]:
    """The tensors of which a program makes a wider copy."""
    program = widen_sums(fk.parse(text))
    before = {t.name for t in program.temps}
    made = widen_operands(program, machine)
    return {t.name.removesuffix("_wide") for t in made.temps} - {
        n.removesuffix("_wide") for n in before
    }


@pytest.mark.parametrize(
    ("text", "tensors"),
    [
        (PRODUCT.format(t="float16", m=600, k=512, n=512), {"A"}),
        (PRODUCT.format(t="bfloat16", m=600, k=512, n=512), {"A"}),
        (PRODUCT.format(t="float32", m=600, k=512, n=512), set()),
        (PRODUCT.format(t="float16", m=256, k=256, n=256), set()),  # few tiles need the same rows
        (PRODUCT.format(t="float16", m=16, k=16, n=16), set()),  # too little work
        (BATCH, set()),  # promoted for each of its products
        ("def f(float16 X[512,512], float16 G[512]) -> (Y) { Y[i,j] = X[i,j] * G[j] }", {"G"}),
        ("def f(float16 X[512,512], float16 G[512]) -> (Y) { Y[i,j] = X[i,j] * G[i] }", set()),
        ("def f(float16 X[512,512]) -> (X) { X[i,j] = X[0,j] * 2 }", set()),  # it changes
    ],
)  # fmt: skip
def test_what_is_converted_before(text: str, tensors: set[str]) -> None:
    assert converted(text) == tensors


def test_one_thread_converts_once_for_all_tiles() -> None:
    text = PRODUCT.format(t="float16", m=256, k=256, n=256)
    assert "i_o as A, local, float32" in automatic(text)  # each tile its own rows
    assert converted(text, ONE_CORE) == {"A"}
    assert "as A, local, float32" not in automatic(text, ONE_CORE)


def test_tiles_of_a_block_share_rows() -> None:
    text = PRODUCT.format(t="float16", m=128, k=3072, n=768)
    assert converted(text) == set()
    assert "k_p as A, local, float32" in automatic(text)


def test_packed_operands_are_wide() -> None:
    script = str(fk.compile(PRODUCT.format(t="float16", m=256, k=256, n=256)).schedule)
    assert "as B, local, 0, 1, float32" in script
    script = str(fk.compile(BATCH).schedule)
    assert "b as A, local, float32" in script


@pytest.mark.parametrize("t", NUMPY)
@pytest.mark.parametrize(
    "sizes", [(64, 64, 64), (37, 100, 53), (8, 300, 17), (130, 7, 40), (1, 9, 70)]
)
def test_products(t: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal(shape).astype(NUMPY[t]) for shape in ((m, k), (k, n)))
    wide = a.astype(np.float64) @ b.astype(np.float64)
    one = float(np.finfo(np.float16).eps) if t == "float16" else 2.0**-7
    for text in (PRODUCT.format(t=t, m=m, k=k, n=n), PRODUCT.format(t=t, m="M", k="K", n="N")):
        made = fk.compile(text)(A=a, B=b).astype(np.float64)
        assert (np.abs(made - wide) <= one / 2 * np.abs(wide) + 1e-5 * k).all()
