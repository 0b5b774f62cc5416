"""Dimensions that loops run through together become one dimension of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.language.parse_program import parse_program
from poly.ir.graph import Call, Graph, static_shape, verify_graph
from poly.ir.program import Program, Tensor, verify_program
from poly.rewrites.join_dimensions import join_dimensions, join_in_graph
from runtime.reference.evaluate import evaluate

MEAN = "def f(float32 X[2,5,7,7]) -> (Y) { Y[n,c,0,0] +=! X[n,c,p,q] / 49.0 }"
SCALED = "def f(float32 X[2,5,7,7], float32 G[5]) -> (Y) { Y[n,c,p,q] = X[n,c,p,q] * G[c] }"


def given(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        t.name: rng.integers(0, 3, tuple(int(str(x)) for x in t.shape)).astype(t.dtype.numpy)
        for t in program.inputs
    }


def shapes_of(joined: Program, program: Program) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that have others now."""
    return {
        t.name: static_shape(t) for t in joined.tensors.values() if t != program.tensors[t.name]
    }


def check(program: Program, expected: dict[str, tuple[int, ...]]) -> Program:
    """The joined program, which has these shapes and computes the same to the last bit."""
    changed = verify_program(join_dimensions(program))
    shapes = shapes_of(changed, program)
    assert shapes == expected
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
        # a part of each row
        "def f(float32 X[N,M], float32 Z[N,P]) -> (float32 Y[N,M]) where M <= P "
        "{ Y[i,j] = X[i,j] + Z[i,j] where i in 0:N, j in 0:M }",
        # products of sizes of which nobody knows that one is less than the other
        "def f(float32 X[N,M], float32 Z[P,M]) -> (float32 Y[N,M]) where N <= P "
        "{ Y[i,j] = X[i,j] + Z[i,j] where i in 0:N, j in 0:M }",
        # other statements address the same tensor otherwise
        """def f(float32 X[4,5]) -> (Y, Z) {
            Y[i,j] = X[i,j]
            Z[i] = X[i,2]
        }""",
    ],
)
def test_what_is_not_joined(text: str) -> None:
    program = parse_program(text, {})
    assert join_dimensions(program) is program


def test_a_product_of_open_sizes_is_a_size() -> None:
    text = """def f(float32 X[N,C,H,W], float32 B[C]) -> (Y) {
        T[n,c,h,w] = X[n,c,h,w] + B[c]
        Y[n,c] +=! T[n,c,h,w] * H
    }"""
    joined = verify_program(join_dimensions(parse_program(text, {})))
    assert joined.sizes == ("N", "C", "H", "W", "H_W")
    assert [str(c) for c in joined.constraints] == ["H_W == H * W"]
    assert joined.products == {"H_W": joined.constraints[0].args[1]}  # type: ignore[attr-defined]
    assert [str(t) for t in joined.temps] == ["float32 T[N,C,H_W]"]
    assert joined.statements[0].indices == ("n", "c", "h_w")
    assert joined.statements[1].reductions == ("h_w",)
    rng = np.random.default_rng(3)
    x, b = rng.integers(0, 9, (2, 3, 4, 5)), rng.integers(0, 9, 3)
    arrays = {"X": x.reshape(2, 3, 20).astype("f"), "B": b.astype("f")}
    got = evaluate(joined, arrays, {"H": 4, "W": 5})
    want = ((x + b[:, None, None]) * 4).sum((2, 3))
    np.testing.assert_array_equal(got["Y"], want)


def test_a_size_with_a_literal_stays_affine() -> None:
    joined = join_dimensions(parse_program("def f(float32 X[3,N]) -> (Y) { Y[i,j] = X[i,j] }", {}))
    assert str(joined.inputs[0]) == "float32 X[3 * N]"
    assert joined.sizes == ("N",) and not joined.constraints


def test_names_are_new() -> None:
    text = "def f(float32 A_B[A,B], float32 i_j[A,B]) -> (Y) { Y[i,j] = A_B[i,j] + i_j[i,j] }"
    joined = verify_program(join_dimensions(parse_program(text, {})))
    assert joined.sizes == ("A", "B", "A_B_")
    assert joined.statements[0].indices == ("i_j_",)


def test_a_window_of_one_element_does_not_stand_between_two_loops() -> None:
    text = """def f(float32 X[C,H,W], float32 F[K,C,1,1]) -> (Y) {
        Y[k,p,q] +=! X[c,p+r,q+s] * F[k,c,r,s]
    }"""
    joined = verify_program(join_dimensions(parse_program(text, {})))
    assert str(joined.statements[0].value) == "X[c, p_q] * F[k, c, 0, 0]"
    assert joined.statements[0].reductions == ("c",)


def test_a_guard_on_a_window_of_one_element_does_not_restrict_the_initialisation() -> None:
    text = """def f(float32 X[M,N], float32 A[4,5]) -> (Y, Z) {
        Y[m,x] +=! X[m,x-r] where x in 0:N+1, r in 0:1, c in 0:2, x - r < N
        Z[i,j] = A[i,j] + 1
    }"""
    program = parse_program(text, {})
    joined = verify_program(join_dimensions(program))
    assert joined.statements[1].indices == ("i_j",)
    assert joined.statements[0] == program.statements[0]


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
    program = parse_program(text, {})
    joined = join_dimensions(program)
    assert shapes_of(joined, program) == {"X": (8, 49), "Y": (4, 49)}
    assert joined.statements[0].indices == ("k", "p_q", "c")
    window = text.replace("X[c,p,q]", "X[c,p+r,q]").replace("[4,8]", "[4,8,3]")
    program = parse_program(window.replace("W[k,c]", "W[k,c,r]"), {})
    assert join_dimensions(program) is program
