"""Promotion: what a buffer holds and what is copied, compared with enumeration."""

from __future__ import annotations

import islpy as isl
import pytest

from poly.buffers.promotion import BUFFER_LIMIT, PromotionPlan, plan_promotion
from poly.errors import ScheduleError
from poly.schedule.schedule import Schedule
from poly.tree.nodes import Promote, loops_of, path_to, statements_below
from tests.poly.texts import MATMUL, schedule


def plan(s: Schedule, statement: str) -> PromotionPlan:
    """The plan of the one promotion around a statement."""
    path = path_to(s.tree, statement)
    position = next(n for n, node in enumerate(path) if isinstance(node, Promote))
    node = path[position]
    assert isinstance(node, Promote)
    inside = {m.name for m in loops_of(node, statement)}
    outer = [m for m in loops_of(s.tree, statement) if m.name not in inside]
    return plan_promotion(node, s.scop, outer, statements_below(s.tree, node, s.statements))


def test_a_packed_panel() -> None:
    s = schedule(MATMUL, "tile mm: i, j, k by 4, 8, 16\npromote mm: k_o as B, local, 1, 0")
    found = plan(s, "mm")
    assert found.sizes == (16, 8) and found.copy_out is None
    assert found.copy_in is not None and found.copy_in.inward
    assert [m.name for m in found.copy_in.members] == ["B_p_e0_o", "B_p_e1", "B_p_e0_i"]


def test_a_panel_in_blocks() -> None:
    script = "tile mm: i, j, k by 4, 60, 16\npromote mm: k_o as B, local, 1, 0, 1x16"
    s = schedule(MATMUL, script)
    assert script in str(s)
    found = plan(s, "mm")
    assert found.sizes == (16, 64) and found.copy_in is not None  # the last block is filled up
    names = [m.name for m in found.copy_in.members]
    assert names == ["B_p_e1_b", "B_p_e0", "B_p_e1_o", "B_p_e1_i"]


def test_an_accumulator_is_read_and_written() -> None:
    s = schedule(MATMUL, "tile mm: i, j by 4, 8\npromote mm: j_o as C, register")
    found = plan(s, "mm")
    assert found.sizes == (4, 8)
    assert found.copy_in is not None and found.copy_out is not None
    assert not found.copy_out.inward


def test_what_is_initialised_inside_is_not_read() -> None:
    s = schedule(
        MATMUL,
        "fuse mm_init, mm: i, j\ntile mm: i, j by 4, 8\npromote mm: j_o as C, register",
    )
    found = plan(s, "mm")
    assert found.copy_in is None and found.copy_out is not None


def test_a_temporary_that_stays_inside_is_not_written_back() -> None:
    text = "def f(float32 X[N]) -> (Y) { p: P[i] = X[i]\n q: Y[i] = P[i] }"
    inside = schedule(text, "fuse p, q: i\npromote p: i as P, register")
    assert plan(inside, "p").copy_in is None and plan(inside, "p").copy_out is None
    outside = schedule(text, "split p: i by 4\npromote p: i_o as P, local")
    assert plan(outside, "p").copy_out is not None


FIXED = "def f(float32 A[32,64], float32 B[64,48]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }"
CHAIN = """def f(float32 A[32,32], float32 B[32,32]) -> (D) {
    mm: T[i,j] +=! A[i,k] * B[k,j]
    add: D[i,j] = T[i,j] + A[i,j]
}"""


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (FIXED, "promote mm: i as C, local"),
        (FIXED, "tile mm: i, j, k by 4, 8, 16\npromote mm: k_o as C, local"),
        (FIXED, "fuse mm_init, mm: i, j\ntile mm: i, j by 4, 8\npromote mm: j_o as C, register"),
        (FIXED, "split mm: k by 4\ninterchange mm: k_o, k_i\npromote mm: k_i as C, local"),
        (CHAIN, "fuse mm_init, mm: i\nfuse mm, add: i\npromote mm: i as T, local"),
        (CHAIN, "fuse mm_init, mm: i, j\npromote mm: i as T, local"),
        (CHAIN, "split mm: k by 4\npromote mm: k_o as T, local"),
    ],
)
def test_elements_written_once_need_no_flow(
    text: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied is what the sources of all values would have told."""
    found = plan(schedule(text, script), "mm")
    with monkeypatch.context() as patch:
        patch.setattr("poly.buffers.promotion.written_once", lambda scop, tensor: None)
        expected = plan(schedule(text, script), "mm")
    for copy, wanted in ((found.copy_in, expected.copy_in), (found.copy_out, expected.copy_out)):
        assert (copy is None) == (wanted is None)
        if copy is not None and wanted is not None:
            assert isl.UnionMap(copy.extension).is_equal(isl.UnionMap(wanted.extension))


def test_a_scalar_has_a_buffer_of_one_element() -> None:
    text = "def f(float32 s[], float32 x[N]) -> (s) { a: s[] += x[i] }"
    found = plan(schedule(text, "split a: i by 4\npromote a: i_o as s, register"), "a")
    assert found.sizes == ()
    assert found.copy_in is not None and found.copy_in.members == ()


def test_buffers_have_names_of_their_own() -> None:
    s = schedule(
        MATMUL.replace("A[N,K]", "A[N,K], float32 A_p[N]").replace("* B", "* A_p[i] * B"),
        "tile mm: i, j, k by 4, 4, 4\npromote mm: k_o as A, local\npromote mm: k_o as B, local",
    )
    assert [n.buffer for n in path_to(s.tree, "mm") if isinstance(n, Promote)] == ["B_p", "A_p2"]


@pytest.mark.parametrize(
    ("text", "script", "message"),
    [
        (MATMUL, "promote mm: i as A, local", "no constant bound in dimension 1"),
        (MATMUL, f"tile mm: i, j, k by 4, 4, {BUFFER_LIMIT}\npromote mm: k_o as B, local", "bytes"),
        (
            "def f(float32 X[N], int64 I[M]) -> (Y) { g: Y[i] = X[I[i]] }",
            "split g: i by 4\npromote g: i_o as X, local",
            "g reads it at an index that depends on data",
        ),
        (
            "def f(float32 X[N]) -> (Y) { s: Y[i] = X[i+1] where i in 0:N-1 }",
            "split s: i by 4\npromote s: i_o as X, register",
            "its tiles do not begin at multiples of their size",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 4, 4, 4\npromote mm: k_o as B, local, 1, 0, 2x4",
            "2x4 is not a block of a dimension of B",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 4, 4, 4\npromote mm: k_o as B, local, 1, 0, 1x0",
            "1x0 is not a block of a dimension of B",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 4, 4, 4\npromote mm: k_o as B, local, 1x4, 1, 0",
            "must name each dimension of B once",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 4, 4, 4\nparallelize mm: j_i\npromote mm: k_o as C, local",
            "a buffer belongs to one thread",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 4, 4, 4\npromote mm: k_o as C, local\npromote mm: j_o as C, local",
            "C is already promoted further in",
        ),
        (
            MATMUL,
            "tile mm: i, j, k by 4, 4, 4\npromote mm: k_o as C, local\nparallelize mm: j_i",
            "C_p around j_i belongs to one thread",
        ),
    ],
)  # fmt: skip
def test_refusals(text: str, script: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        schedule(text, script)
