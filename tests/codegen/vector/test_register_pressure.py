"""Tiles whose taps read elements again: these are not kept where registers do not suffice."""

from __future__ import annotations

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from codegen.loops.nodes import (
    Block,
    Buffer,
    CompilerFence,
    If,
    LoopNode,
    Store,
    VectorStore,
    block,
)
from codegen.vector.register_pressure import limit_register_pressure
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Index, Read, add, mul
from poly.ir.layout import Layout
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.auto_schedule import auto_schedule
from tests.machines import ONE_CORE
from tests.poly.texts import program

FENCE = '__asm__ volatile ("" : : : "memory");'
CONVOLUTION = """def f(float32 X[3,{h},{h}], float32 W[{c},3,{k},{k},32]) -> (Y) {{
    Y[f,p,q] +=! X[c,{s}*p+r-{pad},{s}*q+u-{pad}] * W[f//32,c,r,u,f%32]
        where f in 0:{f}, p in 0:{o}, q in 0:{o}, r in 0:{k}, u in 0:{k},
              0 <= {s}*p+r-{pad} < {h}, 0 <= {s}*q+u-{pad} < {h}
}}"""


def convolution(h: int, k: int, s: int) -> str:
    return CONVOLUTION.format(h=h, k=k, s=s, c=1, f=32, pad=k // 2, o=(h - 1) // s + 1)


@pytest.mark.parametrize(("h", "k", "s"), [(56, 7, 2), (56, 3, 2), (28, 5, 1), (28, 3, 1)])
def test_taps_of_a_full_tile_are_apart(h: int, k: int, s: int) -> None:
    text = convolution(h, k, s)
    source = generate(auto_schedule(Schedule.of(program(text)), ONE_CORE)).text
    assert source.count(FENCE) == k - 1
    kernel = fk.compile(text)
    rng = np.random.default_rng(0)
    image = rng.integers(-4, 5, (3, h, h)).astype(np.float32)
    weights = rng.integers(-4, 5, (1, 3, k, k, 32)).astype(np.float32)
    padded = np.pad(image, ((0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (1, 2))[:, ::s, ::s]
    assert np.array_equal(kernel(image, weights), np.einsum("cpqru,cruf->fpq", windows, weights[0]))


@pytest.mark.parametrize(
    "text",
    [
        "def f(float32 A[64,64], float32 B[64,64]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        # Taps that do not meet, and vectors that are to be kept from tap to tap.
        convolution(56, 2, 2),
        """def f(float32 X[8,28,28], float32 W[8,3,3]) -> (Y) {
            Y[c,p,q] +=! X[c,p+r-1,q+u-1] * W[c,r,u]
                where p in 0:28, q in 0:28, 0 <= p+r-1 < 28, 0 <= q+u-1 < 28
        }""",
    ],
)
def test_nothing_else_is_apart(text: str) -> None:
    assert FENCE not in generate(auto_schedule(Schedule.of(program(text)), ONE_CORE)).text


def rounds(accumulators: int, taps: int, lanes: int) -> tuple[LoopNode, LoopNode]:
    """A tile of so many accumulators, the sum of neighbours; the last tap has a condition."""

    def update(tap: int, n: int) -> LoopNode:
        value = mul(Read("X", (add(Index("i"), Const(n + tap)),)), Read("W", (Index("l"),)))
        store = Store(Read("T", (Const(n), Index("l"))), "+=", value, FLOAT32, "s")
        done = VectorStore(store, "l", lanes)
        return done if tap < taps - 1 else If(Index("i"), done)

    body = block([update(t, n) for t in range(taps) for n in range(accumulators)])
    tile = Buffer("T", "Y", FLOAT32, (accumulators, lanes), Layout((0, 1)), "register", body)
    return tile, limit_register_pressure(tile)


@pytest.mark.parametrize(
    ("accumulators", "taps", "lanes", "count"),
    [(28, 3, 16, 2), (8, 3, 16, 0), (28, 1, 16, 0), (8, 3, 8, 0), (12, 3, 8, 2)],
)
def test_where_registers_suffice_all_is_kept(
    accumulators: int, taps: int, lanes: int, count: int
) -> None:
    before, after = rounds(accumulators, taps, lanes)
    assert isinstance(before, Buffer) and isinstance(after, Buffer)
    assert isinstance(before.body, Block) and isinstance(after.body, Block)
    kept = [n for n in after.body.children if not isinstance(n, CompilerFence)]
    assert tuple(kept) == before.body.children
    places = [k for k, n in enumerate(after.body.children) if isinstance(n, CompilerFence)]
    assert len(places) == count
    assert places == [(accumulators + 1) * (k + 1) - 1 for k in range(count)]
