"""Strided sums phase by phase, scattered sums gathered: what is made, and that it is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontends.language.parse_program import parse_program
from poly.ir.program import Program, specialise
from poly.rewrites.polyphase import MOST, split_phases
from poly.rewrites.scatter_to_gather import gather_sums
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.register_tile import find_contraction
from runtime.reference.evaluate import evaluate
from tests.machines import AVX512

#: Stride 2, padding 1, windows of 4: a decoder's layer with bias and activation.
LAYER = """def f(float32 X[32,9,9], float32 W[32,48,4,4], float32 B[48]) -> (Y) {
    T[k,p,q] +=! X[c,(p + 1 - r) // 2,(q + 1 - s) // 2] * W[c,k,r,s]
        where p in 0:18, q in 0:18, (p + 1 - r) % 2 == 0, (q + 1 - s) % 2 == 0,
        0 <= (p + 1 - r) // 2, (p + 1 - r) // 2 < 9, 0 <= (q + 1 - s) // 2, (q + 1 - s) // 2 < 9
    Y[k,p,q] = max(T[k,p,q] + B[k], 0)
}"""
SCATTERED = """def f(float32 Y[N+4], float32 X[N], float32 W[5]) -> (Y) {
    Y[p + r] += X[p] * W[r]
}"""


def inputs(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {t.name: [int(e.value) for e in t.shape] for t in program.inputs}  # type: ignore[attr-defined]
    return {n: rng.integers(-4, 5, s).astype(np.float32) for n, s in shapes.items()}


def same(program: Program, changed: Program) -> None:
    given = inputs(program)
    expected = evaluate(program, given)
    for name, array in evaluate(changed, given).items():
        np.testing.assert_array_equal(array, expected[name])


def test_a_layer_becomes_four_dense_sums() -> None:
    program = parse_program(LAYER, {})
    phases = split_phases(program)
    sums = [s for s in phases.statements if s.is_reduction]
    assert len(sums) == 4
    assert not any("%" in str(s) or "//" in str(s) for s in phases.statements)
    assert {str(r) for s in sums for r in s.ranges if r.index == "r"} == {"r in 0:2"}
    assert "Y[k, 2 * p + 1, 2 * q] = max(" in str(phases)
    # Each sum stays beside what reads it, so that they can share loops.
    kinds = ["sum" if s.is_reduction else s.target.tensor for s in phases.statements[4:]]
    assert kinds == ["sum", "Y"] * 4
    same(program, phases)


def test_phases_get_register_tiles() -> None:
    scop = Schedule.of(split_phases(parse_program(LAYER, {}))).scop
    updates = [s for s in scop.statements if s.role == "update"]
    tiles = [find_contraction(scop, s, AVX512) for s in updates]
    assert len(tiles) == 4
    assert all(t is not None and (t.v, t.lanes) == ("k", 16) for t in tiles)
    written = Schedule.of(parse_program(LAYER, {})).scop
    assert find_contraction(written, written.by_name["S0"], AVX512).packed  # type: ignore[union-attr]


def test_phases_parse_back_and_are_left_alone() -> None:
    phases = split_phases(parse_program(LAYER, {}))
    assert parse_program(str(phases), {}) == phases
    assert split_phases(phases) == phases


def test_elements_that_no_tap_meets() -> None:
    text = """def f(float32 X[7], float32 W[2]) -> (Y) {
        Y[p] max=! X[(p - r) // 3] * W[r]
            where p in 0:20, r in 0:2, (p - r) % 3 == 0, 0 <= (p - r) // 3, (p - r) // 3 < 7
    }"""
    program = parse_program(text, {})
    phases = split_phases(program)
    assert sum(s.is_reduction for s in phases.statements) == 2
    same(program, phases)


def test_what_needs_other_phases_comes_after_all() -> None:
    text = """def f(float32 X[9], float32 W[3]) -> (Y) {
        T[p] +=! X[(p - r) // 2] * W[r]
            where p in 0:19, r in 0:3, (p - r) % 2 == 0, 0 <= (p - r) // 2, (p - r) // 2 < 9
        Y[p] = T[p] + T[18 - p] where p in 0:19
    }"""
    program = parse_program(text, {})
    phases = split_phases(program)
    assert str(phases.statements[-1]) == str(program.statements[-1])
    assert sum(s.is_reduction for s in phases.statements) == 2
    same(program, phases)


def test_in_place_followers_stay_in_order() -> None:
    text = """def f(float32 X[9], float32 W[3], float32 Z[19]) -> (Z) {
        T[p] +=! X[(p - r) // 2] * W[r]
            where p in 0:19, r in 0:3, (p - r) % 2 == 0, 0 <= (p - r) // 2, (p - r) // 2 < 9
        Z[p] = T[p] + Z[p - 1] where p in 1:19
    }"""
    program = parse_program(text, {})
    phases = split_phases(program)
    assert str(phases.statements[-1]) == str(program.statements[-1])
    same(program, phases)


def test_too_many_phases_are_not_written_out() -> None:
    text = LAYER.replace("% 2", "% 5").replace("// 2", "// 5")
    assert MOST < 5 * 5
    program = parse_program(text, {})
    assert split_phases(program) == program


def test_sums_without_strides_are_left_alone() -> None:
    text = "def f(float32 A[N,K], float32 B[K,M]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }"
    program = parse_program(text)
    assert split_phases(program) == program


def test_a_scattered_sum_is_gathered() -> None:
    program = parse_program(SCATTERED)
    gathered = gather_sums(program)
    (s,) = gathered.statements
    assert s.reductions == ("r",) and str(s.target) == "Y[x]"
    assert str(s.value) == "X[x - r] * W[r]"
    same(specialise(program, {"N": 11}), specialise(gathered, {"N": 11}))


def test_elements_that_are_reached_once_are_not_gathered() -> None:
    text = """def f(float32 X[5,3], float32 Y[15]) -> (Y) {
        Y[3*i + j] += X[i,j]
    }"""
    program = parse_program(text)
    assert gather_sums(program) is program


@st.composite
def layers(draw: st.DrawFn) -> str:
    """Transposed convolutions in one dimension or two, scattered or gathered."""
    rank, scattered = draw(st.integers(1, 2)), draw(st.booleans())
    image, taps, target, places, where, shape = [], [], [], [], [], []
    for x, p, r in ("xpr", "yqs")[:rank]:
        size, window = draw(st.integers(1, 6)), draw(st.integers(1, 5))
        stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        full = stride * size + dilation * window
        image.append(size)
        taps.append(window)
        shape.append(full)
        if scattered:
            target.append(f"{stride}*{p} + {dilation}*{r}")
            places.append(p)
        else:
            at = f"({x} + {draw(st.integers(0, 2))} - {dilation}*{r}) "
            places.append(f"{at}// {stride}")
            target.append(x)
            where += [f"{x} in 0:{full}", f"{at}% {stride} == 0"]
            where += [f"0 <= {at}// {stride}", f"{at}// {stride} < {size}"]
    y = f"float32 Y[2,{','.join(map(str, shape))}]"
    lines = [
        f"def f(float32 X[3,{','.join(map(str, image))}], "
        f"float32 W[3,2,{','.join(map(str, taps))}], {y}) -> (Y, Z) {{",
        f"Y[k,{','.join(target)}] += X[c,{','.join(places)}] * W[c,k,{','.join('rs'[:rank])}]"
        + (f" where {', '.join(where)}" if where else ""),
        f"Z[k,{','.join('xy'[:rank])}] = 2*Y[k,{','.join('xy'[:rank])}]",
        "}",
    ]
    return "\n".join(lines)


@settings(max_examples=60, deadline=None)
@given(layers())
def test_random_layers_stay_the_same(text: str) -> None:
    program = parse_program(text, {})
    same(program, split_phases(program))


@pytest.mark.parametrize("stride, window", [(2, 5), (3, 2), (4, 4)])
def test_unknown_sizes(stride: int, window: int) -> None:
    text = f"""def f(float32 X[C,N], float32 W[C,{window}]) -> (Y) {{
        Y[x] +=! X[c,(x - r) // {stride}] * W[c,r]
            where x in 0:{stride}*N + 1, (x - r) % {stride} == 0,
            0 <= (x - r) // {stride}, (x - r) // {stride} < N
    }}"""
    program = parse_program(text)
    phases = split_phases(program)
    assert len([s for s in phases.statements if s.is_reduction]) == min(stride, window)
    for n in (0, 1, 2, 7):
        sizes = {"N": n, "C": 3}
        same(specialise(program, sizes), specialise(phases, sizes))
