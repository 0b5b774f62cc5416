"""Full tiles: told apart by a condition where sizes decide, by ranges where they do not."""

from __future__ import annotations

import pytest

from codegen.loops.from_schedule import build_loops
from codegen.loops.lower_instances import lower
from codegen.loops.nodes import Const, For, If, LoopNode
from codegen.loops.simplify_in_context import simplify_in_context
from codegen.loops.traverse import walk_loops
from poly.schedule.schedule import Schedule
from poly.tree.kinds import Mark
from tests.codegen.loops.interpret import events
from tests.poly.texts import program

OPEN = "def scale(float32 X[N]) -> (Y) { S: Y[i] = 2 * X[i] }"
FIXED = "def scale(float32 X[100]) -> (Y) { S: Y[i] = 2 * X[i] }"
TILES = "split S: i by 16\nunroll S: i_i\n"
PADDED = """def f(float32 X[N], float32 F[3]) -> (Y) {
    Y[i] +=! X[i + s - 1] * F[s] where i in 0:N, s in 0:3, 0 <= i + s - 1 < N
}"""
BLOCKS = """split S0: i by 64 as i_p, i_q
split S0: i_q by 8 as i_o, i_i
reorder S0: i_p, i_o, s, i_i
unroll S0: s
unroll S0: i_i
"""


def loops(text: str, script: str) -> LoopNode:
    schedule = Schedule.of(program(text)).replay(script)
    return simplify_in_context(lower(build_loops(schedule)), schedule.program)


def test_open_sizes_are_a_condition() -> None:
    made = loops(OPEN, f"{TILES}isolate S: i_o")
    (branch,) = [n for n in walk_loops(made) if isinstance(n, If)]
    assert str(branch.cond) == "16 * i_o + 16 <= N"
    full, part = branch.then, branch.other
    assert isinstance(full, For) and full.trip == 16
    assert isinstance(part, For) and str(part.upper) == "N - 16 * i_o" and part.limits == (0, 15)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (FIXED, f"{TILES}isolate S: i_o"),
        (OPEN, "vectorize S: i\nisolate S: i"),
    ],
)
def test_ranges(text: str, script: str) -> None:
    assert not any(isinstance(n, If) for n in walk_loops(loops(text, script)))


@pytest.mark.parametrize(
    ("text", "script", "member"),
    [(OPEN, TILES, "isolate S: i_o"), (PADDED, BLOCKS, "isolate S0: i_o")],
)
def test_the_same_instances_in_the_same_order(text: str, script: str, member: str) -> None:
    plain, isolated = loops(text, script), loops(text, script + member)
    assert any(isinstance(n, If) for n in walk_loops(isolated))
    for size in (0, 1, 2, 7, 8, 9, 16, 63, 64, 65, 72, 73, 80, 129):
        sizes = {"N": size}
        assert list(events(isolated, sizes)) == list(events(plain, sizes)), size


def test_a_full_tile_has_constant_bounds() -> None:
    """With padding at both ends: neither the first tile is full, nor those at the end."""
    made = loops(PADDED, f"{BLOCKS}isolate S0: i_o")
    (branch,) = [n for n in walk_loops(made) if isinstance(n, If)]
    assert str(branch.cond) == "0 < i_p + i_o and 64 * i_p + 8 * i_o + 8 < N"
    full = [n for n in walk_loops(branch.then) if isinstance(n, For)]
    assert [(n.lower, n.trip) for n in full] == [(Const(0), 3), (Const(0), 8)]


def test_threads_share_full_and_partial_tiles() -> None:
    """In one loop: in two, threads would wait for each other between them."""
    text = "def scale(float32 X[70,50]) -> (Y) { S: Y[i,j] = 2 * X[i,j] }"
    tiles = """split S: i by 16
split S: j by 8
reorder S: i_o, j_o, i_i, j_i
parallelize S: i_o
unroll S: i_i
"""
    plain, isolated = loops(text, tiles), loops(text, f"{tiles}isolate S: j_o")
    shared = [n for n in walk_loops(isolated) if isinstance(n, For) and n.mark == Mark.PARALLEL]
    assert len(shared) == 1 and any(isinstance(n, If) for n in walk_loops(isolated))
    assert sorted(events(isolated, {})) == sorted(events(plain, {}))
