"""Lines of generated C lead back to the statements that they compute."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.c.kernel_unit import generate
from codegen.provenance import Traced, trace
from farkas.cli.why import why
from farkas.targets.compile_program import schedule_for
from farkas.targets.find_target import text_target
from frontends.language.parse_program import parse_program
from poly.errors import ArgumentError, LanguageError, ScheduleError
from poly.schedule.schedule import Schedule
from tests.differential.generate import random_text
from tests.differential.sweep import profile_of
from tests.poly.texts import PLAIN_SOFTMAX

FUSED = """fuse S0, S1: i
fuse S0_init, S0: i
fuse S0_init, S2_init: i
fuse S0_init, S2: i
fuse S0_init, S3: i"""


def body(schedule: Schedule) -> list[Traced]:
    return [line for line in trace(generate(schedule).text).lines if line.loops]


def computing(lines: list[Traced], place: str) -> set[tuple[str, ...]]:
    """The statements of the lines that store to a tensor."""
    found = {x.statements for x in lines if re.match(rf"\s*{place}\[.*\] [+*]?= ", x.text)}
    assert found
    return found


@pytest.mark.parametrize(
    ("columns", "note"),
    [
        ("K", "k: not unrolled, of unknown length"),
        ("5000", "k: not unrolled, more than 2048 statements"),
        ("3", ""),
    ],
)
def test_a_loop_that_cannot_be_unrolled_says_so(columns: str, note: str) -> None:
    text = f"def f(float32 X[N,{columns}]) -> (Y) {{ Y[i] +=! X[i,k] }}"
    source = generate(Schedule.of(parse_program(text)).unroll("S0", "k")).text
    assert note in source
    assert ("not unrolled" in source) == bool(note)
    assert ("for (int64_t k" in source) == bool(note)
    inside = [x for x in trace(source).lines if re.match(r"\s*Y\[.*\] \+= ", x.text)]
    assert {x.statements for x in inside} == {("S0",)}


def test_as_written() -> None:
    lines = body(Schedule.of(parse_program(PLAIN_SOFTMAX)))
    assert computing(lines, "top") == {("S0_init",), ("S0",)}
    assert computing(lines, "e") == {("S1",)} and computing(lines, "Y") == {("S3",)}
    assert {x.loops for x in lines if x.statements == ("S1",) and " = " in x.text} >= {("i", "j")}


def test_statements_that_share_a_loop_are_told_apart() -> None:
    lines = body(Schedule.of(parse_program(PLAIN_SOFTMAX)).replay(FUSED))
    assert computing(lines, "top") == {("S0_init",), ("S0",)}
    assert computing(lines, "Y") == {("S3",)}
    heads = [x for x in lines if x.text.strip().startswith("for (int64_t i =")]
    # The loop itself belongs to all of them; its own line stands before it is entered.
    assert all(len(x.statements) == 6 for x in heads)


@given(st.integers(0, 100_000), st.booleans())
@settings(max_examples=25)
def test_stores_of_random_programs(seed: int, automatic: bool) -> None:
    """Of the statements of a line that stores to a tensor, one writes that tensor."""
    try:
        program = parse_program(random_text(seed, profile_of(seed)))
        schedule = schedule_for(program, "auto" if automatic else "written", False, text_target())
        text = generate(schedule, written=program).text
    except (LanguageError, ScheduleError):
        return
    writes = {s.name: s.target.tensor for s in schedule.scop.statements}
    tensors = set(writes.values())
    for line in trace(text).lines:
        m = re.match(r"\s*(?:\*\(fk_\w+ \*\)&)?(\w+)\[[^=]*\] [+*]?= ", line.text)
        if line.loops and m and m[1] in tensors:
            own = {writes[n] for n in line.statements if n in writes}
            copies = any(n.endswith("_out") for n in line.statements)
            assert m[1] in own or copies, f"{seed}: {line}"


# --- farkas why ----------------------------------------------------------------------------


def test_why() -> None:
    source = generate(Schedule.of(parse_program(PLAIN_SOFTMAX)).replay("split S1: j by 8")).text
    number = next(
        n for n, line in enumerate(source.splitlines(), 1) if re.match(r"\s*e\[.*\] = ", line)
    )
    told = why(source, "softmax.c", number).splitlines()
    assert told[0].startswith(f"line {number}: e[")
    assert re.fullmatch(r"function   fk_softmax_\w+_body", told[1])
    assert told[2] == "loops      i, j_o, j_i"
    assert told[3].startswith("statement  S1: assign of e[i, j] = exp(X[i, j] - top[i])")
    assert told[4:] == ["step       split S1: j by 8"]
    assert "declarations, helpers, comments" in why(source, "softmax.c", 1)
    summary = why(source, "softmax.c", None)
    assert re.search(r"statement  S3: assign of Y\[i, j\].*\n +lines \d+-\d+", summary)


def test_why_has_the_steps_that_made_the_loops() -> None:
    text = "def mm(float32 A[N,K], float32 B[K,M]) -> (C) { mm: C[i,j] +=! A[i,k] * B[k,j] }"
    script = """fuse mm_init, mm: i, j
tile mm: i, j by 8, 32
distribute mm: i_i
reorder mm: k, i_i, j_i
promote mm: j_o as C, register
vectorize mm_init: j_i by 16
split mm: k by 4"""
    source = generate(Schedule.of(parse_program(text)).replay(script)).text
    lines = source.splitlines()
    number = next(n for n, x in enumerate(lines, 1) if "C_r" in x and "splat" in x)
    steps = [
        x.split(maxsplit=1)[1]
        for x in why(source, "mm.c", number).splitlines()
        if x.startswith("step")
    ]
    assert "tile mm: i, j by 8, 32" in steps and "promote mm: j_o as C, register" in steps
    assert "vectorize mm_init: j_i by 16" in steps and "split mm: k by 4" not in steps


def test_why_of_what_is_not_ours() -> None:
    with pytest.raises(ArgumentError, match=r"x.c is not C generated by Farkas"):
        why("int main(void) { return 0; }", "x.c", 1)
    source = generate(Schedule.of(parse_program(PLAIN_SOFTMAX))).text
    with pytest.raises(ArgumentError, match=r"x.c has \d+ lines, there is no line 100000"):
        why(source, "x.c", 100_000)


@given(st.text(max_size=200))
def test_any_text_can_be_traced(text: str) -> None:
    assert len(trace(text).lines) == len(text.splitlines())
