"""Every case is refused for the stated reason, and the reason is a real one.

The witness is run in the reference interpreter: all instances in the written order, except that
the two run the other way round (or at the same time).  The result has to change.  Where two
instances alone cannot show it, which the file explains, the whole illegal order is run at the
sizes that the file gives.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from frontends.language.parse_program import parse_program
from poly.errors import IllegalScheduleError
from poly.ir.program import Program
from poly.schedule.primitives import PRIMITIVES
from poly.schedule.schedule import Schedule
from poly.schedule.script import parse_script
from poly.tree.nodes import Node
from poly.tree.steps import Step
from runtime.common.arguments import shape_of
from runtime.reference.interpret import Instance, instances, run_instances
from runtime.reference.scalar_semantics import Array
from tests.illegal.casefile import CASES, Case
from tests.poly.oracle import broken_pairs, tree_order

SEEDS = range(32)
#: Steps after which instances run at once.
AT_ONCE = (
    "parallelize", "vectorize", "map_blocks", "map_threads", "reduce_threads", "tensorize"
)  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def start(text: str, mode: str) -> Schedule:
    return Schedule.of(parse_program(text), exact=mode == "exact")


def refuse(case: Case) -> IllegalScheduleError:
    with pytest.raises(IllegalScheduleError) as caught:
        start(case.program, case.mode).replay(case.script)
    return caught.value


def only_step(script: str) -> Step:
    (line,) = parse_script(script)
    assert line.step is not None
    return line.step


def illegal_tree(case: Case) -> tuple[Schedule, Node]:
    """The last legal schedule, and the tree that the refused step would have made."""
    schedule = start(case.program, case.mode)
    *before, step = (line.step for line in parse_script(case.script) if line.step)
    for legal in before:
        schedule = schedule.apply(legal)
    primitive = PRIMITIVES[step.primitive]
    needed = (schedule.dependences,) if primitive.of_dependences else ()
    return schedule, primitive(schedule.tree, schedule.scop, step, *needed)


@every_case
def test_it_is_refused_with_the_right_pair(case: Case) -> None:
    error = refuse(case)
    found = (error.kind, error.source, error.sink, error.element, error.sizes)
    assert found == (case.kind, case.source, case.sink, case.element, case.sizes)
    message = (
        f"{case.step} is illegal: {case.source} must come before {case.sink} "
        f"({case.kind} through {case.element}), first broken at "
    )
    assert str(error).startswith(message)
    at_once = only_step(case.step).primitive in AT_ONCE
    assert ("both would run at once in the iterations of" in str(error)) == at_once
    assert error.primitive == case.step
    last = len(case.script.splitlines())
    assert error.__notes__ == [f"at line {last} of the script: {case.step}"]


@every_case
def test_the_pair_is_broken_and_nothing_is_broken_at_smaller_sizes(case: Case) -> None:
    schedule, tree = illegal_tree(case)
    exact = case.mode == "exact"
    pair = (instance(case.source), instance(case.sink))
    assert pair in broken_pairs(tree, schedule.scop, case.sizes, exact)
    for name, value in case.sizes.items():
        if value > 0:
            smaller = {**case.sizes, name: value - 1}
            assert not broken_pairs(tree, schedule.scop, smaller, exact)


@every_case
def test_the_witness_changes_the_result(case: Case) -> None:
    program = parse_program(case.program)
    source, sink = instance(case.source), instance(case.sink)
    written = instances(program, case.replay)
    swapped = [i for i in written if i != sink]
    swapped.insert(swapped.index(source), sink)
    if case.replay != case.sizes:
        schedule, tree = illegal_tree(case)
        swapped = tree_order(tree, schedule.scop, case.replay)
    at_once = only_step(case.step).primitive in AT_ONCE
    # Only flow and output can be lost at the same time; what is overwritten while it is read
    # may also be read too late.
    together = [(source, sink)] if at_once and case.kind in ("flow", "reduction") else []
    rounding = case.kind == "reduction" and not at_once
    for seed in SEEDS:
        arrays = numbers(program, case.replay, seed, rounding)
        right = run_instances(program, arrays, case.replay, written)
        order = written if together else swapped
        wrong = run_instances(program, arrays, case.replay, order, together)
        if any(not np.array_equal(right[name], wrong[name]) for name in right):
            return
    raise AssertionError("the order of these two does not matter")


@every_case
def test_its_legal_twin_keeps_the_result(case: Case) -> None:
    schedule = start(case.legal_program, case.legal_mode).replay(case.legal_script)
    larger = {name: case.sizes.get(name, 1) + 2 for name in schedule.program.sizes}
    for sizes in (larger, {name: 3 for name in larger}):
        order = tree_order(schedule.tree, schedule.scop, sizes)
        written = instances(schedule.program, sizes)
        assert sorted(map(str, order)) == sorted(map(str, written))
        arrays = numbers(schedule.program, sizes, 0, rounding=False)
        expected = run_instances(schedule.program, arrays, sizes, written)
        got = run_instances(schedule.program, arrays, sizes, order)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array)


def test_the_twin_is_near() -> None:
    for case in CASES:
        twin = (case.legal_program, case.legal_script, case.legal_mode)
        assert twin != (case.program, case.script, case.mode), case.name


def test_there_are_enough_cases_of_every_sort() -> None:
    assert len(CASES) >= 64
    kinds = Counter(case.kind for case in CASES)
    assert min(kinds[k] for k in ("flow", "anti", "output", "reduction")) >= 5
    used = Counter(only_step(case.step).primitive for case in CASES)
    # Unrolling, isolating and promoting change no order; a split or sinking none by itself.
    quiet = {"unroll", "isolate", "promote", "split", "sink", "reschedule"}
    missing = sorted(set(PRIMITIVES) - quiet - set(used))
    assert not missing, f"tests/illegal/cases/NAME_….txt, or `quiet` above: nothing for {missing}"
    mapped = [c for c in CASES if only_step(c.step).primitive in ("map_blocks", "map_threads")]
    assert len(mapped) >= 20 and {c.kind for c in mapped} == set(kinds)


def instance(text: str) -> Instance:
    name, inside = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()  # type: ignore[union-attr]
    return Instance(name, tuple(int(v) for v in inside.split(", ")) if inside else ())


def numbers(program: Program, sizes: dict[str, int], seed: int, rounding: bool) -> dict[str, Array]:
    """Random integers, small enough that float32 is exact; or, for `rounding`, fractions, so that
    the order of a sum shows in its last bits."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for tensor in program.inputs:
        shape = shape_of(tensor, sizes)
        values = rng.integers(-9, 10, shape)
        if tensor.dtype.kind in "iu":
            values = rng.integers(0, 3, shape)
        elif rounding:
            values = rng.uniform(-1, 1, shape)
        arrays[tensor.name] = np.asarray(values).astype(tensor.dtype.numpy)
    return arrays
