"""Dependence relations equal what enumeration finds, pair by pair."""

from __future__ import annotations

import functools

import islpy as isl
import pytest
from hypothesis import given, settings

from frontends.language.parse_program import check_text
from poly.deps.dependences import (
    KINDS,
    Dependences,
    compute_dependences,
    initial_order,
    time_map,
    value_flow,
    written_once,
)
from poly.deps.scop import Scop, build_scop
from poly.ir.program import Program
from runtime.reference.interpret import Instance, instances
from tests.differential.generate import random_text
from tests.poly.oracle import brute_dependences, isl_pairs, pairs_of, touches
from tests.poly.random_programs import programs
from tests.poly.texts import program as program_of


def dependences(text: str, exact: bool = False) -> Dependences:
    return compute_dependences(build_scop(program_of(text)), exact)


def check_against_enumeration(program: Program, largest: int) -> None:
    scop = build_scop(program)
    found = {exact: compute_dependences(scop, exact) for exact in (False, True)}
    for size in range(largest + 1):
        sizes = {"N": size}
        expected = brute_dependences(program, sizes)
        for kind in KINDS:
            got = isl_pairs(getattr(found[False], kind), sizes)
            assert got == expected[kind], (kind, size)
            assert isl_pairs(getattr(found[True], kind), sizes) == got
        ordering = set().union(*(expected[k] for k in ("flow", "anti", "output")))
        assert isl_pairs(found[False].ordering, sizes) == ordering
        everything = ordering | expected["reduction"]
        assert isl_pairs(found[False].all, sizes) == everything
        assert isl_pairs(found[True].ordering, sizes) == everything


@given(programs())
@settings(max_examples=100)
def test_random_programs(program: Program) -> None:
    check_against_enumeration(program, 4)


@pytest.mark.slow
@given(programs())
@settings(max_examples=3000)
def test_many_random_programs(program: Program) -> None:
    check_against_enumeration(program, 5)


@given(programs())
@settings(max_examples=40)
def test_the_initial_order_is_the_order_of_the_interpreter(program: Program) -> None:
    scop = build_scop(program)
    order = time_map(scop.initial_tree, scop.by_name)
    for size in (0, 1, 3):
        at = {Instance(*a): time for a, (_, time) in pairs_of(order, {"N": size})}
        listed = instances(program, {"N": size})
        assert sorted(at, key=lambda i: at[i]) == listed
        assert len(set(at.values())) == len(listed)


@given(programs())
@settings(max_examples=40)
def test_the_flow_of_values_comes_from_the_last_write(program: Program) -> None:
    """A read that may be anywhere takes a value from the last write of each element."""
    scop = build_scop(program)
    flow, unwritten = value_flow(scop, scop.reads)
    sizes = {"N": 3}
    last: dict[tuple[str, tuple[int, ...]], Instance] = {}
    expected, lacking = set(), set()
    for touch in touches(program, sizes):
        for e in touch.reads:
            if e in last:
                expected.add((last[e], touch.instance))
            else:
                lacking.add((touch.instance, e))
        last |= dict.fromkeys(touch.writes, touch.instance)
    assert isl_pairs(flow, sizes) == expected
    assert {(Instance(*a), e) for a, e in pairs_of(unwritten, sizes)} == lacking


def test_updates_hide_no_earlier_write() -> None:
    """Updates may swap, so the initialisation has to stay before each of them."""
    d = dependences("s[] +=! x[i]")
    sizes = {"I": 3}
    init = Instance("S0_init", ())
    updates = [Instance("S0", (i,)) for i in range(3)]
    assert isl_pairs(d.flow, sizes) == {(init, u) for u in updates}
    assert isl_pairs(d.output, sizes) == {(init, u) for u in updates}
    assert isl_pairs(d.anti, sizes) == set()
    assert isl_pairs(d.reduction, sizes) == {
        (a, b) for a in updates for b in updates if a.point < b.point
    }


def test_a_last_write_hides_what_was_before() -> None:
    d = dependences(
        "def f(float32 X[N]) -> (Y, Z) { a: Y[i] = X[i]\n b: Y[i] = X[i] + 1\n c: Z[i] = Y[i] }"
    )
    assert isl_pairs(d.flow, {"N": 1}) == {(Instance("b", (0,)), Instance("c", (0,)))}
    assert isl_pairs(d.output, {"N": 1}) == {(Instance("a", (0,)), Instance("b", (0,)))}


def test_kinds_and_text() -> None:
    d = dependences("def f(float32 Y[N]) -> (Y) { p: Y[i] = Y[i-1] + Y[i] where i in 1:N }")
    assert [line.split()[0] for line in str(d).splitlines()] == list(KINDS)
    assert "p[i] -> p[i' = 1 + i] : 0 < i <= -2 + N" in str(d)


def test_a_gather_depends_on_every_element() -> None:
    d = dependences(
        "def f(float32 X[N], int64 I[M]) -> (Q) { p: P[i] = X[i] * 2\n g: Q[i] = P[I[i]] }"
    )
    assert isl_pairs(d.flow, {"N": 3, "M": 2}) == {
        (Instance("p", (a,)), Instance("g", (b,))) for a in range(3) for b in range(2)
    }


def test_an_update_that_reads_its_target_elsewhere_is_no_reduction() -> None:
    d = dependences(
        "def f(float32 x[N]) -> (x) { s: x[i] += x[j] where i in 0:N, j in 0:N, j < i }"
    )
    assert d.reduction.is_empty()
    assert (Instance("s", (2, 0)), Instance("s", (2, 1))) in isl_pairs(d.flow, {"N": 3})


def by_definition(scop: Scop) -> dict[str, isl.UnionMap]:
    """Flow, anti and output dependences as the module's docstring has them, one question each."""
    updates = [s for s in scop.statements if s.is_reduction]
    finals = [s for s in scop.statements if not s.is_reduction]
    update, final = (
        functools.reduce(
            isl.UnionMap.union,
            [isl.UnionMap.from_map(s.write) for s in found],
            isl.UnionMap.empty(scop.context.get_space()),
        )
        for found in (updates, finals)
    )

    def answer(info: isl.UnionAccessInfo) -> isl.UnionMap:
        return info.set_schedule_map(initial_order(scop)).compute_flow().get_may_dependence()

    def sources(sink: isl.UnionMap) -> isl.UnionAccessInfo:
        return isl.UnionAccessInfo.from_sink(sink).set_must_source(final).set_may_source(update)

    anti = isl.UnionAccessInfo.from_sink(scop.writes).set_kill(final).set_may_source(scop.reads)
    return {
        "flow": answer(sources(scop.reads)),
        "anti": answer(anti),
        "output": answer(sources(scop.writes)),
    }


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs_by_definition(first: int) -> None:
    """The shares that reads and writes of updates have in common are computed once."""
    for seed in range(first, first + 20):
        found = check_text(random_text(seed))
        if found is None:
            continue
        scop = build_scop(found)
        own = [isl.Map.from_domain_and_range(s.domain, s.domain)
               for s in scop.statements if s.is_reduction]  # fmt: skip
        among = isl.UnionMap.empty(scop.context.get_space())
        for m in own:
            among = among.union(isl.UnionMap.from_map(m))
        made = compute_dependences(scop)
        for kind, expected in by_definition(scop).items():
            assert getattr(made, kind).is_equal(expected.subtract(among)), (seed, kind)
            assert expected.intersect(among).is_subset(made.reduction), (seed, kind)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_elements_written_once_need_no_analysis(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(first, first + 20):
        found = check_text(random_text(seed))
        if found is None:
            continue
        made = compute_dependences(build_scop(found))
        with monkeypatch.context() as patch:
            patch.setattr("poly.deps.dependences.written_once", lambda scop, tensor: None)
            expected = compute_dependences(build_scop(found))
        for kind in KINDS:
            assert getattr(made, kind).is_equal(getattr(expected, kind)), (seed, kind)


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("B[i] = X[i, 0]", True),
        ("B[i] +=! X[i, j]", True),
        ("B[i // 4, i % 4, 0] = X[i, 0] where i in 0:8", True),
        ("B[i // 4] = X[i, 0] where i in 0:8", False),
        ("B[i] = X[i, 0]\n B[i] += X[i, j]", True),
        ("B[i] = X[i, 0]\n B[i] = B[i] * X[i, 1]", False),
        ("B[2*i] = X[i, 0]\n B[2*i + 1] = X[i, 1]", False),
        ("for i in 0:N { B[i] = X[i, 0] }", False),
        ("B[i] = X[i, 0]\n C[i] = B[i]\n B[i] += X[i, j]", False),
    ],
)
def test_which_tensors_are_written_once(text: str, once: bool) -> None:
    """Not in a block, by one statement and at most one reduction, and read by others later."""
    outputs = "B, C" if "C[" in text else "B"
    program = program_of(f"def f(float32 X[N, N]) -> ({outputs}) {{ {text} }}")
    found = written_once(build_scop(program), "B")
    assert (found is not None) == once
