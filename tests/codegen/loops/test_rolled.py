"""Unrolled loops that are left to the C compiler: which they are, and that it unrolls them."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_unit import generate
from codegen.loops.nodes import Block, For, If, LoopNode, Store, VectorStore, block
from codegen.loops.rolled import MOST, at_points, can_roll
from codegen.loops.traverse import walk_loops
from codegen.loops.unroll import unroll, unroll_irregular
from codegen.loops.unswitch import unswitch
from codegen.vector.unroll_sums import TERMS
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Expr, Index, Op, Read, Size, add, mul, sub
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.auto_schedule import auto_schedule
from poly.tree.kinds import Mark
from runtime.cpu.toolchain import Toolchain
from tests.machines import ONE_CORE
from tests.poly.texts import program

PRODUCT = "def f(float32 A[96,64], float32 B[64,96]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
ROW, COLUMN, LANE = Index("i"), Index("j"), Index("l")


def loop(var: str, count: int, body: LoopNode, **fields: object) -> For:
    made = For(var, Const(0), Const(count), 1, body, Mark.UNROLL)
    return replace(made, **fields)  # type: ignore[arg-type]


def store(target: tuple[Expr, ...], value: Expr, op: str = "+=") -> VectorStore:
    return VectorStore(Store(Read("R", target), op, value, FLOAT32, "S"), "l", 16)


HALF_ROW = Op("floordiv", (ROW, Const(2)))
QUARTER_LANE = Op("floordiv", (LANE, Const(4)))
SECOND_LANE, THIRD_LANE = mul(Const(2), LANE), mul(Const(3), LANE)
#: In the first row all lanes, in the others as many as N says.
KNOWN = Op(
    "max", (sub(Const(16), mul(Const(16), ROW)), Op("min", (mul(ROW, Size("N")), Const(16))))
)


#: R[i, 16 j + l] += A[i] * B[16 j + l]
UPDATE = store(
    (ROW, add(mul(Const(16), COLUMN), LANE)),
    mul(Read("A", (ROW,)), Read("B", (add(mul(Const(16), COLUMN), LANE),))),
)


def test_a_tile_is_rolled() -> None:
    tile = loop("i", 4, loop("j", 2, UPDATE))
    assert can_roll(tile, ())
    assert unroll_irregular(tile) == tile
    assert sum(isinstance(n, VectorStore) for n in walk_loops(unroll(tile))) == 8


def test_every_other_element_may_be_read_and_written() -> None:
    assert can_roll(loop("i", 4, store((ROW, LANE), Read("X", (ROW, SECOND_LANE)))), ())
    assert can_roll(loop("i", 4, store((ROW, SECOND_LANE), Read("X", (ROW, LANE)))), ())


@pytest.mark.parametrize(
    ("why", "node"),
    [
        ("a single iteration", loop("i", 1, UPDATE)),
        ("too many", loop("i", MOST + 1, UPDATE)),
        ("steps", loop("i", 8, UPDATE, step=2)),
        ("bounds", loop("i", 4, UPDATE, upper=Size("N"))),
        ("a store that does not move", loop("k", 4, UPDATE)),
        ("masks that are known in some iterations", loop("i", 4, replace(UPDATE, last=KNOWN))),
        ("an element updated twice", loop("i", 4, Block((UPDATE, UPDATE)))),
        ("a value", loop("i", 4, store((ROW, LANE), ROW))),
        ("lanes apart", loop("i", 4, store((ROW, LANE), Read("X", (THIRD_LANE,))))),
        ("a target of lanes apart", loop("i", 4, store((ROW, THIRD_LANE), Read("X", (LANE,))))),
        ("lanes in rows", loop("i", 4, store((ROW, LANE), Read("X", (LANE, ROW))))),
        ("quotients of lanes", loop("i", 4, store((ROW, LANE), Read("X", (QUARTER_LANE,))))),
        ("quotients in a target", loop("i", 4, store((HALF_ROW, LANE), Const(0.0)))),
        ("another kind of loop inside", loop("i", 4, replace(loop("j", 2, UPDATE), mark=Mark.SEQ))),
        ("a branch with two sides", loop("i", 4, If(Op("lt", (ROW, Size("N"))), UPDATE, UPDATE))),
    ],
)  # fmt: skip
def test_what_is_not_rolled(why: str, node: For) -> None:
    assert not can_roll(node, ()), why


@pytest.mark.parametrize(
    "last", [Const(7), Op("min", (sub(Size("N"), mul(Const(16), COLUMN)), Const(16)))]
)
def test_masks_of_one_form_are_rolled(last: Expr) -> None:
    """Those that are the same in all iterations, or known in none."""
    tile = loop("i", 4, loop("j", 2, replace(UPDATE, last=last)))
    assert can_roll(tile, ())


def test_copies_have_masks_of_their_own() -> None:
    last = Op("min", (sub(Size("N"), mul(Const(16), COLUMN)), Const(16)))
    ranges = {"i": range(2), "j": range(2)}
    assert [*map(str, at_points(last, ranges))] == ["min(N, 16)", "min(N - 16, 16)"] * 2
    assert [*map(str, at_points(Size("N"), ranges))] == ["N"] * 4


def test_buffers_that_are_told_apart_are_not_rolled() -> None:
    assert not can_roll(loop("i", 4, UPDATE), {"R"})


def test_conditions_stay_inside() -> None:
    """A row that may not exist is a condition in the loop, which may also read a clamped row."""
    row = Op("min", (ROW, Op("sub", (Size("N"), Const(1)))))
    body = If(Op("lt", (ROW, Size("N"))), store((ROW, LANE), Read("X", (row, LANE))))
    assert can_roll(loop("i", 4, body), ())


def test_conditions_are_hoisted_out_of_rolled_loops() -> None:
    """Those on sizes are; those on the rolled variable stay."""
    known, own = Op("lt", (Const(3), Size("N"))), Op("lt", (ROW, Size("N")))
    inner = loop("i", 4, block([If(known, UPDATE), If(own, store((ROW, LANE), Const(0.0), "="))]))
    outer = For("k", Const(0), Size("K"), 1, loop("j", 2, inner))
    made = unswitch(outer)
    assert isinstance(made, If) and made.cond == known
    for side in (made.then, made.other):
        assert isinstance(side, For) and side.var == "k"
        assert [n.cond for n in walk_loops(side) if isinstance(n, If)] == [own]


def text_of(source: str) -> str:
    return generate(auto_schedule(Schedule.of(program(source)), ONE_CORE)).text


def test_a_product_is_short_and_right() -> None:
    text = text_of(PRODUCT)
    assert re.search(r"fk_f32x16 C_r\[\d+\]\[\d+\];", text)
    assert text.count("FK_UNROLL\n") >= 6 and len(text.splitlines()) < 130
    assert '_Pragma("clang loop unroll(full)")' in text and '_Pragma("GCC unroll 64")' in text
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float32) for s in ((96, 64), (64, 96)))
    assert np.array_equal(fk.compile(PRODUCT)(a, b), a @ b)


def test_registers_stay_registers(toolchain: Toolchain, tmp_path: Path) -> None:
    """The compiler keeps the array of a tile in registers: no vector of it goes to the stack."""
    if toolchain.kind != "gcc" or "avx512" not in features_of(toolchain):
        pytest.skip("the tile is made for gcc and vectors of 64 bytes")
    (tmp_path / "f.c").write_text(text_of(PRODUCT))
    line = [*toolchain.command, *toolchain.flags, "-S", "f.c", "-o", "f.s"]
    subprocess.run(line, cwd=tmp_path, check=True)
    made = (tmp_path / "f.s").read_text()
    tile = re.search(r"fk_f32x16 C_r\[(\d+)\]\[(\d+)\];", (tmp_path / "f.c").read_text())
    assert tile is not None
    # gcc unrolls the loop over terms, and peels what remains of it.
    terms, left = divmod(len(re.findall(r"vfmadd\w+ps.*zmm", made)), int(tile[1]) * int(tile[2]))
    assert left == 0 and TERMS <= terms < 2 * TERMS
    assert not re.search(r"vmov\w+\s.*zmm\d+, .*\(%r[sb]p", made)


def features_of(toolchain: Toolchain) -> str:
    """The macros of the processor's features."""
    line = [*toolchain.command, *toolchain.flags, "-dM", "-E", "-x", "c", "/dev/null"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.lower()
