"""Dimensions that two loops share become two dimensions of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from frontends.language.parse_program import parse_program
from poly.ir.expr import Const
from poly.ir.graph import Call, Graph, static_shape, verify_graph
from poly.ir.program import Tensor
from poly.rewrites.split_dimensions import split_dimensions, split_in_graph
from poly.schedule.schedule import Schedule
from poly.strategy.cpu.register_tile import find_contraction
from runtime.reference.evaluate import evaluate
from tests.machines import AVX512

GROUPED = """def f(float32 X[1,64,6,6], float32 W[64,2,3,3], float32 B[64]) -> (Y) {
    T[n,2*g+k,p,q] +=! X[n,2*g+c,p+r,q+s] * W[2*g+k,c,r,s]
        where g in 0:32, k in 0:2, c in 0:2, p in 0:4, q in 0:4, r in 0:3, s in 0:3
    Y[n,2*g+k,p,q] = T[n,2*g+k,p,q] + B[2*g+k] where g in 0:32, k in 0:2, n in 0:1
}"""


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"X": (1, 64, 6, 6), "W": (64, 2, 3, 3), "B": (64,)}
    return {n: rng.integers(-3, 4, s).astype(np.float32) for n, s in shapes.items()}


def test_a_grouped_convolution() -> None:
    program = parse_program(GROUPED, {})
    changed, split = split_dimensions(program)
    shapes = {name: static_shape(changed.tensors[name]) for name in split}
    assert shapes["X"] == (1, 32, 2, 6, 6)
    assert shapes["W"] == (32, 2, 2, 3, 3)
    assert shapes["T"] == shapes["Y"] == (1, 32, 2, 4, 4)
    given = {n: a.reshape(shapes[n]) for n, a in inputs().items()}
    expected = evaluate(program, inputs())["Y"]
    np.testing.assert_array_equal(evaluate(changed, given)["Y"].reshape(expected.shape), expected)


def test_groups_run_in_lanes() -> None:
    scop = Schedule.of(split_dimensions(parse_program(GROUPED, {}))[0]).scop
    tile = find_contraction(scop, scop.by_name["S0"], AVX512)
    assert tile is not None and (tile.v, tile.lanes) == ("g", 16)


def test_in_a_graph() -> None:
    program = parse_program(GROUPED, {})
    arrays = inputs()

    def tensor(name: str, like: str) -> Tensor:
        return Tensor(name, program.tensors[like].dtype, program.tensors[like].shape)

    graph = Graph(
        "g", ("x",), ("y",),
        {name: tensor(name, name.upper()) for name in "xwby"},
        {"w": arrays["W"], "b": arrays["B"]},
        (Call("c", program, ("x", "w", "b"), ("y",)),),
    )  # fmt: skip
    changed = verify_graph(split_in_graph(verify_graph(graph)))
    kinds = [type(n).__name__ for n in changed.nodes]
    assert kinds == ["View", "Call", "View"]
    call = changed.nodes[1]
    assert isinstance(call, Call)
    assert changed.constants[call.inputs[1]].shape == (32, 2, 2, 3, 3)
    assert changed.outputs == ("y",)


@pytest.mark.parametrize(
    "text",
    [
        # a pool: lanes along i take every other element
        "def f(float32 X[16]) -> (Y) { Y[i] max=! X[2*i + j] where i in 0:8, j in 0:2 }",
        # windows overlap
        "def f(float32 X[17]) -> (Y) { Y[i] +=! X[2*i + j] where i in 0:8, j in 0:3 }",
        # not a multiple
        "def f(float32 X[17]) -> (Y) { Y[i] +=! X[2*i + j] where i in 0:8, j in 0:2 }",
        # another read takes elements one by one
        """def f(float32 X[16]) -> (Y, Z) {
            Y[i,j] = X[2*i + j] where i in 0:8, j in 0:2
            Z[i] = X[i] where i in 0:16
        }""",
        # updated in place: its shape is the caller's
        "def f(float32 X[16]) -> (X) { X[2*i + j] += 1 where i in 0:8, j in 0:2 }",
    ],
)
def test_what_is_not_split(text: str) -> None:
    program = parse_program(text, {})
    changed, shapes = split_dimensions(program)
    assert not shapes
    assert changed == program
    assert program.tensors["X"].shape in ((Const(17),), (Const(16),))
