"""Dimensions that loops run through together become one dimension of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.language import parse_program
from poly.graph import Call, Graph, verify_graph
from poly.join_dimensions import join_dimensions, join_in_graph
from poly.program import Program, Tensor, verify_program
from runtime.reference import evaluate

MEAN = "def f(float32 X[2,5,7,7]) -> (Y) { Y[n,c,0,0] +=! X[n,c,p,q] / 49.0 }"
SCALED = "def f(float32 X[2,5,7,7], float32 G[5]) -> (Y) { Y[n,c,p,q] = X[n,c,p,q] * G[c] }"


def given(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        t.name: rng.integers(0, 3, tuple(int(str(x)) for x in t.shape)).astype(t.dtype.numpy)
        for t in program.inputs
    }


def check(program: Program, expected: dict[str, tuple[int, ...]]) -> Program:
    """The joined program, which has these shapes and computes the same to the last bit."""
    changed, shapes = join_dimensions(program)
    assert shapes == expected
    verify_program(changed)
    arrays = given(program)
    views = {n: a.reshape(shapes.get(n, a.shape)) for n, a in arrays.items()}
    before, after = evaluate(program, arrays), evaluate(changed, views)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name].reshape(array.shape), array)
    return changed


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (MEAN, {"X": (10, 49), "Y": (10, 1, 1)}),
        (SCALED, {"X": (2, 5, 49), "Y": (2, 5, 49)}),
        # everything
        (
            "def f(float32 A[2,3,4], float32 B[2,3,4]) -> (Y) { Y[i,j,k] = A[i,j,k] + B[i,j,k] }",
            {"A": (24,), "B": (24,), "Y": (24,)},
        ),
        # through a temporary
        (
            """def f(float32 X[4,3,8]) -> (Y) {
                T[i,j] max=! X[i,j,k]
                Y[i,j,k] = X[i,j,k] - T[i,j]
            }""",
            {"T": (12,), "X": (12, 8), "Y": (12, 8)},
        ),
        # part of the outer dimension, from the middle
        (
            "def f(float32 X[6,5]) -> (float32 Y[6,5]) { Y[i,j] = 1 where i in 0:2, j in 0:5; "
            "Y[i,j] = X[i,j] where i in 2:6, j in 0:5 }",
            {"X": (30,), "Y": (30,)},
        ),
        # a layout
        (
            "def f(float32 X[2,3,4,5]) -> (Y) { Y[n,p,q,c] = X[n,c,p,q] }",
            {"X": (2, 3, 20), "Y": (2, 20, 3)},
        ),
        # rows that are found in a table
        (
            "def f(float32 X[6,3,4], int64 I[5]) -> (Y) { Y[i,j,k] = X[I[i],j,k] }",
            {"X": (6, 12), "Y": (5, 12)},
        ),
    ],
)  # fmt: skip
def test_what_is_joined(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    check(parse_program(text, {}), shapes)


def test_reductions_keep_their_order() -> None:
    changed = check(parse_program(MEAN, {}), {"X": (10, 49), "Y": (10, 1, 1)})
    (s,) = changed.statements
    assert (s.free, s.reductions) == (("n_c",), ("p_q",))


@pytest.mark.parametrize(
    "text",
    [
        "def f(float32 X[4,5]) -> (Y) { Y[j,i] = X[i,j] }",
        # rows with something between them
        "def f(float32 X[4,6]) -> (Y) { Y[i,j] = X[i,j] where i in 0:4, j in 0:5 }",
        "def f(float32 X[4,6]) -> (float32 Y[4,5]) { Y[i,j] = X[i,j+1] where i in 0:4, j in 0:5 }",
        # one loop is also alone
        "def f(float32 X[4,5]) -> (Y) { Y[i,j] = X[i,j] + i }",
        "def f(float32 X[4,5], float32 B[5]) -> (Y) { Y[i,j] = X[i,j] * B[j] }",
        "def f(float32 X[4,5]) -> (Y) { Y[i] +=! X[i,j] }",
        # triangles
        "def f(float32 X[4,4]) -> (Y) { Y[i,j] = X[i,j] * 2 where i in 0:4, j in 0:4; "
        "Y[i,j] = X[i,j] where j <= i }",
        # updated: its shape is the caller's
        "def f(float32 X[4,5]) -> (X) { X[i,j] += 1 where i in 0:4, j in 0:5 }",
        # extents that are not known
        "def f(float32 X[N,M]) -> (Y) { Y[i,j] = X[i,j] + 1 }",
        # other statements address the same tensor otherwise
        """def f(float32 X[4,5]) -> (Y, Z) {
            Y[i,j] = X[i,j]
            Z[i] = X[i,2]
        }""",
    ],
)
def test_what_is_not_joined(text: str) -> None:
    program = parse_program(text, {})
    changed, shapes = join_dimensions(program)
    assert not shapes
    assert changed == program


def graph_of(program: Program) -> Graph:
    values = {t.name.lower(): t for t in (*program.inputs, *program.outputs)}
    return Graph(
        "g",
        tuple(t.name.lower() for t in program.inputs),
        tuple(t.name.lower() for t in program.outputs),
        {n: Tensor(n, t.dtype, t.shape) for n, t in values.items()},
        {},
        (
            Call(
                "c", program,
                tuple(t.name.lower() for t in program.inputs),
                tuple(t.name.lower() for t in program.outputs),
            ),
        ),
    )  # fmt: skip


def test_in_a_graph() -> None:
    changed = verify_graph(join_in_graph(verify_graph(graph_of(parse_program(SCALED, {})))))
    assert [type(n).__name__ for n in changed.nodes] == ["View", "Call", "View"]
    assert changed.outputs == ("y",)


def test_views_have_names_of_their_own() -> None:
    graph = graph_of(parse_program(SCALED, {}))
    taken = Tensor("x_2x5x49", graph.values["x"].dtype, graph.values["x"].shape)
    other = Call("d", graph.nodes[0].program, ("x", "g"), (taken.name,))  # type: ignore[union-attr]
    values = {**graph.values, taken.name: taken}
    graph = Graph("g", graph.inputs, ("y", taken.name), values, {}, (other, *graph.nodes))
    verify_graph(join_in_graph(verify_graph(graph)))


def test_pixels_of_a_contraction_are_one_loop_unless_a_window_needs_them() -> None:
    text = "def f(float32 X[8,7,7], float32 W[4,8]) -> (Y) { Y[k,p,q] +=! X[c,p,q] * W[k,c] }"
    joined, shapes = join_dimensions(parse_program(text, {}))
    assert shapes == {"X": (8, 49), "Y": (4, 49)}
    assert joined.statements[0].indices == ("k", "p_q", "c")
    window = text.replace("X[c,p,q]", "X[c,p+r,q]").replace("[4,8]", "[4,8,3]")
    program = parse_program(window.replace("W[k,c]", "W[k,c,r]"), {})
    assert join_dimensions(program) == (program, {})
