"""Loops inside of a tile, by whether all of its rows take part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import farkas as fk
from codegen.loops.nodes import Buffer, For, If, LoopNode, Store, block
from codegen.loops.traverse import walk_loops
from codegen.loops.version_rows import version_rows
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Expr, Index, Op, Read, Size, add, mul, sub
from poly.ir.layout import Layout
from poly.tree.kinds import Mark, Scope
from tests.codegen.loops.interpret import events

ROW, TAP, TILE = Index("i"), Index("s"), Index("o")
#: The rows of a tile that a tap of a filter of three reads: 8 o + i + s - 1 in 0:N.
FIRST = Op("max", (sub(sub(Const(1), TAP), mul(Const(8), TILE)), Const(0)))
PADDED = sub(add(Size("N"), Const(1)), add(TAP, mul(Const(8), TILE)))
LAST = Op("min", (PADDED, Op("min", (sub(Size("N"), mul(Const(8), TILE)), Const(8)))))


#: All rows of a tile.
ROWS = Op("min", (sub(Size("N"), mul(Const(8), TILE)), Const(8)))


def tile(first: Expr, last: Expr) -> LoopNode:
    zero = Store(Read("R", (ROW,)), "=", Const(0.0), FLOAT32, "S_init")
    start = For("i", Const(0), ROWS, 1, zero, Mark.UNROLL, limits=(0, 7))
    update = Store(Read("R", (ROW,)), "+=", Read("X", (ROW, Index("c"))), FLOAT32, "S")
    rows = For("i", first, last, 1, update, Mark.UNROLL, limits=(0, 7))
    inner = For("c", Const(0), Size("C"), 1, rows)
    taps = For("s", Const(0), Const(3), 1, inner)
    registers = Buffer("R", "T", FLOAT32, (8,), Layout((0,)), Scope.REGISTER, block([start, taps]))
    return For("o", Const(0), Op("div", (add(Size("N"), Const(7)), Const(8))), 1, registers)


def test_a_tap_that_all_rows_take_part_in() -> None:
    made = version_rows(tile(FIRST, LAST))
    (version,) = [n for n in walk_loops(made) if isinstance(n, If)]
    assert str(version.cond) == "0 < s + 8 * o and s + 8 * o + min(N - 8 * o, 8) < N + 2"
    whole, part = version.then, version.other
    assert isinstance(whole, For) and isinstance(part, For)
    assert isinstance(whole.body, For) and isinstance(part.body, For)
    assert (whole.body.lower, whole.body.upper) == (Const(0), ROWS)
    assert (part.body.lower, part.body.upper) == (FIRST, LAST)
    for size in (0, 1, 2, 7, 8, 9, 17, 24):
        sizes = {"N": size, "C": 2}
        assert list(events(made, sizes)) == list(events(tile(FIRST, LAST), sizes))


@pytest.mark.parametrize(
    ("why", "node"),
    [
        ("bounds that no tap changes", tile(Const(0), ROWS)),
        ("bounds that the loop itself changes", tile(Const(0), add(Index("c"), TAP))),
        ("other rows than those of the tile", tile(FIRST, PADDED)),
    ],
)
def test_one_version(why: str, node: LoopNode) -> None:
    assert version_rows(node) == node, why


def test_loops_outside_of_tiles_stay() -> None:
    node = tile(FIRST, LAST)
    assert isinstance(node, For) and isinstance(node.body, Buffer)
    local = replace(node, body=replace(node.body, scope=Scope.LOCAL))
    assert version_rows(local) == local


CONVOLUTION = """def convolution(float32 X[C,H,W], float32 F[K,C,3,3]) -> (Y) {
    Y[k,p,q] +=! X[c,p+r-1,q+s-1] * F[k,c,r,s]
        where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W
}"""


def test_a_convolution_of_open_sizes_is_short_and_right() -> None:
    kernel = fk.compile(CONVOLUTION)
    assert len(kernel.source.splitlines()) < 650
    rng = np.random.default_rng(0)
    for c, h, w, k in ((1, 1, 1, 1), (3, 2, 9, 32), (2, 5, 8, 40), (5, 3, 17, 33), (2, 4, 24, 64)):
        x = rng.integers(-3, 4, (c, h, w)).astype(np.float32)
        f = rng.integers(-3, 4, (k, c, 3, 3)).astype(np.float32)
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        assert np.array_equal(kernel(x, f), np.einsum("cpqrs,kcrs->kpq", windows, f)), (c, h, w, k)
