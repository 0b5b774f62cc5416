"""The verdict on a tree equals enumeration's: legal means no broken pair, and a witness is one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poly.deps.dependences import KINDS, compute_dependences
from poly.deps.legality import Violation, budget, check_tree, coincident_members
from poly.deps.scop import Scop, build_scop
from poly.errors import IllegalScheduleError, ScheduleError
from poly.ir.program import Program
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from poly.tree.nodes import Band, Filter, Node, band, leaf, loops_of, sequence
from runtime.reference.interpret import Instance
from tests.poly.oracle import broken_pairs, brute_dependences, is_broken, times, touches
from tests.poly.random_programs import programs, steps
from tests.poly.texts import program as program_of


def random_tree(data: st.DataObject, scop: Scop, most: int) -> Node:
    """The initial tree after a few steps, whether they are legal or not."""
    tree = scop.initial_tree
    for _ in range(data.draw(st.integers(1, most))):
        step = data.draw(steps(tree, scop))
        try:
            tree = PRIMITIVES[step.primitive](tree, scop, step)
        except ScheduleError:
            continue
    return tree


def check_verdict(program: Program, tree: Node, scop: Scop, exact: bool, largest: int) -> bool:
    dependences = compute_dependences(scop, exact)
    violation = check_tree(tree, scop, dependences)
    if violation is None:
        for size in range(largest + 1):
            assert not broken_pairs(tree, scop, {"N": size}, exact)
        return True
    source, sink = Instance(*violation.source), Instance(*violation.sink)
    assert (source, sink) in brute_dependences(program, violation.sizes)[violation.kind]
    at = times(tree, scop, violation.sizes)
    commute = violation.kind == "reduction" and not exact
    assert is_broken(at[source], at[sink], commute)
    touched = {t.instance: t for t in touches(program, violation.sizes)}
    a, b = touched[source], touched[sink]
    first = a.reads if violation.kind == "anti" else a.writes
    second = b.reads if violation.kind == "flow" else b.writes
    assert violation.element in first & second
    if violation.loop:
        assert violation.loop in {m.name for m in loops_of(tree, source.statement)}
    return False


@given(programs(), st.booleans(), st.data())
@settings(max_examples=150)
def test_random_trees(program: Program, exact: bool, data: st.DataObject) -> None:
    scop = build_scop(program)
    check_verdict(program, random_tree(data, scop, 4), scop, exact, 4)


@pytest.mark.slow
@given(programs(), st.booleans(), st.data())
@settings(max_examples=5000)
def test_many_random_trees(program: Program, exact: bool, data: st.DataObject) -> None:
    scop = build_scop(program)
    check_verdict(program, random_tree(data, scop, 6), scop, exact, 5)


def test_the_smallest_sizes_and_the_smallest_pair() -> None:
    """Of all broken pairs at the smallest sizes, the lexicographically first."""
    program = program_of(
        "def f(float32 A[N,M]) -> (A) { s: A[i,j] = A[i-3,j+2] where i in 3:N, j in 0:M-2 }"
    )
    scop = build_scop(program)
    members = scop.initial_tree
    assert isinstance(members, Band)
    tree = band(members.members[::-1], leaf())
    violation = check_tree(tree, scop, compute_dependences(scop))
    assert violation == Violation(
        "flow", ("s", (3, 2)), ("s", (6, 0)), ("A", (3, 2)), {"N": 7, "M": 5}, "j", False
    )
    assert (Instance("s", (3, 2)), Instance("s", (6, 0))) == min(
        broken_pairs(tree, scop, violation.sizes, False), key=lambda p: (p[0].point, p[1].point)
    )


def test_a_set_in_which_isl_finds_no_least_point() -> None:
    """Even instances that read their mirror image: from N=7 on, S[2] is read by S[4]."""
    text = "def f(float32 A[N]) -> (A) { S: A[i] = A[N-1-i] where i in 1:N, i%2 == 0 }"
    schedule = Schedule.of(program_of(text))
    with pytest.raises(IllegalScheduleError, match=r"S\[2\] must .* S\[4\] .* at N=7") as e:
        schedule.reverse("S", "i")
    assert e.value.element == "A[2]"


def test_two_instances_may_not_share_a_time() -> None:
    """A tree without loops orders nothing."""
    program = program_of("def f(float32 X[N]) -> (S) { z: S[0] = 0\n p: S[i+1] = S[i] + X[i] }")
    scop = build_scop(program)
    tree = sequence([Filter(("z",), leaf()), Filter(("p",), leaf())])
    violation = check_tree(tree, scop, compute_dependences(scop))
    assert violation is not None and not violation.at_once
    assert (violation.source, violation.sink) == (("p", (0,)), ("p", (1,)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_message(kind: str) -> None:
    violation = Violation(kind, ("S", (0,)), ("T", ()), ("s", ()), {}, "i", True)
    error = violation.error("parallelize S: i")
    assert str(error) == (
        f"parallelize S: i is illegal: S[0] must come before T[] ({kind} through s[]); "
        "both would run at once in the iterations of i"
    )
    assert isinstance(error, ScheduleError) and error.violation is violation


def test_sizes_that_the_program_rules_out_break_nothing() -> None:
    text = "def f(float32 Y[N]) -> (Y){} {{ p: Y[i+5] = Y[i] where i in 0:N-5 }}"
    with pytest.raises(IllegalScheduleError, match="first broken at N=11"):
        Schedule.of(program_of(text.format(""))).parallelize("p", "i")
    Schedule.of(program_of(text.format(" where N <= 10"))).parallelize("p", "i")


def test_what_is_not_decided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of("C[i,j] +=! A[i,k] * B[k,j]")
    schedule = Schedule.of(program)
    monkeypatch.setattr("poly.deps.legality.budget.__wrapped__.__defaults__", (10,))
    with pytest.raises(ScheduleError, match="within 10 isl operations, so the step is refused"):
        schedule.tile("S0", ["i", "j", "k"], [4, 4, 4])
    with pytest.raises(ScheduleError, match="dependence analysis could not be decided"):
        Schedule.of(program)


def test_the_budget_ends_with_its_block() -> None:
    scop = build_scop(program_of("Y[i] = X[i]"))
    with (
        pytest.raises(ScheduleError, match="the question could not be decided"),
        budget(scop, "the question", 1),
    ):
        compute_dependences(scop)
    compute_dependences(scop)


def test_loops_that_carry_nothing() -> None:
    schedule = Schedule.of(program_of("C[i,j] +=! A[i,k] * B[k,j]"))
    flags = coincident_members(schedule.tree, "S0", schedule.dependences)
    assert flags == {"i": True, "j": True, "k": False}
