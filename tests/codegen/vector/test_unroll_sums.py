"""Loops over the terms of sums in registers: which take several at once, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.c.type_names import UNROLLED_BY
from codegen.loops.nodes import Block, Buffer, For, If, LoopNode, Store, VectorStore, block
from codegen.loops.traverse import walk_loops
from codegen.vector.unroll_sums import MOST, TERMS, unroll_sums
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Expr, Index, Read
from poly.ir.layout import Layout
from poly.tree.kinds import Mark, Scope

RNG = np.random.default_rng(0)
UNKNOWN = Index("K")
TERM = Read("X", (Index("k"), Index("l")))


def update(n: int, target: str = "T", op: str = "+=") -> LoopNode:
    return VectorStore(Store(Read(target, (Const(n), Index("l"))), op, TERM, FLOAT32, "s"), "l", 16)


def tile(
    body: LoopNode, upper: Expr = UNKNOWN, mark: Mark = Mark.SEQ, scope: Scope = Scope.REGISTER
) -> list[For]:
    """The loops of a tile of 64 vectors around a loop over terms, as the pass leaves them."""
    loop = For("k", Const(0), upper, 1, body, mark)
    whole = Buffer("T", "Y", FLOAT32, (64, 16), Layout((0, 1)), scope, loop)
    return [n for n in walk_loops(unroll_sums(whole)) if isinstance(n, For)]


def rolled(count: int, body: LoopNode) -> For:
    return For("i", Const(0), Const(count), 1, body, Mark.UNROLL)


def test_terms_are_added_several_at_once() -> None:
    assert [n.at_once for n in tile(block([update(0), update(1)]))] == [TERMS]
    assert [n.at_once for n in tile(rolled(8, rolled(2, update(0))))] == [TERMS, 1, 1]
    assert [n.at_once for n in tile(update(0), Const(TERMS + 1))] == [TERMS]


@pytest.mark.parametrize(
    "body",
    [
        rolled(MOST // TERMS + 1, update(0)),  # long enough
        Block((update(0), update(1, "Z"))),  # another element is in memory
        update(0, op="="),
        If(Index("k"), update(0)),
    ],
)
def test_others_are_not(body: LoopNode) -> None:
    assert {n.at_once for n in tile(body)} == {1}


def test_neither_are_short_or_shared_loops_or_those_that_add_to_memory() -> None:
    assert [n.at_once for n in tile(update(0), Const(TERMS))] == [1]
    assert [n.at_once for n in tile(update(0), mark=Mark.PARALLEL)] == [1]
    assert [n.at_once for n in tile(update(0), scope=Scope.LOCAL)] == [1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("terms", [None, 7, 256])
def test_any_number_of_terms(dtype: str, terms: int | None) -> None:
    sizes = {} if terms is None else {"K": terms}
    text = f"def f({dtype} A[M,K], {dtype} B[K,N]) -> (C) {{ C[i,j] +=! A[i,k] * B[k,j] }}"
    kernel = fk.compile(text, sizes=sizes)
    assert f"{UNROLLED_BY}{TERMS}\n" in kernel.source
    for k in [*range(10), 31, 67] if terms is None else [terms]:
        a = RNG.integers(-9, 10, (29, k)).astype(dtype)
        b = RNG.integers(-9, 10, (k, 45)).astype(dtype)
        assert np.array_equal(kernel(a, b), a @ b)


def test_instructions_of_the_processor_count_as_updates() -> None:
    text = """def f(uint8 A[64,K], int8 B[K,64]) -> (C) {
        C[i,j] +=! int32(A[i,k]) * int32(B[k,j]) }"""
    kernel = fk.compile(text, sizes={"K": 128})
    a = RNG.integers(0, 256, (64, 128)).astype(np.uint8)
    b = RNG.integers(-128, 128, (128, 64)).astype(np.int8)
    assert f"{UNROLLED_BY}{TERMS}\n" in kernel.source
    assert np.array_equal(kernel(a, b), a.astype(np.int32) @ b.astype(np.int32))
