"""Loops whose reads wrap around in parts, and shifts that are read, not written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import farkas as fk
from frontends.language.parse_program import parse_program
from poly.ir.expr import Op, walk
from poly.ir.program import Program, verify_program
from poly.rewrites.periodic import MOST_CUTS, shifted_reads, split_periodic
from poly.sets.check_bounds import check_bounds
from runtime.reference.evaluate import evaluate


def arrays_of(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        t.name: rng.integers(-4, 5, tuple(int(str(e)) for e in t.shape)).astype(t.dtype.numpy)
        for t in program.inputs
    }


def shifted(program: Program) -> Program:
    made = tuple(map(shifted_reads, program.statements))
    return replace(program, statements=made, text=None)


def check(before: Program, after: Program) -> None:
    """Both compute the same, to the last bit, and no index of the second is out of bounds."""
    check_bounds(verify_program(after))
    given_arrays = arrays_of(before)
    expected, got = evaluate(before, given_arrays), evaluate(after, given_arrays)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def remainders(program: Program) -> int:
    """How many reads of a program have a remainder in their last index."""
    return sum(
        any(isinstance(e, Op) and e.fn == "mod" for e in walk(r.indices[-1]))
        for s in program.statements
        for r in s.reads
    )


RING = """def f(float32 X[5,40]) -> (Y) {
    Y[i,j] = X[i,j] + 2*X[i,(j+1)%40] - 3*X[(i+1)%5,(j+38)%40] where i in 0:5, j in 0:40
}"""


def test_a_ring_is_cut_where_it_wraps() -> None:
    program = parse_program(RING)
    made = split_periodic(program)
    assert [str(s.ranges[1]) for s in made.statements] == ["j in 0:2", "j in 2:39", "j in 39:40"]
    assert not remainders(made)
    assert "X[(i + 1) % 5, j - 2]" in str(made.statements[1])
    check(program, made)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_ring(data: st.DataObject) -> None:
    """Offsets and directions, more than one lap, ranges that begin anywhere, guards, sums."""
    n = data.draw(st.integers(16, 45), "length")
    lo = data.draw(st.integers(0, 5), "lo")
    hi = data.draw(st.integers(lo + 1, 70), "hi")
    terms = []
    for _ in range(data.draw(st.integers(1, 3), "reads")):
        by, down = data.draw(st.integers(0, 100), "by"), data.draw(st.booleans(), "down")
        terms.append(f"X[i,({by}-j)%{n}]" if down else f"X[i,(j+{by})%{n}]")
    op = data.draw(st.sampled_from(["=", "+=!", "max=!"]), "op")
    summed = " * W[k]" if op != "=" else ""
    guard = data.draw(st.sampled_from(["", ", j != 20", ", i + j < 30"]), "guard")
    text = f"""def f(float32 X[3,{n}], float32 W[4]) -> (float32 Y[3,{hi}]) {{
        Y[i,j] = 0
        Y[i,j] {op} ({" + ".join(terms)}){summed} where i in 0:3, j in {lo}:{hi}{guard}
    }}"""
    program = parse_program(text)
    made = split_periodic(program)
    assert len(made.statements) <= MOST_CUTS + 2
    if len(made.statements) > 2:
        assert not remainders(made)
    check(program, made)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(float32 X[8]) -> (Y) { Y[j] = X[j%8] where j in 0:80 }", "ten laps"),
        ("def f(float32 X[9]) -> (Y) { Y[j] = X[(j+1)%9] where j in 0:9 }", "short"),
        ("def f(float32 X[40,40]) -> (Y) { Y[i] +=! X[i,(j+1)%40] where j in 0:40 }", "a sum"),
        ("def f(float32 X[3,16]) -> (Y) { Y[c] = X[c//16,c%16] where c in 0:48 }", "blocks"),
        (
            "def f(float32 X[40]) -> (Y) { Y[j] = X[j]\n Y[j] += Y[(j+1)%40] where j in 0:40 }",
            "it reads what it writes",
        ),
        (
            "def f(int32 I[40], float32 X[40]) -> (Y) { Y[j] = X[(I[j]+1)%40] where j in 0:40 }",
            "data says where",
        ),
    ],
    ids=lambda x: x if len(x) < 30 else "",
)
def test_what_is_left_alone(text: str, why: str) -> None:
    program = parse_program(text)
    assert split_periodic(program) is program, why


def test_steps_of_a_block() -> None:
    """A step reads around the ring of the step before; in place, it would not be cut."""
    text = """def heat(float32 U0[40]) -> (float32 U[{rows},40]) {{
        U[0,i] = U0[i]
        for t in 0:4 {{
            U[{new},i] = U[{old},i] + 0.25*(U[{old},(i+1)%40] + U[{old},(i+39)%40])
                where i in 0:40
        }}
    }}"""
    apart = parse_program(text.format(rows=5, new="t+1", old="t"))
    made = split_periodic(apart)
    assert [s.block for s in made.statements] == [0, 1, 1, 1]
    check(apart, made)
    in_place = parse_program(text.format(rows=1, new="0", old="0"))
    assert split_periodic(in_place) is in_place


def test_lanes_without_remainders() -> None:
    """The kernel of a ring has vectors, and no remainder but that of rows."""
    kernel = fk.compile(RING, schedule="auto")
    arrays = arrays_of(parse_program(RING))
    np.testing.assert_allclose(kernel(*arrays.values()), evaluate(parse_program(RING), arrays)["Y"])
    assert "_lane" not in kernel.source
    assert "fk_mod(j" not in kernel.source


# --- shifts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "def f(float32 X[7]) -> (Y) { Y[(i+2)%7] = X[i] where i in 0:7 }",
            "Y[i] = X[(i + 5) % 7] where i in 0:7",
        ),
        (
            "def f(float32 X[7,3]) -> (float32 Y[3,7]) {"
            " Y[k,(i+6)%7] +=! X[i,k] * X[(i+6)%7,k] where i in 0:7, k in 0:3 }",
            "Y[k, i] +=! X[(i + 1) % 7, k] * X[i, k] where k in 0:3, i in 0:7",
        ),
        (
            "def f(float32 X[7]) -> (float32 Y[7]) { Y[i] = 0\n"
            " Y[(i+1)%7] = X[i] where i in 0:7, i != 3 }",
            "Y[i] = X[(i + 6) % 7] where i in 0:7, (i + 6) % 7 != 3",
        ),
    ],
    ids=["roll", "both", "guard"],
)
def test_a_shift_is_read(text: str, expected: str) -> None:
    program = parse_program(text)
    made = shifted(program)
    assert str(made.statements[-1]) == expected
    check(program, made)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Y[(i+2)%7] = X[i] where i in 0:6", "not all of the dimension"),
        ("Y[(i+2)%7] = X[i]*i where i in 0:7", "the index is a value"),
        ("Y[(2*i)%7] = X[i] where i in 0:7", "not a shift"),
        ("Y[(i+1)%7] += Y[i] where i in 0:7", "it reads what it writes"),
    ],
)
def test_what_stays_written(text: str, why: str) -> None:
    program = parse_program(f"def f(float32 X[7]) -> (float32 Y[7]) {{ Y[i] = 0\n {text} }}")
    assert shifted(program).statements == program.statements, why


def test_a_ring_of_a_loop_that_begins_below_0() -> None:
    ring = fk.compile(
        "def f(float32 X[64]) -> (Y) { Y[j] = X[(j+1) % 64] where j in -5:64, j >= 0 }"
    )
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(ring(x), np.roll(x, -1))
