"""The verifier of the loop IR, and its text form: one wrong tree for each rule."""

from __future__ import annotations

import pytest

import farkas as fk
from codegen.c.function import c_loops
from codegen.loops.nodes import Block, Buffer, For, If, LoopNode, Store, Tile
from codegen.loops.traverse import children_of, map_exprs, show_loops, walk_loops
from codegen.loops.verify import LoopError, verify_loops
from poly.ir.dtypes import DTYPES
from poly.ir.expr import Const, Index, Op, Read, add
from poly.ir.layout import Layout
from poly.passes import Pass, run_passes
from poly.tree.kinds import Scope

PROGRAM = fk.parse("def f(float32 X[8,8]) -> (Y) { Y[i] +=! X[i,j] }")
FLOAT = DTYPES["float32"]
ROW, COLUMN, ZERO, EIGHT = Index("i"), Index("j"), Const(0), Const(8)
X, Y = Read("X", (ROW, COLUMN)), Read("Y", (ROW,))
STORE = Store(Y, "+=", X, FLOAT, "S0")
INNER = For("j", ZERO, EIGHT, 1, STORE)
GOOD = For("i", ZERO, EIGHT, 1, INNER)


def buffer(name: str, shape: tuple[int, ...], body: LoopNode) -> Buffer:
    return Buffer(name, "Y", FLOAT, shape, Layout(tuple(range(len(shape)))), Scope.REGISTER, body)


def with_body(body: LoopNode) -> LoopNode:
    return For("i", ZERO, EIGHT, 1, body)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (INNER, "variable i is used outside its loop"),
        (with_body(GOOD), "variable i is bound twice"),
        (with_body(Tile((("i", ZERO),), INNER)), "variable i is bound twice"),
        (with_body(If(Op("lt", (COLUMN, EIGHT)), INNER)), "variable j is used outside its loop"),
        (For("i", ZERO, EIGHT, 0, INNER), "loop i has step 0"),
        (with_body(Store(Read("Z", (ROW,)), "=", Const(0.0), FLOAT, "S0")), "is in no tensor"),
        (with_body(Store(Read("Y", (ROW, ROW)), "=", Const(0.0), FLOAT, "S0")), "expected 1"),
        (with_body(Store(Y, "=", Read("Y_r", (ROW,)), FLOAT, "S0")), "is in no tensor"),
        (with_body(buffer("X", (4,), STORE)), "buffer X has the name of a tensor"),
        (with_body(buffer("Y_r", (0,), STORE)), "has the shape"),
        (with_body(buffer("Y_r", (4, 2), Store(Read("Y_r", (ROW,)), "=", Y, FLOAT, "S0"))),
         "Y_r\\[i\\] has 1 indices, expected 2"),
        (with_body(Store(Y, "=", Const(0.0), DTYPES["float64"], "S0")), "the target is float32"),
        (with_body(Store(Y, "=", Op("bitand", (Y, Y)), FLOAT, "S0")), "bitand|takes"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule(tree: LoopNode, message: str) -> None:
    with pytest.raises(LoopError, match=message):
        verify_loops(tree, PROGRAM)


def test_the_pass_that_breaks_a_tree_is_named() -> None:
    def keep(tree: LoopNode) -> LoopNode:
        return tree

    def lose_the_loop(tree: LoopNode) -> LoopNode:
        return INNER

    passes = [Pass(keep), Pass(lose_the_loop), Pass(keep)]
    with pytest.raises(LoopError) as caught:
        run_passes(GOOD, passes, None, lambda tree: verify_loops(tree, PROGRAM))
    assert caught.value.__notes__ == ["after the pass lose_the_loop"]
    assert run_passes(GOOD, passes[:1], None, lambda tree: verify_loops(tree, PROGRAM)) is GOOD


def test_what_breaks_none() -> None:
    for tree in (GOOD, Block(()), with_body(buffer("Y_r", (8,), Block((INNER, INNER))))):
        assert verify_loops(tree, PROGRAM) is tree


def test_the_text_form() -> None:
    tree = with_body(If(Op("lt", (ROW, Const(4))), buffer("Y_r", (8,), INNER), STORE_0))
    assert show_loops(tree).splitlines() == [
        "for i in 0:8",
        "  if i < 4",
        "    register float32 Y_r[8]",
        "      for j in 0:8",
        "        Y[i] += X[i, j]",
        "  else",
        "    Y[i] = 0.0",
    ]


STORE_0 = Store(Y, "=", Const(0.0), FLOAT, "S0_init")


def test_every_node_of_a_kernel_has_a_line_of_text() -> None:
    text = "def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
    schedule = fk.auto_schedule(fk.Schedule.of(fk.parse(text)))
    root = c_loops(schedule)
    nodes = [n for n in walk_loops(root) if not isinstance(n, Block)]
    assert len(show_loops(root).splitlines()) >= len(nodes) > 50
    assert fk.compile(text).loops == show_loops(root)


def test_mapping_expressions_reaches_all_of_them() -> None:
    moved = map_exprs(GOOD, lambda e: e if isinstance(e, Read) else add(e, Const(1)))
    (inner,) = children_of(moved)
    assert isinstance(moved, For) and isinstance(inner, For)
    assert (moved.lower, moved.upper) == (Const(1), Const(9)) == (inner.lower, inner.upper)
