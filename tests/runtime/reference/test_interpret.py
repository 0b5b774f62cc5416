"""The instance interpreter: equal to the reference in order, and wrong out of order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontends.language.parse_program import parse_program
from poly.errors import ProgramError
from poly.ir.dtypes import FLOAT16, FLOAT32, FLOAT64, INT8, INT32, DType, combine
from poly.ir.expr import Const, Expr
from poly.ir.program import Program, Statement
from runtime.reference.evaluate import run
from runtime.reference.interpret import Instance, instances, run_instances
from runtime.reference.verify import compare, random_inputs, verify
from tests.runtime.programs import (
    N,
    i,
    j,
    k,
    matmul,
    op,
    program,
    read,
    scan,
    span,
    statement,
    tensor,
)


def test_instances_are_listed_in_written_order() -> None:
    assert [str(x) for x in instances(matmul(), {"N": 1, "M": 2, "K": 2})] == [
        "S_init[0, 0]",
        "S_init[0, 1]",
        "S[0, 0, 0]",
        "S[0, 0, 1]",
        "S[0, 1, 0]",
        "S[0, 1, 1]",
    ]


def test_guards_and_scalars() -> None:
    s0 = statement("S", read("Y", i), "+=!", 1.0, span(i=3, k=2), "k", (op("lt", k, i),))
    s1 = statement("R", read("Z"), "=", 1.0, ())
    f = program([s0, s1], [], [tensor("Y", 3), tensor("Z")])
    names = [str(x) for x in instances(f, {})]
    assert names == ["S_init[0]", "S_init[1]", "S_init[2]", "S[1, 0]", "S[2, 0]", "S[2, 1]", "R[]"]
    empty = statement("S", read("Y", i), "=", 1.0, span(i=N))
    assert instances(program([empty], [], [tensor("Y", N)], sizes="N"), {"N": 0}) == []


def prefix_sum() -> Program:
    y = tensor("Y", N)
    value = op("add", read("Y", op("sub", i, 1)), read("Y", i))
    return program([statement("S", read("Y", i), "=", value, span(i=(1, N)))], [y], [y], sizes="N")


def test_an_illegal_order_changes_the_result() -> None:
    f, x = prefix_sum(), np.arange(1, 6, dtype=np.float32)
    order = instances(f, {"N": 5})
    right = run_instances(f, {"Y": x}, None, order)["Y"]
    assert right.tolist() == [1, 3, 6, 10, 15]
    wrong = run_instances(f, {"Y": x}, None, reversed(order))["Y"]
    assert wrong.tolist() == [1, 3, 5, 7, 9]
    assert x.tolist() == [1, 2, 3, 4, 5]


def test_a_race_loses_an_update() -> None:
    f = matmul()
    arrays = {"A": np.ones((1, 2), np.float32), "B": np.ones((2, 1), np.float32)}
    order = instances(f, {"N": 1, "M": 1, "K": 2})
    first, second = order[1:]
    assert run_instances(f, arrays, None, order)["C"].tolist() == [[2]]
    lost = run_instances(f, arrays, None, order, together=[(first, second)])
    assert lost["C"].tolist() == [[1]]


def test_a_race_of_a_read_with_a_write() -> None:
    f, x = prefix_sum(), np.arange(1, 4, dtype=np.float32)
    one, two = Instance("S", (1,)), Instance("S", (2,))
    got = run_instances(f, {"Y": x}, None, [one, two], together=[(two, one)])["Y"]
    assert got.tolist() == [1, 3, 5]


def test_unknown_instances() -> None:
    f, x = prefix_sum(), {"Y": np.zeros(3, np.float32)}
    with pytest.raises(ProgramError, match=r"no statement for the instance Q\[0\]"):
        run_instances(f, x, None, [Instance("Q", (0,))])
    with pytest.raises(ProgramError, match="S has 1 indices, not 2"):
        run_instances(f, x, None, [Instance("S", (0, 0))])
    with pytest.raises(ProgramError, match=r"S\[9\] writes outside of Y"):
        run_instances(f, x, None, [Instance("S", (9,))])


# --- random programs -----------------------------------------------------------------------

EXTENT = 6
DTYPES: list[DType] = [FLOAT32, FLOAT64, FLOAT16, INT8, INT32]


@st.composite
def index_expressions(draw: Any, names: list[Expr]) -> Expr:
    """An affine expression that stays within 0 to EXTENT - 1 for indices in 0 to 2."""
    kind = draw(st.sampled_from(["one", "constant", "shift", "sum", "stride", "half", "reverse"]))
    a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
    return {
        "one": a,
        "constant": Const(draw(st.integers(0, EXTENT - 1))),
        "shift": op("add", a, draw(st.integers(0, 3))),
        "sum": op("add", a, b),
        "stride": op("add", op("mul", 2, a), draw(st.integers(0, 1))),
        "half": op("floordiv", op("add", a, b), 2),
        "reverse": op("sub", EXTENT - 1, a),
    }[kind]


@st.composite
def values(draw: Any, names: list[Expr], tensors: dict[str, DType], depth: int = 2) -> Any:
    """A value expression with its dtype; operands that do not mix are not combined."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from(sorted(tensors)))
        at = [draw(index_expressions(names)) for _ in range(2)]
        return read(name, *at), tensors[name]
    a, da = draw(values(names, tensors, depth - 1))
    if draw(st.booleans()):
        literal = draw(st.integers(-3, 3))
        return op(draw(st.sampled_from(["add", "mul", "max"])), a, literal), da
    b, db = draw(values(names, tensors, depth - 1))
    fn = draw(st.sampled_from(["add", "sub", "mul", "max", "min"]))
    return op(fn, a, b), combine(da, db)


@st.composite
def programs(draw: Any) -> Program:
    dtypes = {n: draw(st.sampled_from(DTYPES)) for n in ("A", "B", "X", "Y")}
    statements: list[Statement] = []
    free: list[Expr] = [i, j]
    for number in range(draw(st.integers(1, 3))):
        target = draw(st.sampled_from(["X", "Y"])) if number else "Y"
        operator = draw(st.sampled_from(["=", "+=", "+=!", "*=", "max=!", "min=", "min=!"]))
        reduces = operator != "=" and draw(st.booleans())
        names = [*free, k] if reduces else free
        value, _ = draw(values(names, dtypes))
        ranges = span(i=3, j=3, k=3) if reduces else span(i=3, j=3)
        guards = []
        if draw(st.booleans()):
            a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
            fn = draw(st.sampled_from(["le", "lt", "ne", "eq"]))
            guards.append(op(fn, op("add", a, b), draw(st.integers(0, 4))))
        at = [draw(index_expressions(free)) for _ in range(2)]
        statements.append(
            statement(
                f"S{number}",
                read(target, *at),
                operator,
                value,
                ranges,
                "k" if reduces else "",
                tuple(guards),
            )
        )
    x, y = (tensor(n, EXTENT, EXTENT, dtype=dtypes[n]) for n in "XY")
    a, b = (tensor(n, EXTENT, EXTENT, dtype=dtypes[n]) for n in "AB")
    return (
        program(statements, [a, b, x, y], [y], (), "")
        if not any(s.target.tensor == "X" for s in statements)
        else program(statements, [a, b, x, y], [x, y], (), "")
    )


def same(f: Program, seed: int) -> None:
    arrays = random_inputs(f, {}, seed)
    expected = run(f, arrays).values
    got = run_instances(f, arrays, {}, instances(f, {}))
    for name, array in got.items():
        difference = compare(name, array, expected[name])
        assert difference.first is None, f"{f}\n{difference}"


@given(programs(), st.integers(0, 99))
def test_in_order_it_equals_the_reference(f: Program, seed: int) -> None:
    same(f, seed)


@pytest.mark.slow
def test_in_order_it_equals_the_reference_on_many() -> None:
    from hypothesis import settings

    settings(max_examples=3000)(given(programs(), st.integers(0, 99))(same))()


# --- verify --------------------------------------------------------------------------------


def test_inputs_of_a_recurrence_are_small() -> None:
    """With weights of -1 to 1 its states would be chaotic, and so depend on every rounding."""
    rnn = """def f(float32 X[9,N], float32 W[N,N]) -> (Y) {
        Y[t,j] = X[t,j]
        for t in 1:9 { Y[t,j] += W[k,j] * tanh(Y[t-1,k]) }
    }"""
    product = "def f(float32 X[9,N], float32 W[N,N]) -> (Y) { Y[t,j] +=! X[t,k] * W[k,j] }"
    for text, most in ((rnn, 1 / 8), (product, 1)):
        arrays = random_inputs(parse_program(text, {}), {"N": 64})
        for array in arrays.values():
            assert 0.9 * most < np.abs(array).max() <= most


def test_verify_accepts_the_right_function() -> None:
    def fn(a: Any, b: Any) -> Any:
        total = np.zeros((3, 4), np.float32)
        for n in range(5):
            total += a[:, n : n + 1] * b[n]
        return total

    report = verify(matmul(), fn, 1, {"N": 3, "M": 4, "K": 5})
    assert report.exact and report.close(0) and "C: equal" in str(report)


def test_verify_reports_the_first_difference() -> None:
    def fn(a: Any, b: Any) -> Any:
        result = a @ b
        result[1, 2] += 1
        return result

    report = verify(matmul(), fn, 0, {"N": 3, "M": 4, "K": 5})
    assert not report.exact and not report.close(0.1)
    assert 0.9 < report.outputs[0].max_abs < 1.1
    assert "C[" in str(report) and "N=3" in str(report)


def test_verify_passes_sizes_by_name_and_ignores_unwritten_elements() -> None:
    s0 = statement("S", read("Y", op("mul", 2, i)), "=", 1.0, span(i=N))
    f = program([s0], [], [tensor("Y", op("mul", 2, N))], sizes="N")

    def fn(N: int) -> Any:  # noqa: N803
        result = np.full(2 * N, np.nan, np.float32)
        result[::2] = 1
        return result

    assert verify(f, fn, sizes={"N": 4}).exact


def test_verify_does_not_let_a_function_spoil_its_inputs() -> None:
    def fn(h: Any, v: Any) -> Any:
        h[:] = np.nan
        return h

    report = verify(scan(), fn, sizes={"T": 3, "N": 2})
    assert not report.close(1e9) and report.outputs[0].mismatched > 0


def test_compare() -> None:
    nan = np.array([np.nan, 1.0, np.inf])
    assert compare("x", nan, nan.copy()).first is None
    assert compare("x", nan, np.array([np.nan, 1.0, -np.inf])).mismatched == 1
    assert compare("x", nan, nan.astype(np.float32)).got == "float64 (3,)"
    assert compare("x", np.zeros(2), np.zeros(3)).max_abs == np.inf
    d = compare("x", np.array([1.0, 2.5]), np.array([1.0, 2.0]))
    assert (d.first, d.max_abs, d.max_rel) == ((1,), 0.5, 0.25)
    assert "x[1]: got 2.5, expected 2.0" in str(d)
