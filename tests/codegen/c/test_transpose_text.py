"""Transposed stores: rows of one form are a loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import farkas as fk
from codegen.c.transpose_text import NUMBER, _general
from codegen.loops.nodes import Store, VectorStore
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Expr, Index, Op, Read, add, mul

LANE = Index("l")


def row(number: int, value: Expr) -> VectorStore:
    target = Read("Y", (LANE, add(mul(Const(8), Index("q")), Const(number))))
    return VectorStore(Store(target, "=", value, FLOAT32, "S"), "l", 16)


def value(number: int, bias: Expr) -> Expr:
    return Op("add", (Read("R", (Const(number), LANE)), Read("B", (bias,))))


def test_rows_of_one_form() -> None:
    general = _general([row(k, value(k, LANE)) for k in range(8)])
    assert general is not None
    target, reads = general.store.target, general.store.value
    assert str(target) == f"Y[l, 8 * q + {NUMBER.name}]"
    assert str(reads) == f"R[{NUMBER.name}, l] + B[l]"


def test_rows_of_several_forms() -> None:
    """Steps that differ, other values, or other masks."""
    rows = [row(k, value(k, LANE)) for k in range(8)]
    assert _general([*rows[:2], rows[5]]) is None
    assert _general([*rows[:7], row(7, Const(0.0))]) is None
    assert _general([*rows[:7], replace(rows[7], last=Const(3))]) is None
    assert _general(rows[:1]) is None


def test_a_product_with_a_transposed_result() -> None:
    text = "def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[j,i] +=! A[i,k] * B[k,j] }"
    kernel = fk.compile(text)
    rng = np.random.default_rng(1)
    for m, k, n in ((1, 1, 1), (8, 3, 32), (9, 5, 33), (30, 2, 70)):
        a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((m, k), (k, n)))
        assert np.array_equal(kernel(a, b), (a @ b).T), (m, k, n)
    matrix = fk.compile(text, sizes={"M": 64, "K": 8, "N": 64}).source
    assert "fk_transpose_f32x16(" in matrix and f"[{NUMBER.name}] = " in matrix
