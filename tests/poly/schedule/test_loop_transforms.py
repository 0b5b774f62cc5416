"""Each transformation: the tree before and after, and the order that it means."""

from __future__ import annotations

import pytest

from poly.errors import ScheduleError
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from poly.tree.steps import Step
from tests.poly.oracle import tree_order
from tests.poly.texts import MATMUL, SOFTMAX, schedule

ONE = "def f(float32 X[N,M]) -> (Y) { s: Y[i,j] = X[i,j] }"
TWO = "def f(float32 X[N]) -> (P, Q) { p: P[i] = X[i]\n q: Q[i] = X[i] + 1 }"

SUM = """def f(float32 A[N,K], float32 B[N]) -> (E) {
    s: C[i] +=! A[i,k]
    e: E[i] = C[i] + B[i]
}"""

#: step, program, what came before, sizes, the order afterwards
ORDERS = [
    ("split s: j by 2", ONE, "", {"N": 1, "M": 3}, "s00 s01 s02"),
    ("tile s: i, j by 2, 2", ONE, "", {"N": 2, "M": 3}, "s00 s01 s10 s11 s02 s12"),
    ("interchange s: i, j", ONE, "", {"N": 2, "M": 2}, "s00 s10 s01 s11"),
    ("reorder s: j_i, i, j_o", ONE, "split s: j by 2", {"N": 1, "M": 4}, "s00 s02 s01 s03"),
    ("fuse p, q: i", TWO, "", {"N": 2}, "p0 q0 p1 q1"),
    ("distribute p: i", TWO, "fuse p, q: i", {"N": 2}, "p0 p1 q0 q1"),
    (
        "sink s: k",
        SUM,
        "fuse s_init, s: i\nfuse s_init, e: i",
        {"N": 1, "K": 2},
        "s_init0 s00 s01 e0",
    ),
    (
        "reorder s: k, i",
        SUM,
        "fuse s_init, s: i\nfuse s_init, e: i\nsink s: k",
        {"N": 2, "K": 2},
        "s_init0 s00 s_init1 s10 s01 e0 s11 e1",
    ),
    (
        "reorder s: k, i",
        SUM,
        "fuse s_init, s: i\nfuse s_init, e: i\nsink s: k",
        {"N": 2, "K": 0},
        "s_init0 e0 s_init1 e1",
    ),
    ("skew s: i, j by 1", ONE, "", {"N": 2, "M": 2}, "s00 s10 s01 s11"),
    ("skew s: i, j by -1", ONE, "", {"N": 2, "M": 2}, "s01 s00 s11 s10"),
    ("shift q: i by 1", TWO, "fuse p, q: i", {"N": 3}, "p0 p1 q0 p2 q1 q2"),
    ("shift p: i by 2", TWO, "fuse p, q: i", {"N": 3}, "q0 q1 p0 q2 p1 p2"),
    ("shift q: i by -1", TWO, "fuse p, q: i", {"N": 2}, "q0 p0 q1 p1"),
    ("reverse s: j", ONE, "", {"N": 2, "M": 2}, "s01 s00 s11 s10"),
    ("unroll s: j by 2", ONE, "", {"N": 1, "M": 3}, "s00 s01 s02"),
    ("isolate s: i", ONE, "", {"N": 1, "M": 2}, "s00 s01"),
]


@pytest.mark.parametrize(("step", "text", "before", "sizes", "after"), ORDERS)
def test_orders(step: str, text: str, before: str, sizes: dict[str, int], after: str) -> None:
    s = schedule(text, f"{before}\n{step}")
    order = tree_order(s.tree, s.scop, sizes)
    assert " ".join(i.statement + "".join(map(str, i.point)) for i in order) == after


@pytest.mark.parametrize(
    ("script", "loops"),
    [
        ("tile s: i, j by 4, 8", "i_o j_o i_i j_i"),
        ("tile s: j by 8", "i j_o j_i"),
        ("tile s: i, j by 4, 8 as a, b, c, d", "a b c d"),
        ("split s: i by 4 as x, y", "x y j"),
        ("vectorize s: j by 4", "i j_o j_i"),
        ("unroll s: i by 4 as u, v", "u v j"),
        ("interchange s: i, j", "j i"),
        ("skew s: j, i by 1", "i j"),
    ],
)
def test_names_of_loops(script: str, loops: str) -> None:
    assert " ".join(schedule(ONE, script).loops("s")) == loops


def shown(s: Schedule, statement: str) -> list[str]:
    return [line.strip() for line in s.show.splitlines() if f"{statement}[" in line]


def test_functions_of_loops() -> None:
    assert shown(schedule(ONE, "tile s: i, j by 4, 8"), "s") == [
        "for i_o: s[i, j] -> [(floor((i)/4))]",
        "for j_o: s[i, j] -> [(floor((j)/8))]",
        "for i_i: s[i, j] -> [((i) mod 4)]",
        "for j_i: s[i, j] -> [((j) mod 8)]",
    ]
    assert shown(schedule(ONE, "skew s: j, i by 2\nreverse s: i"), "s") == [
        "for i: s[i, j] -> [(-i)]",
        "for j: s[i, j] -> [(2i + j)]",
    ]
    assert shown(schedule(TWO, "fuse p, q: i\nshift q: i by 3"), "q") == [
        "for i: p[i] -> [(i)]; q[i] -> [(3 + i)]"
    ]


def test_marks() -> None:
    s = schedule(ONE, "parallelize s: i\nvectorize s: j by 8\nunroll s: j_o")
    assert [(line.split(":")[0]) for line in shown(s, "s")] == [
        "for i  [parallel]",
        "for j_o  [unroll]",
        "for j_i  [vector]",
    ]
    for step in ("parallelize s: i", "split s: i by 2", "reverse s: j_i", "unroll s: j_o"):
        with pytest.raises(ScheduleError, match="is already marked"):
            s.replay(step)


def test_threads_nest_only_directly() -> None:
    s = schedule(MATMUL, "parallelize mm: i")
    assert s.replay("parallelize mm: j")
    three = schedule(MATMUL, "tile mm: i, j by 4, 4\nparallelize mm: i_o")
    assert three.replay("parallelize mm: j_o").replay("parallelize mm: i_i")
    with pytest.raises(ScheduleError, match="i_o around mm is already parallel"):
        three.replay("parallelize mm: i_i")
    with pytest.raises(ScheduleError, match="i around s is already parallel"):
        schedule(
            ONE.replace("N,M", "N,K,M").replace("[i,j]", "[i,k,j]"), "parallelize s: i"
        ).replay("parallelize s: j")
    with pytest.raises(ScheduleError, match="i outside is marked unroll"):
        schedule(MATMUL, "unroll mm: i\nparallelize mm: j")


def test_fuse_chooses_the_place_that_is_legal() -> None:
    """With something in between, the shared nest stands late, or early if that is not legal."""
    text = """def f(float32 X[N]) -> (P, Q, R) {{
        p: P[i] = X[i] * 2
        m: Q[i] = {} + 1
        q: R[i] = P[i]
    }}"""
    late = schedule(text.format("X[i]"), "fuse p, q: i")
    assert [f.statements for f in late.tree.children] == [("m",), ("p", "q")]  # type: ignore[attr-defined]
    early = schedule(text.format("P[N-1-i]"), "fuse p, q: i")
    assert [f.statements for f in early.tree.children] == [("p", "q"), ("m",)]  # type: ignore[attr-defined]
    assert early.replay("").show == schedule(text.format("P[N-1-i]"), str(early)).show


def test_fuse_needs_other_names_inside() -> None:
    with pytest.raises(ScheduleError, match="already named i; `split` and `tile` give names"):
        schedule(
            "def f(float32 X[N,N]) -> (Y, Z) { a: Y[i,j] = X[i,j]\n b: Z[i,j] = X[i,j] }",
            "interchange b: i, j\nfuse a, b: i",
        )


def test_loops_around_one_statement_only() -> None:
    with pytest.raises(ScheduleError, match="i and j are not in one perfect nest"):
        schedule(SOFTMAX, "fuse top_init, top: i\nfuse top, e: i\ninterchange e: i, j")


def test_lanes_around_other_loops() -> None:
    assert "for i  [vector]" in schedule(SOFTMAX, "fuse top_init, top: i\nvectorize top: i").show
    for script, message in (
        ("vectorize mm: j\nvectorize mm: k", "j outside is already in lanes"),
        ("vectorize mm: k\nvectorize mm: j", "k inside is marked vector"),
        ("interchange mm: j, k\nparallelize mm: j\nvectorize mm: k", "j inside is marked parallel"),
        (
            "split mm: j by 4\npromote mm: j_i as C, local\nvectorize mm: j_i",
            "inside is not in registers",
        ),
    ):
        with pytest.raises(ScheduleError, match=message):
            schedule(MATMUL, script)


def test_every_primitive_has_a_method_with_a_text() -> None:
    for name in PRIMITIVES:
        assert getattr(Schedule, name).__doc__, name


def test_steps_print() -> None:
    assert str(Step("fuse", ("S", "T"), ("i", "j"))) == "fuse S, T: i, j"
    assert str(Step("tile", ("S",), ("i",), (4,), ("a", "b"))) == "tile S: i by 4 as a, b"
