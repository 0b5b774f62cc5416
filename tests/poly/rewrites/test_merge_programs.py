"""Merged programs: what they compute, what they look like, and how they are scheduled."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.c.function import emit_function
from codegen.pipeline import CUDA
from frontends.language.parse_program import parse_program
from poly.errors import ProgramError
from poly.graph_passes.fuse_calls import Apart, fused
from poly.ir.program import Program
from poly.machine.gpu import ANY
from poly.rewrites.merge_programs import align, covers, inline, merge, renamed, simplified
from poly.schedule.schedule import Schedule
from poly.strategy.common.grouping import groups
from poly.strategy.cpu.auto_schedule import auto_schedule
from runtime.reference.evaluate import evaluate

Arrays = dict[str, np.ndarray]

CONV = """def conv(float32 X[1,8,6,6], float32 W[16,8,3,3], float32 B[16]) -> (Y) {
    float32 T[1,16,6,6]
    T[n,k,p,q] +=! X[n,c,p+r-1,q+s-1] * W[k,c,r,s]
        where n in 0:1, k in 0:16, p in 0:6, q in 0:6, c in 0:8, r in 0:3, s in 0:3,
              0 <= p+r-1, p+r-1 < 6, 0 <= q+s-1, q+s-1 < 6
    Y[n,k,p,q] = T[n,k,p,q] + B[k] where n in 0:1, k in 0:16, p in 0:6, q in 0:6
}"""
BARE = """def conv(float32 X[1,8,6,6], float32 W[16,8,1,1]) -> (Y) {
    Y[n,k,p,q] +=! X[n,c,p,q] * W[k,c,0,0]
        where n in 0:1, k in 0:16, p in 0:6, q in 0:6, c in 0:8
}"""
GROUPED = """def conv(float32 X[1,8,6,6], float32 W[16,4,1,1]) -> (Y) {
    Y[n,8*g+k,p,q] +=! X[n,4*g+c,p,q] * W[8*g+k,c,0,0]
        where n in 0:1, g in 0:2, k in 0:8, p in 0:6, q in 0:6, c in 0:4
}"""
RELU = """def relu(float32 X[1,16,6,6]) -> (Y) {
    Y[i,j,k,l] = max(X[i,j,k,l], 0) where i in 0:1, j in 0:16, k in 0:6, l in 0:6
}"""
ADD = """def add(float32 A[1,16,6,6], float32 B[1,16,6,6]) -> (Y) {
    Y[i,j,k,l] = A[i,j,k,l] + B[i,j,k,l] where i in 0:1, j in 0:16, k in 0:6, l in 0:6
}"""


def drawn(program: Program) -> Arrays:
    rng = np.random.default_rng(3)
    shapes = {t.name: [e.value for e in t.shape] for t in program.inputs}  # type: ignore[attr-defined]
    return {
        t.name: (4 * rng.standard_normal(shapes[t.name])).astype(t.dtype.numpy)
        for t in program.inputs
    }


def check(first: str, second: str, bindings: dict[str, str]) -> Program:
    """Merge two programs, and compare with running one after the other, bit for bit."""
    one, two = parse_program(first), parse_program(second)
    merged = merge(one, two, bindings)
    names = renamed(one, two, bindings)
    short = simplified(merged)
    arrays = drawn(merged)
    made = evaluate(one, {t.name: arrays[t.name] for t in one.inputs})
    given = {t.name: arrays[names[t.name]] for t in two.inputs if t.name not in bindings}
    expected = evaluate(two, {**given, **{k: made[v] for k, v in bindings.items()}})
    for program in (merged, short):
        inputs = {t.name: arrays[t.name] for t in program.inputs}
        found = evaluate(program, inputs)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[names[name]], array)
    return short


def test_an_epilogue() -> None:
    short = check(CONV, RELU, {"X": "Y"})
    assert [str(s.value) for s in short.statements[1:]] == ["max(T[n, k, p, q] + B[k], 0)"]
    assert [t.name for t in short.temps] == ["T"]
    assert [t.name for t in short.outputs] == ["Y1"]


def test_the_result_of_a_reduction_becomes_a_temporary() -> None:
    short = check(BARE, RELU, {"X": "Y"})
    assert [t.name for t in short.temps] == ["Y"]
    assert short.statements[1].ranges == short.statements[0].ranges[:4]


def test_groups_of_channels_are_followed() -> None:
    short = check(GROUPED, RELU, {"X": "Y"})
    assert str(short.statements[1]).startswith(
        "Y1[n, 8 * g + k, p, q] = max(Y[n, 8 * g + k, p, q], 0)"
    )


def test_a_residual() -> None:
    both = check(CONV, ADD, {"A": "Y"})
    assert [t.name for t in both.inputs] == ["X", "W", "B", "B1"]
    full = check(str(both), RELU, {"X": "Y1"})
    assert str(full.statements[1].value) == "max(T[n, k, p, q] + B[k] + B1[n, k, p, q], 0)"


def test_one_value_for_two_inputs() -> None:
    one, two = parse_program(RELU), parse_program(ADD)
    merged = simplified(merge(one, two, {"A": "Y", "B": "Y"}))
    assert len(merged.statements) == 1
    arrays = drawn(one)
    r = evaluate(one, arrays)["Y"]
    np.testing.assert_array_equal(evaluate(merged, arrays)["Y1"], r + r)


def test_shared_inputs() -> None:
    one, two = parse_program(RELU), parse_program(ADD)
    merged = simplified(merge(one, two, {"A": "Y"}, {"B": "X"}))
    assert [t.name for t in merged.inputs] == ["X"]
    assert str(merged.statements[0].value) == "max(X[i, j, k, l], 0) + X[i, j, k, l]"


def test_a_kept_output() -> None:
    merged = simplified(merge(parse_program(CONV), parse_program(RELU), {"X": "Y"}, keep=["Y"]))
    assert [t.name for t in merged.outputs] == ["Y", "Y1"]
    assert len(merged.statements) == 3


def test_index_and_tensor_names_do_not_meet() -> None:
    one = "def f(float32 i[4], float32 Y1[4]) -> (Y) { Y[x] = i[x] + Y1[x] where x in 0:4 }"
    two = "def g(float32 X[4], float32 x[4]) -> (Y) { Y[i] = X[i] * x[i] where i in 0:4 }"
    check(one, two, {"X": "Y"})


@pytest.mark.parametrize(
    "bindings, shared",
    [({"X": "X"}, {}), ({"A": "Y"}, {}), ({"X": "Y"}, {"X": "W"}), ({"Y": "Y"}, {})],
)
def test_bindings_that_do_not_fit(bindings: dict[str, str], shared: dict[str, str]) -> None:
    with pytest.raises(ProgramError, match="cannot be"):
        merge(parse_program(CONV), parse_program(RELU), bindings, shared)


def test_programs_with_sizes() -> None:
    """Sizes of one name are one; those of another are another shape."""
    first = parse_program("def f(float32 X[N]) -> (Y) { Y[i] = X[i] + 1 }")
    second = parse_program("def g(float32 X[N]) -> (Y) { Y[i] = X[i] * 2 }")
    both = merge(first, second, {"X": "Y"})
    assert both.sizes == ("N",)
    x = np.arange(5, dtype=np.float32)
    (found,) = evaluate(both, {"X": x}).values()
    np.testing.assert_array_equal(found, (x + 1) * 2)
    other = parse_program("def g(float32 X[M]) -> (Y) { Y[i] = X[i] * 2 }")
    with pytest.raises(ProgramError, match="cannot be"):
        merge(first, other, {"X": "Y"})


# --- inlining ------------------------------------------------------------------------------


def inlined(text: str) -> Program:
    """The program with what can be inlined; checked against the original, bit for bit."""
    program = parse_program(text)
    short = inline(program)
    arrays = drawn(program)
    inputs = {t.name: arrays[t.name] for t in short.inputs}
    for name, array in evaluate(program, arrays).items():
        np.testing.assert_array_equal(evaluate(short, inputs)[name], array)
    return short


@pytest.mark.parametrize(
    "dtype, value, kept",
    [
        ("float32", "X[i] * 3", "X[i] * 3"),
        ("float64", "X[i] * 3", "float64(X[i] * 3)"),
        ("float16", "X[i] * 3", "float16(X[i] * 3)"),
        ("int8", "int8(X[i])", "int8(X[i])"),
        ("int32", "int8(X[i]) + int8(100)", "int32(int8(X[i]) + int8(100))"),
        ("float32", "0.5", "float32(0.5)"),
    ],
)
def test_what_is_stored_is_rounded(dtype: str, value: str, kept: str) -> None:
    short = inlined(
        "def f(float32 X[5]) -> (Y) {"
        f" {dtype} T[5]; T[i] = {value} where i in 0:5;"
        " Y[i] = T[i] + X[i] where i in 0:5 }"
    )
    assert [str(s.value) for s in short.statements] == [f"{kept} + X[i]"]


@pytest.mark.parametrize(
    "dtype, value", [("float16", "0.1"), ("int32", "0.5"), ("float32", "16777217")]
)
def test_numbers_that_a_type_does_not_have_stay(dtype: str, value: str) -> None:
    short = inlined(
        "def f(float32 X[5]) -> (Y) {"
        f" {dtype} T[5]; T[i] = {value} where i in 0:5;"
        " Y[i] = T[i] + X[i] where i in 0:5 }"
    )
    assert len(short.statements) == 2


@pytest.mark.parametrize(
    "body",
    [
        # written twice
        "T[i] = X[i] where i in 0:5; T[i] = X[i] + 1 where i in 0:3; Y[i] = T[i] where i in 0:5",
        # written in part
        "Y[i] = 0 where i in 0:5; T[i] = X[i] where i in 0:3; Y[i] = T[i] where i in 0:3",
        # what it was computed from changes
        "Y[i] = X[i] where i in 0:5; T[i] = Y[i] where i in 0:5; Y[i] = 2*Y[i] where i in 0:5"
        "; Z[i] = T[i] where i in 0:5",
        # read at a place that depends on data, which is clamped
        "T[i] = X[i] * 2 where i in 0:5; Y[i] = T[int32(X[i])] where i in 0:5",
        # many elements, an expensive value each
        "U[i] = exp(X[i]) where i in 0:5; Y[i] +=! U[j] where i in 0:5, j in 0:5",
        # used again and again
        "T[i] = X[i] * 2 where i in 0:5; Y[i] +=! T[j] * X[i] where i in 0:5, j in 0:5",
        # read by itself
        "T[i] = X[i] where i in 0:5; T[i] += T[i] where i in 0:5; Y[i] = T[i] where i in 0:5",
    ],
)
def test_what_is_not_inlined(body: str) -> None:
    temps = "float32 T[5]" if "T[" in body else "float32 U[5]"
    out = "Y, Z" if "Z[" in body else "Y"
    text = f"def f(float32 X[5]) -> ({out}) {{ {temps}; {body} }}"
    assert inlined(text) == parse_program(text)


def test_a_statement_that_nobody_reads_goes() -> None:
    short = inlined(
        "def f(float32 X[5]) -> (Y) { float32 T[5];"
        " T[i] = X[i] where i in 0:5; Y[i] = X[i] where i in 0:5 }"
    )
    assert not short.temps and len(short.statements) == 1


def test_copies_are_inlined_into_anything() -> None:
    short = inlined(
        "def f(float32 A[4,5], float32 B[4,6]) -> (Y) { float32 T[5,4];"
        " T[i,j] = A[j,i] where i in 0:5, j in 0:4;"
        " Y[i,j] +=! T[i,k] * B[k,j] where i in 0:5, j in 0:6, k in 0:4 }"
    )
    assert str(short.statements[0].value) == "A[k, i] * B[k, j]"


def test_alignment_needs_the_same_points() -> None:
    for text in (
        "Y[i] = T[i] + T[5-i] where i in 0:6",
        "Y[i] = T[i] where i in 1:6; Y[i] = 0 where i in 0:1",
        "Y[i] = T[i] where i in 0:6, i <= 3; Y[i] = 0 where i in 4:6",
        "Y[i,j] = T[i] where i in 0:6, j in 0:2",
    ):
        program = parse_program(
            "def f(float32 X[6,3]) -> (Y) { float32 T[6];"
            f" T[2*a+b] +=! X[2*a+b,k] where a in 0:3, b in 0:2, k in 0:3; {text} }}"
        )
        aligned = align(program)
        moved = [s for s in aligned.statements if "a" in s.indices]
        assert len(moved) == (2 if "5-i" in text else 1)
        arrays = drawn(program)
        np.testing.assert_array_equal(
            evaluate(aligned, arrays)["Y"], evaluate(program, arrays)["Y"]
        )


@pytest.mark.parametrize(
    "target, ranges, whole",
    [
        ("T[i,j]", "i in 0:4, j in 0:6", True),
        ("T[i,j]", "i in 0:4, j in 0:5", False),
        ("T[i,j]", "i in 1:4, j in 0:6", False),
        ("T[i,3*j+k]", "i in 0:4, j in 0:2, k in 0:3", True),
        ("T[i,j+2*k]", "i in 0:4, j in 0:2, k in 0:3", True),
        ("T[i,2*j+k]", "i in 0:4, j in 0:2, k in 0:3", False),
        ("T[i,j+1]", "i in 0:4, j in 0:5", False),
        ("T[i,j]", "i in 0:4, j in 0:6, i <= j", False),
        ("T[i,5-j]", "i in 0:4, j in 0:6", False),
        ("T[i,i]", "i in 0:4", False),
        ("T[i,6*m+j]", "i in 0:4, m in 0:1, j in 0:6", True),
    ],
)
def test_covers(target: str, ranges: str, whole: bool) -> None:
    program = parse_program(
        f"def f(float32 X[1]) -> (Y) {{ float32 T[4,6]; {target} = X[0] where {ranges};"
        " Y[i] = X[i] where i in 0:1 }"
    )
    assert covers(program.statements[0], program.temps[0]) is whole


# --- what pays -----------------------------------------------------------------------------


def both(first: str, second: str, lanes: bool = True, **bindings: str) -> Program | None:
    pairs = tuple(bindings.items())
    found = fused(parse_program(first), parse_program(second), pairs, (), lanes)
    return None if isinstance(found, Apart) else found


@pytest.mark.parametrize("first", [CONV, BARE, GROUPED])
def test_merged_epilogues_share_the_loops_and_stay_in_registers(first: str) -> None:
    program = both(first, ADD, A="Y")
    assert program is not None
    schedule = auto_schedule(Schedule.of(program))
    assert len(groups(schedule)) == 1
    assert "register" in str(schedule)
    assert emit_function(schedule, "f").workspace == ()


SHAPE = "i in 0:1, j in 0:16, k in 0:6, l in 0:6"


@pytest.mark.parametrize(
    "first, second",
    [
        # a loop's number is no operand of lanes
        (CONV, f"def f(float32 X[1,16,6,6]) -> (Y) {{ Y[i,j,k,l] = X[i,j,k,l] * float32(j)"
               f" where {SHAPE} }}"),
        # the value is used again for each of its neighbours
        (CONV, CONV.replace("X[1,8,6,6]", "X[1,16,6,6]").replace("[16,8,3,3]", "[16,16,3,3]")
                   .replace("c in 0:8", "c in 0:16")),
        (RELU, CONV.replace("X[1,8,6,6]", "X[1,16,6,6]").replace("[16,8,3,3]", "[16,16,3,3]")
                   .replace("c in 0:8", "c in 0:16")),
        # other points
        (CONV, "def f(float32 X[1,16,6,6]) -> (Y) { Y[i,j,k,l] = X[i,j,k+1,l]"
               " where i in 0:1, j in 0:16, k in 0:5, l in 0:6 }"),
        # parts put together
        (RELU, "def f(float32 X[1,16,6,6], float32 Z[1,2,6,6]) -> (Y) {"
               f" Y[i,j,k,l] = X[i,j,k,l] where {SHAPE};"
               " Y[i,j+16,k,l] = Z[i,j,k,l] where i in 0:1, j in 0:2, k in 0:6, l in 0:6 }"),
        # another type than that of the lanes
        (CONV, f"def f(float32 X[1,16,6,6]) -> (Y) {{ Y[i,j,k,l] = float64(X[i,j,k,l])"
               f" where {SHAPE} }}"),
        # two reductions in a row
        (BARE, "def f(float32 X[1,16,6,6]) -> (Y) {"
               f" Y[i,j] max=! X[i,j,k,l] where {SHAPE} }}"),
        # a value for each of many others
        ("def f(float32 X[6]) -> (Y) { Y[i] = exp(X[i]) where i in 0:6 }",
         "def g(float32 X[6], float32 Z[99,6]) -> (Y) { Y[i,j] = X[j] * Z[i,j]"
         " where i in 0:99, j in 0:6 }"),
    ],
)  # fmt: skip
def test_what_is_not_merged(first: str, second: str) -> None:
    assert both(first, second, X="Y") is None


@pytest.mark.parametrize("value", ["X[i,j,k,l] * float32(j)", "float64(X[i,j,k,l])"])
def test_what_only_lanes_cannot(value: str) -> None:
    """A thread of a GPU has registers of all types, and computes what it likes of them."""
    second = f"def f(float32 X[1,16,6,6]) -> (Y) {{ Y[i,j,k,l] = {value} where {SHAPE} }}"
    assert both(CONV, second, X="Y") is None
    program = both(CONV, second, lanes=False, X="Y")
    assert program is not None
    source = CUDA.automatic(program, ANY, exact=True).source
    assert len(source.kernels) == 1 and source.workspace == ()


def test_an_elementwise_value_goes_into_a_window() -> None:
    pool = """def pool(float32 X[1,16,6,6]) -> (Y) { Y[n,c,p,q] max=! X[n,c,2*p+r,2*q+s]
        where n in 0:1, c in 0:16, p in 0:3, q in 0:3, r in 0:2, s in 0:2 }"""
    program = both(RELU, pool, X="Y")
    assert program is not None and not program.temps
