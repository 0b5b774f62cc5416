"""isl's scheduler: what it finds, and what happens when it does not finish."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

import poly.schedule.isl_scheduler
from poly.deps.legality import check_tree
from poly.errors import ScheduleError
from poly.ir.program import Program
from poly.schedule.isl_scheduler import isl_schedule
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.auto_schedule import auto_schedule
from poly.tree.nodes import loops_of
from tests.poly.oracle import broken_pairs, tree_order
from tests.poly.random_programs import programs
from tests.poly.texts import MATMUL, SOFTMAX, schedule

STENCIL = """def f(float32 A[T,N]) -> (A) {
    s: A[t+1,i] = A[t,i-1] + A[t,i] + A[t,i+1] where t in 0:T-1, i in 1:N-1
}"""


def worker(folder: Path, body: str) -> Path:
    path = folder / "worker.py"
    path.write_text(body)
    return path


def test_it_makes_stencils_tileable() -> None:
    s = schedule(STENCIL).reschedule()
    assert str(s) == "reschedule" and s.loops("s") == ("t", "t2")
    assert s.tile("s", s.loops("s"), [4, 4])


def test_it_is_deterministic_and_replays() -> None:
    a, b = (schedule(SOFTMAX).reschedule() for _ in range(2))
    assert a.show == b.show == schedule(SOFTMAX, str(a)).show


def test_statements_without_instances_stay_in_the_tree() -> None:
    """isl leaves them out of its tree."""
    text = """def f(float32 X[4]) -> (Y, Z) {
        a: Y[i] = X[i]
        b: Y[i] = 0 where i in 0:4, 2*i == 7
        c: Z[0] = Y[3]
    }"""
    s = schedule(text).reschedule()
    assert s.loops("b") == ()
    assert s.loops("a") == ("i",)
    assert len(tree_order(s.tree, s.scop, {})) == 5
    only = schedule("def f(float32 Y[4]) -> (Y) { b: Y[i] = 0 where i in 0:4, 2*i == 7 }")
    assert only.reschedule().loops("b") == ()


@given(programs())
@settings(max_examples=12)
def test_random_programs(program: Program) -> None:
    s = Schedule.of(program)
    tree = isl_schedule(s.scop, s.dependences)
    assert check_tree(tree, s.scop, s.dependences) is None
    assert not broken_pairs(tree, s.scop, {"N": 3}, exact=False)


def test_out_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one of CPU time, kept by the system; then the written order stays."""
    spin = "import json, resource, sys\nr = json.load(sys.stdin)\n"
    spin += "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass\n"
    monkeypatch.setattr(poly.schedule.isl_scheduler, "_WORKER", worker(tmp_path, spin))
    s = schedule(STENCIL)
    with pytest.raises(ScheduleError, match="no schedule within 5 s of CPU time"):
        s.reschedule()
    assert isl_loops(auto_schedule(s)) == ("t", "i")


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_a_worker_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    monkeypatch.setattr(poly.schedule.isl_scheduler, "_WORKER", worker(tmp_path, body))
    with pytest.raises(ScheduleError, match="no schedule within"):
        schedule(MATMUL).reschedule()


@pytest.mark.parametrize("body", ["print('{')", "print('[]')", 'print(\'{"schedule": "x"}\')'])
def test_a_worker_that_talks_nonsense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(poly.schedule.isl_scheduler, "_WORKER", worker(tmp_path, body))
    with pytest.raises(ScheduleError):
        schedule(MATMUL).reschedule()


def test_no_python_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(ScheduleError, match="isl's scheduler could not run"):
        schedule(MATMUL).reschedule()


def test_an_order_that_isl_should_not_have_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it finds is checked like any other step."""
    s = schedule(STENCIL)
    reversed_tree = schedule(
        "def f(float32 A[T,N]) -> (A) { s: A[t+1,i] = 0 where t in 0:T-1, i in 1:N-1 }",
        "reverse s: t",
    ).tree
    monkeypatch.setattr(
        "poly.schedule.primitives.isl_schedule", lambda scop, dependences: reversed_tree
    )
    with pytest.raises(ScheduleError, match="reschedule is illegal: s"):
        s.reschedule()


def isl_loops(s: Schedule) -> tuple[str, ...]:
    return tuple(m.name.partition("_")[0] for m in loops_of(s.tree, "s"))
