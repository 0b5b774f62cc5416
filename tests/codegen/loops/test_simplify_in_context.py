"""Bounds and conditions in the context of the loops and conditions around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.loops.nodes import Block, For, If, LoopNode, Store, VectorStore, block
from codegen.loops.simplify_in_context import simplify_in_context
from codegen.loops.tidy import tidied, tidy, tidy_condition
from codegen.loops.traverse import walk_loops
from poly.ir.dtypes import FLOAT32
from poly.ir.expr import Const, Expr, Index, Op, Read, Size, add, mul, sub
from poly.ir.program import Program
from tests.codegen.loops.interpret import events, value_of
from tests.poly.texts import program

ROW, COLUMN, N, M = Index("i"), Index("j"), Size("N"), Size("M")
EMPTY = program("def f(float32 A[N,M]) -> (B) { B[i,j] = A[i,j] }")


def le(a: Expr, b: Expr) -> Expr:
    return Op("le", (a, b))


def lt(a: Expr, b: Expr) -> Expr:
    return Op("lt", (a, b))


def least(a: Expr, b: Expr) -> Expr:
    return Op("min", (a, b))


def most(a: Expr, b: Expr) -> Expr:
    return Op("max", (a, b))


def store(*indices: Expr, tensor: str = "B") -> Store:
    return Store(Read(tensor, indices), "=", Const(0.0), FLOAT32, "S")


def loop(var: str, lower: Expr, upper: Expr, body: LoopNode) -> For:
    return For(var, lower, upper, 1, body)


def simplified(node: LoopNode, of: Program = EMPTY) -> LoopNode:
    return simplify_in_context(node, of)


LEAF = store(ROW, COLUMN)
EIGHT = mul(Const(8), ROW)


def test_extrema_are_decided() -> None:
    """Where a tile is full, its loops run over all of it: from the greater, and to the lesser."""
    rows = loop("j", most(sub(Const(1), EIGHT), Const(0)), least(sub(N, EIGHT), Const(8)), LEAF)
    full = Op("and", (lt(Const(0), ROW), le(add(EIGHT, Const(8)), N)))
    made = simplified(loop("i", Const(0), N, If(full, rows, rows)))
    assert isinstance(made, For) and isinstance(made.body, If)
    then, other = made.body.then, made.body.other
    assert isinstance(then, For) and (then.lower, then.upper) == (Const(0), Const(8))
    assert isinstance(other, For) and not isinstance(other.upper, Const)


def test_what_is_implied_is_left_out() -> None:
    body = block([If(lt(ROW, N), LEAF), If(lt(N, ROW), store(COLUMN, ROW), store(ROW, ROW))])
    made = simplified(loop("i", Const(0), N, loop("j", Const(0), M, body)))
    assert not any(isinstance(n, If) for n in walk_loops(made))
    stores = [n.target.indices for n in walk_loops(made) if isinstance(n, Store)]
    assert stores == [(ROW, COLUMN), (ROW, ROW)]


def test_branches_that_became_equal_are_one() -> None:
    one = loop("j", Const(0), least(M, add(N, M)), LEAF)
    other = loop("j", Const(0), M, LEAF)
    made = simplified(loop("i", Const(0), N, If(le(M, ROW), one, other)))
    assert not any(isinstance(n, If) for n in walk_loops(made))


def test_loops_without_iterations_are_left_out() -> None:
    inner = loop("j", N, ROW, LEAF)
    assert simplified(loop("i", Const(0), N, inner)) == Block(())


def test_a_loop_is_known_to_run() -> None:
    """Inside another loop it has an iteration whenever that has."""
    made = simplified(loop("i", Const(0), N, loop("j", ROW, N, LEAF)))
    assert isinstance(made, For) and isinstance(made.body, For)
    assert not made.runs and made.body.runs


def test_masks_that_all_lanes_pass() -> None:
    part = VectorStore(
        store(add(EIGHT, Index("l"))), "l", 8, Const(0), least(sub(N, EIGHT), Const(8))
    )
    full = simplified(loop("i", Const(0), Op("div", (N, Const(8))), part))
    assert [n.last for n in walk_loops(full) if isinstance(n, VectorStore)] == [None]
    never = simplified(loop("i", N, M, part))
    assert never == Block(())


def test_conditions_on_data_stay() -> None:
    data = lt(Read("A", (ROW, ROW)), Const(1.0))
    made = simplified(loop("i", Const(0), N, If(data, LEAF, LEAF)))
    assert any(isinstance(n, If) for n in walk_loops(made))


def test_preconditions_of_the_program_are_known() -> None:
    text = "def f(float32 A[N], float32 B[M]) -> (C) { C[i] = A[i] + B[i] where i in 0:N }"
    of = program(text)
    assert of.constraints
    made = simplified(If(le(N, M), store(N)), of)
    assert made == store(N)


# --- random loops: the same stores in the same order ---------------------------------------------

SIZES = [{"N": n, "M": m} for n in (0, 1, 2, 7, 8, 9, 16, 17) for m in (0, 1, 5, 16)]
small = st.integers(-9, 17).map(Const)


def linear(variables: tuple[Expr, ...]) -> st.SearchStrategy[Expr]:
    """Affine expressions, quotients of them, and extrema of these."""
    term = st.tuples(st.sampled_from((-8, -2, -1, 1, 2, 8)), st.sampled_from(variables))
    sums = st.tuples(st.lists(term, max_size=2), small).map(lambda x: _sum(x[0], x[1]))
    divided = st.tuples(sums, st.sampled_from((2, 8))).map(
        lambda x: Op("floordiv", (x[0], Const(x[1])))
    )
    plain = st.one_of(sums, divided)
    both = st.tuples(st.sampled_from(("min", "max")), plain, plain)
    return st.one_of(plain, both.map(lambda x: Op(x[0], (x[1], x[2]))))


def _sum(terms: list[tuple[int, Expr]], constant: Expr) -> Expr:
    made: Expr = constant
    for factor, e in terms:
        made = add(mul(Const(factor), e), made)
    return made


@st.composite
def nests(draw: st.DrawFn, depth: int = 0, names: tuple[str, ...] = ()) -> LoopNode:
    variables = (N, M, *map(Index, names))
    bound = linear(variables)
    kind = draw(st.sampled_from(("loop", "loop", "if", "block", "lanes", "store")))
    if depth == 3 or (depth and kind == "store"):
        return store(*map(Index, names), tensor=f"T{draw(st.integers(0, 3))}")
    if kind == "loop" or (not depth and kind != "block"):
        var = f"v{len(names)}"
        low = draw(st.one_of(st.just(Const(0)), bound))
        high = Op("min", (draw(bound), add(low, Const(draw(st.integers(1, 9))))))
        inner = draw(nests(depth + 1, (*names, var)))
        return For(var, low, high, draw(st.sampled_from((1, 1, 2))), inner)
    if kind == "if":
        fn = draw(st.sampled_from(("lt", "le", "gt", "ge", "eq")))
        cond: Expr = Op(fn, (draw(bound), draw(bound)))
        if draw(st.booleans()):
            cond = Op(draw(st.sampled_from(("and", "or"))), (cond, lt(draw(bound), draw(bound))))
        then = draw(nests(depth + 1, names))
        return If(cond, then, draw(st.one_of(st.none(), nests(depth + 1, names))))
    if kind == "lanes":
        lane = f"l{len(names)}"
        first, last = most(draw(bound), Const(0)), least(draw(bound), Const(4))
        target = store(*map(Index, (*names, lane)), tensor="V")
        return VectorStore(target, lane, 4, first, last)
    return block([draw(nests(depth + 1, names)), draw(nests(depth + 1, names))])


@given(nests())
@settings(max_examples=150, deadline=None)
def test_random_loops_make_the_same_stores(nest: LoopNode) -> None:
    made = simplified(nest)
    for sizes in SIZES:
        assert list(events(made, sizes)) == list(events(nest, sizes)), sizes


# --- tidy ----------------------------------------------------------------------------------------


def points() -> Iterator[tuple[dict[str, int], dict[str, int]]]:
    for sizes in SIZES:
        for i in (-3, 0, 1, 8):
            yield {"i": i}, sizes


@given(linear((N, M, ROW)))
@settings(max_examples=150, deadline=None)
def test_tidy_keeps_the_value(e: Expr) -> None:
    made = tidy(e, lambda x: False)
    assert all(value_of(made, *p) == value_of(e, *p) for p in points())


@given(st.sampled_from(("lt", "le", "gt", "ge")), linear((N, M, ROW)), linear((N, M, ROW)))
@settings(max_examples=200, deadline=None)
def test_tidy_conditions_hold_where_the_condition_does(fn: str, a: Expr, b: Expr) -> None:
    condition = Op(fn, (a, b))
    parts = tidy_condition(condition)
    for p in points():
        holds = bool(value_of(condition, *p))
        assert all(value_of(c, *p) for c in parts) == holds
        assert bool(value_of(tidied(condition), *p)) == holds


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (lt(Const(0), add(least(sub(N, EIGHT), Const(7)), Const(1))), "8 * i <= N"),
        (le(add(mul(Const(2), ROW), Const(1)), Op("floordiv", (sub(N, Const(1)), Const(16)))),
         "32 * i + 16 < N"),
        (le(Op("div", (N, Const(4))), ROW), "N < 4 * i + 4"),
        (lt(Const(1), Const(2)), "true"),
    ],
)  # fmt: skip
def test_conditions_as_a_person_writes_them(condition: Expr, text: str) -> None:
    assert str(tidied(condition)) == text


def test_constants_go_inside_of_extrema() -> None:
    made = tidy(add(least(sub(sub(N, EIGHT), Const(1)), Const(7)), Const(1)), lambda x: False)
    assert str(made) == "min(N - 8 * i, 8)"
    quotient = add(Op("floordiv", (sub(N, Const(1)), Const(32))), Const(1))
    assert str(tidy(quotient, lambda x: True)) == "(N + 31) / 32"
