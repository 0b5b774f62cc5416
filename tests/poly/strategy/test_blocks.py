"""Blocks: statements that run step by step, so that each may read what another one left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import farkas as fk
from codegen.pipeline import CPU
from frontends.language.parse_program import parse_program
from poly.errors import IllegalScheduleError, ProgramError
from poly.graph_passes.fuse_calls import Apart, fused
from poly.ir.expr import Const
from poly.ir.program import Program, specialise, verify_program
from poly.machine.cpu import host_machine
from poly.rewrites.eliminate_dead import eliminate_dead
from poly.rewrites.fold_constants import fold_statements
from poly.rewrites.join_dimensions import join_dimensions
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import groups
from poly.strategy.cpu.auto_schedule import auto_schedule
from poly.tree.nodes import loops_of
from runtime.reference.evaluate import evaluate
from runtime.reference.interpret import instances, run_instances

PAIR = """def pair(float32 X[T], float32 a0[]) -> (A) {
    A[0] = a0[]
    B[0] = 1
    for t in 0:T {
        A[t+1] = A[t] + X[t] * B[t]
        B[t+1] = B[t] - A[t+1]
    }
}"""
LSTM = """def lstm(float32 X[T,N], float32 W[4,M,N], float32 R[4,M,M], float32 h0[M], float32 c0[M]) -> (Y) {
    G[t,g,j] +=! X[t,n] * W[g,j,n]
    H[0,j] = h0[j]
    C[0,j] = c0[j]
    for t in 0:T {
        cell: G[t,g,j] += R[g,j,k] * H[t,k]
        C[t+1,j] = sigmoid(G[t,2,j]) * C[t,j] + sigmoid(G[t,0,j]) * tanh(G[t,3,j])
        H[t+1,j] = sigmoid(G[t,1,j]) * tanh(C[t+1,j])
    }
    Y[t,j] = H[t+1,j]
}"""  # noqa: E501


def lstm_arrays(steps: int, inputs: int, hidden: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = {
        "X": (steps, inputs), "W": (4, hidden, inputs), "R": (4, hidden, hidden),
        "h0": (hidden,), "c0": (hidden,),
    }  # fmt: skip
    return {
        n: (0.3 * random.standard_normal(shape)).astype(np.float32) for n, shape in shapes.items()
    }


def lstm_by_hand(arrays: dict[str, np.ndarray]) -> np.ndarray:
    def sigmoid(x):
        return 1 / (1 + np.exp(-x.astype(np.float64)))

    h, c, found = arrays["h0"], arrays["c0"], []
    for x in arrays["X"]:
        i, o, f, g = arrays["W"] @ x + arrays["R"] @ h
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return np.asarray(found).reshape(len(arrays["X"]), len(h))


@pytest.mark.parametrize("text", [PAIR, LSTM])
def test_what_is_printed_is_the_same_program(text: str) -> None:
    program = parse_program(text)
    assert parse_program(str(program)) == program
    assert [len(g) for g in program.groups].count(1) == len(program.groups) - 1


def test_the_reference_runs_step_by_step() -> None:
    x = np.array([3, -1, 2], np.float32)
    a, b, expected = np.float32(2), np.float32(1), [2.0]
    for v in x:
        a = a + v * b
        b = b - a
        expected.append(float(a))
    program = parse_program(PAIR)
    arrays = {"X": x, "a0": np.array(2, np.float32)}
    assert evaluate(program, arrays)["A"].tolist() == expected
    order = instances(program, {"T": 3})
    assert [str(i) for i in order][2:6] == ["S2[0]", "S3[0]", "S2[1]", "S3[1]"]
    assert run_instances(program, arrays, {"T": 3}, order)["A"].tolist() == expected


@pytest.mark.parametrize("sizes", [(5, 4, 3), (1, 1, 1), (0, 3, 2), (7, 20, 33)])
@pytest.mark.parametrize("schedule", ["written", "auto"])
def test_kernels(sizes: tuple[int, int, int], schedule: str) -> None:
    arrays = lstm_arrays(*sizes)
    expected = lstm_by_hand(arrays)
    kernel = fk.compile(LSTM, schedule=schedule)
    np.testing.assert_allclose(kernel(**arrays), expected, rtol=1e-4, atol=1e-5)
    named = dict(zip("TNM", sizes, strict=True))
    fixed = fk.compile(LSTM, schedule=schedule, sizes=named)
    for threads in (1, 2):
        found = fixed(**arrays, threads=threads)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_kernel_of_exact_sums_equals_the_reference() -> None:
    kernel = fk.compile(PAIR, exact=True)
    x = np.random.default_rng(0).standard_normal(20).astype(np.float32)
    arrays = {"X": x, "a0": np.array(0.5, np.float32)}
    np.testing.assert_array_equal(kernel(**arrays), evaluate(parse_program(PAIR), arrays)["A"])


def test_what_is_in_a_step_is_scheduled_like_any_program() -> None:
    sizes = {"T": 50, "N": 128, "M": 128}
    s = auto_schedule(Schedule.of(specialise(parse_program(LSTM), sizes)))
    assert ("S4", "S5") in groups(s), "the two states of a step share a loop"
    assert loops_of(s.tree, "cell")[0].name == "t"
    assert {m.mark for m in loops_of(s.tree, "S4")} == {"seq", "vector"}
    assert str(auto_schedule(s.of(s.program))) == str(s)


def test_a_step_may_be_one_tile() -> None:
    text = """def f(float32 G[9,2,64], float32 R[64,64]) -> (float32 H[10,2,64]) {
        float32 S[9,2,64]
        H[0,b,j] = 0 where b in 0:2
        for t in 0:9 {
            product: S[t,b,j] +=! R[k,j] * H[t,b,k]
            H[t+1,b,j] = tanh(G[t,b,j] + S[t,b,j])
        }
    }"""
    s = auto_schedule(Schedule.of(parse_program(text)))
    assert groups(s)[-1] == ("product_init", "product", "S2")
    assert "promote S to register" in s.show
    assert fk.compile(text).verify().close(1e-3)


def test_a_panel_that_lies_well_is_tiled_in_each_step() -> None:
    text = LSTM.replace("float32 R[4,M,M]", "float32 R[M,4,M]").replace("R[g,j,k]", "R[k,g,j]")
    s = auto_schedule(Schedule.of(specialise(parse_program(text), {"T": 9, "N": 128, "M": 128})))
    assert "promote cell: " in str(s) and "unroll cell: " in str(s)


def test_steps_cannot_be_torn_apart() -> None:
    s = Schedule.of(parse_program(PAIR))
    with pytest.raises(IllegalScheduleError) as caught:
        s.distribute("S2", "t")
    assert (caught.value.kind, caught.value.source, caught.value.sink) == (
        "flow", "S3[0]", "S2[1]",
    )  # fmt: skip
    with pytest.raises(IllegalScheduleError):
        s.parallelize("S2", "t")


def test_steps_that_only_look_back_within_a_step_can() -> None:
    text = """def f(float32 X[N,M]) -> (Y) { for i in 0:N {
        T[i,j] = X[i,j] * 2
        Y[i,j] = T[i,M-1-j] + 1
    } }"""
    s = Schedule.of(parse_program(text))
    assert s.parallelize("S0", "i") and s.distribute("S0", "i")


def test_only_what_an_output_needs_stays() -> None:
    text = """def f(float32 X[T]) -> (A) {
        A[0] = 0; B[0] = 0; C[0] = 0
        for t in 0:T {
            A[t+1] = A[t] + B[t]
            C[t+1] = C[t] + A[t]
            B[t+1] = X[t] + B[t]
        }
    }"""
    program = eliminate_dead(parse_program(text))
    assert [s.target.tensor for s in program.statements] == ["A", "B", "A", "B"]
    kernel = fk.compile(text)
    x = np.arange(6, dtype=np.float32)
    expected = np.concatenate([[0, 0], np.cumsum(np.cumsum(x))[:-1]])
    np.testing.assert_array_equal(kernel(x), expected)


def test_passes_leave_steps_alone() -> None:
    fixed = specialise(parse_program(LSTM), {"T": 3, "N": 4, "M": 5})
    assert join_dimensions(fixed) is fixed and CPU.prepare(fixed, host_machine()) is fixed
    relu = parse_program("def relu(float32 X[3,5]) -> (Y) { Y[i,j] = max(X[i,j], 0) }")
    assert isinstance(fused(fixed, relu, (("X", "Y"),), (), lanes=True), Apart)
    text = "def f(float32 X[4]) -> (Y) { for t in 0:4 { A[t] = X[t] * 2; Y[t] = A[t] } }"
    program = parse_program(text)
    assert fold_statements(program, frozenset(["X"])).program is program


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for t in 0:N { Y[t] = B[t]; B[t+1] = X[t] }", r"B\[0\] is read before it is written"),
        ("B[0] = 0; for t in 0:N { Y[t] = B[t+1]; B[t+1] = X[t] }", r"B\[1\] is read before"),
        ("for t in 0:N { Y[t] = X[t] + B[t,0]; B[t,j] = 0 where j in 0:2 }", r"B\[0, 0\] is read"),
        ("for t in 0:N { Y[t+1] = X[t] }", r"Y\[0\] is never written"),
        ("for t in 0:N { Y[t] += X[t] }", r"Y\[0\] is read before it is written"),
    ],
)
def test_what_no_earlier_step_wrote_cannot_be_read(body: str, message: str) -> None:
    with pytest.raises(fk.LanguageError, match=message):
        parse_program(f"def f(float32 X[N]) -> (Y) {{ {body} }}")


@pytest.mark.parametrize(
    "body",
    [
        "B[0] = 0; for t in 0:N { Y[t] = B[t]; B[t+1] = X[t] }",
        "for t in 0:N { B[t] = X[t]; Y[t] = B[t] }",
        "for t in 0:N { B[t,j] = X[t] where j in 0:2; Y[t] +=! B[t,j] }",
        "for t in 0:N { Y[t] +=! X[t] where k in 0:3 }",
        "B[0] = 0; B[1] = 0; for t in 0:N { Y[t] = B[t] + B[t+1]; B[t+2] = X[t] }",
    ],
)
def test_what_an_earlier_step_wrote_can(body: str) -> None:
    program = parse_program(f"def f(float32 X[N]) -> (Y) {{ {body} }}")
    assert parse_program(str(program)) == program and not program.constraints


def _changed(program: Program, position: int, **changes: object) -> Program:
    found = list(program.statements)
    found[position] = replace(found[position], **changes)  # type: ignore[arg-type]
    return replace(program, statements=tuple(found))


def test_rules_of_the_representation() -> None:
    program = parse_program(PAIR)
    with pytest.raises(ProgramError, match="not adjacent"):
        verify_program(_changed(program, 0, block=1, ranges=program.statements[2].ranges))
    other = replace(program.statements[3].ranges[0], hi=Const(2))
    with pytest.raises(ProgramError, match="does not run along"):
        verify_program(_changed(program, 3, ranges=(other,)))


DIRECTIONS = """def f(float32 G[2,9,8,64], float32 R[2,64,64]) -> (float32 H[2,10,8,64]) {
    float32 S[2,9,8,64]
    H[d,0,b,j] = 0 where b in 0:8
    for t in 0:9 {
        product: S[d,t,b,j] +=! R[d,k,j] * H[d,t,b,k]
        H[d,t+1,b,j] = tanh(G[d,t,b,j] + S[d,t,b,j])
    }
}"""


def test_what_does_not_depend_on_one_another_runs_around_the_steps() -> None:
    machine = replace(host_machine(), cores=2)
    s = auto_schedule(Schedule.of(parse_program(DIRECTIONS)), machine)
    loops = loops_of(s.tree, "product")
    assert [(m.name, m.mark) for m in loops[:2]] == [("d", "parallel"), ("t", "seq")]
    assert all(m.mark != "parallel" for m in loops[1:])
    assert any(m.mark == "vector" for m in loops)
    one = replace(machine, cores=3)
    s = auto_schedule(Schedule.of(parse_program(DIRECTIONS)), one)
    assert loops_of(s.tree, "product")[0].name == "t", "two iterations are too few for three"


def test_rows_run_around_steps_along_them() -> None:
    """Their number may be unknown: one step of all rows would read far apart."""
    text = """def f(float32 X[N,M]) -> (float32 Y[N,M+1]) {
        Y[i,0] = 1
        for j in 0:M { scan: Y[i,j+1] = Y[i,j] * X[i,j] }
    }"""
    s = auto_schedule(Schedule.of(parse_program(text)), host_machine())
    loops = loops_of(s.tree, "scan")
    assert [(m.name, m.mark) for m in loops] == [("i", "parallel"), ("j", "seq")]
    columns = """def f(float32 X[M,N]) -> (float32 Y[M+1,N]) {
        Y[0,i] = 1
        for j in 0:M { scan: Y[j+1,i] = Y[j,i] * X[j,i] }
    }"""
    s = auto_schedule(Schedule.of(parse_program(columns)), host_machine())
    assert loops_of(s.tree, "scan")[0].name == "j"


def test_what_is_used_again_stays_inside_of_a_step() -> None:
    text = DIRECTIONS.replace("R[2,64,64]", "R[64,64]").replace("R[d,k,j]", "R[k,j]")
    machine = replace(host_machine(), cores=2)
    s = auto_schedule(Schedule.of(parse_program(text)), machine)
    assert loops_of(s.tree, "product")[0].name == "t"


def test_short_steps_are_those_of_one_thread() -> None:
    text = DIRECTIONS.replace("R[2,64,64]", "R[64,64]").replace("R[d,k,j]", "R[k,j]")
    machine = replace(host_machine(), cores=2)
    for batch, shared in ((2, False), (64, True)):
        own = text.replace("8", str(batch))
        s = auto_schedule(Schedule.of(parse_program(own)), machine)
        marks = {m.mark for m in loops_of(s.tree, "product")}
        assert ("parallel" in marks) == shared


def test_a_step_whose_loop_another_tactic_has_split() -> None:
    kernel = fk.compile("def f(float32 A[N]) -> (A) { for i in 0:N { S: A[i] +=! A[i] } }")
    assert np.array_equal(kernel(np.ones(5, np.float32)), np.zeros(5, np.float32))
