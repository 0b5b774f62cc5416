"""What is computed once because inputs are constants, and what that may not change."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.language.parse_program import parse_program
from poly.graph_passes.fold_calls import fold_factors
from poly.ir.expr import Const
from poly.ir.graph import Call, Graph
from poly.ir.program import Program, Tensor
from poly.rewrites.fold_constants import Computed, Scaled, fold_affine, fold_scale, fold_statements
from runtime.reference.evaluate import evaluate

BOX = "n in 0:2, k in 0:6, p in 0:5"


def product(value: str, dtype: str = "float32", factor: str = "W[k,c]", more: str = "") -> str:
    """A sum of products with an epilogue over constants of the same type."""
    return f"""def f({dtype} X[2,4,5], {dtype} W[6,4], {dtype} A[6], {dtype} B[6]{more}) -> (Y) {{
        {dtype} T[2,6,5]
        T[n,k,p] +=! X[n,c,p] * {factor} where {BOX}, c in 0:4
        Y[n,k,p] = {value} where {BOX}
    }}"""


def called(text: str, *variable: str, seed: int = 3) -> Graph:
    """A graph of one call, all of whose inputs are constants but those that vary."""
    program = parse_program(text)
    rng = np.random.default_rng(seed)
    arrays = {}
    for t in program.inputs:
        shape = [e.value for e in t.shape if isinstance(e, Const)]
        arrays[t.name] = (3 * rng.standard_normal(shape)).astype(t.dtype.numpy)
    constants = {n: a for n, a in arrays.items() if n not in variable}
    values = {t.name: t for t in (*program.inputs, *program.outputs)}
    outputs = tuple(t.name for t in program.outputs)
    call = Call("call", program, tuple(t.name for t in program.inputs), outputs, "f")
    return Graph("g", variable, outputs, values, constants, (call,))


def folded(graph: Graph) -> Program:
    """The program after folding, which is checked against the graph."""
    made = fold_factors(graph, evaluate)
    (call,) = made.nodes
    assert isinstance(call, Call)
    rng = np.random.default_rng(1)
    given = {}
    for name in graph.inputs:
        draw = 2 * rng.standard_normal(graph.shape(name))
        given[name] = draw.astype(graph.values[name].dtype.numpy)
    for g in (graph, made):
        (call,) = g.nodes
        assert isinstance(call, Call)
        values = {**given, **g.constants}
        arrays = {t.name: values[v] for t, v in zip(call.program.inputs, call.inputs, strict=True)}
        found = [a.astype(np.float64) for a in evaluate(call.program, arrays).values()]
        if g is graph:
            expected = found
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
    return call.program


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "value",
    [
        "T[n,k,p] * A[k]",
        "A[k] * T[n,k,p] + B[k]",
        "(T[n,k,p] - B[k]) * A[k] + B[k]",
        "B[k] - T[n,k,p] / (A[k]*A[k] + 1)",
        "-T[n,k,p] * A[k]",
        "0.5 * T[n,k,p] + 2 * B[k]",
        "max((T[n,k,p] + B[k]) * A[k], 0)",
        "max((T[n,k,p] + B[k]) * A[k], 0) * A[k]",
        "select(p < 2, T[n,k,p] * A[k] + 2 * B[k], X[n,0,p])",
    ],
)
def test_factors_move_into_the_product(dtype: str, value: str) -> None:
    program = folded(called(product(value, dtype), "X"))
    text = "\n".join(map(str, program.statements))
    assert "W0[k, c]" in text and "W[k, c]" not in text and "A[k] * T" not in text


def test_one_term_is_left() -> None:
    program = folded(called(product("((T[n,k,p] - B[k]) * A[k] + B[k]) * B[k] + A[k]"), "X"))
    assert str(program.statements[1].value) == "T[n, k, p] + K0[k]"
    assert [t.name for t in program.inputs] == ["X", "K0", "W0"]


def test_a_plain_epilogue_is_left_alone() -> None:
    graph = called(product("max(T[n,k,p] + B[k], 0)"), "X")
    assert fold_factors(graph, evaluate).nodes == graph.nodes


def test_without_a_product_both_constants_stay() -> None:
    graph = called(
        "def f(float32 X[2,6], float32 M[6], float32 A[6], float32 B[6]) -> (Y) {"
        " Y[n,k] = max((X[n,k] - M[k]) * A[k] + B[k], 0) where n in 0:2, k in 0:6 }",
        "X",
    )
    assert str(folded(graph).statements[0].value) == "max(X[n, k] * A[k] + K0[k], 0)"


@pytest.mark.parametrize(
    "text, variable",
    [
        # 16-bit floats are rounded in between
        (product("T[n,k,p] * A[k]", "float16"), ("X",)),
        # integers wrap around
        (product("T[n,k,p] * A[k]", "int32"), ("X",)),
        # the factor is no constant, or the weights are none
        (product("T[n,k,p] * A[k]"), ("X", "A")),
        (product("T[n,k,p] * A[k]"), ("X", "W")),
        # the weights do not move with the factor
        (product("T[n,k,p] * C[p]", more=", float32 C[5]"), ("X",)),
        (product("T[n,k,p] * C[n]", more=", float32 C[2]"), ("X",)),
        # the sum is used twice
        (product("T[n,k,p] * A[k] + T[n,k,4-p]"), ("X",)),
        # the weights are used elsewhere
        (product("T[n,k,p] * A[k] + W[k,0]"), ("X", "W")),
        # it is no product with the weights
        (product("T[n,k,p] * A[k]", factor="max(W[k,c], X[n,c,p])"), ("X",)),
        # a maximum, a product
        (product("T[n,k,p] * A[k]").replace("+=!", "max=!"), ("X",)),
        (product("T[n,k,p] * A[k]").replace("+=!", "*=!"), ("X",)),
    ],
)
def test_factors_that_stay(text: str, variable: tuple[str, ...]) -> None:
    graph = called(text, *variable)
    assert folded(graph).statements[0] == graph.nodes[0].program.statements[0]  # type: ignore


def test_what_is_not_finite_stays() -> None:
    graph = called(product("T[n,k,p] * A[k]"), "X")
    graph.constants["A"][:] = 3e38  # type: ignore[index]
    assert fold_factors(graph, evaluate).nodes == graph.nodes


@pytest.mark.parametrize(
    "value, stays",
    [
        ("X[i] + A[i] - A[i]", "X[i] + A[i] - A[i]"),
        ("(A[i] + 8 * X[i] - B[i]) / 8", "(A[i] + 8 * X[i] - B[i]) / 8"),
        ("X[i] - 3 + A[i] - A[i] + 3", "X[i] - 3 + A[i] - A[i] + 3"),
        ("X[i] * (A[i] + B[i]) + 3e9 - 3e9", "X[i] * K0[i] + 3000000000.0 - 3000000000.0"),
    ],
)
def test_terms_that_cancel_round_what_they_are_added_to(value: str, stays: str) -> None:
    """``(x + 12582912) - 12582912`` is the integer next to x."""
    graph = called(
        "def f(float32 X[9], float32 A[9], float32 B[9]) -> (Y) {"
        f" Y[i] = {value} where i in 0:9 }}",
        "X",
    )
    graph.constants["A"][:] = 12582912  # type: ignore[index]
    graph.constants["B"][:] = 12582912 + np.arange(9)  # type: ignore[index]
    program = folded(graph)
    assert str(program.statements[0].value) == stays


def test_constants_do_not_grow() -> None:
    graph = called(
        "def f(float32 X[99,88], float32 A[99], float32 B[88]) -> (Y) {"
        " Y[i,j] = (X[i,j] + A[i]) * B[j] where i in 0:99, j in 0:88 }",
        "X",
    )
    program = graph.nodes[0].program  # type: ignore[union-attr]
    assert fold_affine(program, frozenset("AB")).program == program


def test_integer_literals_do_not_divide_as_integers() -> None:
    graph = called(
        "def f(float32 X[4], float32 A[4]) -> (Y) {"
        " Y[i] = (X[i] * 1 / 2 + A[i] * 3) * 2 / 3 where i in 0:4 }",
        "X",
    )
    folded(graph)


def test_statements_of_constants() -> None:
    text = """def f(float32 X[2,6], float32 S[6], float32 V[6]) -> (Y) {
        float32 A[6]; float32 M[2]
        A[k] = S[k] / sqrt(V[k] + 1e-5) where k in 0:6
        M[n] max=! X[n,k] where n in 0:2, k in 0:6
        Y[n,k] = (X[n,k] - M[n]) * A[k] where n in 0:2, k in 0:6
    }"""
    made = fold_statements(parse_program(text), frozenset("SV"))
    assert [t.name for t in made.program.inputs] == ["X", "A"]
    assert [t.name for t in made.program.temps] == ["M"]
    assert len(made.program.statements) == 2
    (recipe,) = made.recipes
    assert isinstance(recipe, Computed) and str(recipe.program.statements[0].target) == "A[k]"
    assert not fold_statements(parse_program(text), frozenset("S")).recipes


def test_grouped_weights() -> None:
    text = """def f(float32 X[8,5], float32 W[6,4], float32 A[6]) -> (Y) {
        float32 T[6,5]
        T[3*g+k,p] +=! X[4*g+c,p] * W[3*g+k,c] where g in 0:2, k in 0:3, p in 0:5, c in 0:4
        Y[3*g+k,p] = T[3*g+k,p] * A[3*g+k] where g in 0:2, k in 0:3, p in 0:5
    }"""
    (recipe,) = fold_scale(parse_program(text), frozenset("WA")).recipes
    assert recipe == Scaled("W0", "W", "A", (0,))
    folded(called(text, "X"))


def test_factors_along_several_axes_of_the_weights() -> None:
    text = """def f(float32 X[4,5], float32 W[3,2,4], float32 A[2,1,3]) -> (Y) {
        float32 T[2,3,5]
        T[a,b,p] +=! X[c,p] * W[b,a,c] where a in 0:2, b in 0:3, p in 0:5, c in 0:4
        Y[a,b,p] = T[a,b,p] * A[a,0,b] where a in 0:2, b in 0:3, p in 0:5
    }"""
    (recipe,) = fold_scale(parse_program(text), frozenset("WA")).recipes
    assert recipe == Scaled("W0", "W", "A", (1, -1, 0))
    folded(called(text, "X"))


def test_an_index_of_the_sum_may_be_called_as_one_of_the_factor() -> None:
    text = """def f(float32 X[4,5], float32 W[5], float32 A[5]) -> (Y) {
        float32 T[4]
        T[i] +=! X[i,k] * W[k] where i in 0:4, k in 0:5
        Y[i,k] = T[i] * A[k] where i in 0:4, k in 0:5
    }"""
    assert not fold_scale(parse_program(text), frozenset("WA")).recipes


def test_tensors_keep_their_declarations() -> None:
    program = parse_program(product("T[n,k,p] * A[k] + B[k] * 2"))
    affine = fold_affine(program, frozenset("WAB"))
    scaled = fold_scale(affine.program, frozenset("WAB") | {"K0"})
    assert scaled.program.tensors["W0"] == Tensor(
        "W0", program.tensors["W"].dtype, program.tensors["W"].shape
    )
