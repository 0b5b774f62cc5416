"""Expressions: what is equal, and that what is remembered of one is true of no other."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.loops.index_ranges import modulo
from frontends.language.parse_program import parse_program
from poly.ir.dtypes import FLOAT64, INT64
from poly.ir.expr import Cast, Const, Expr, Index, Op, Read, Size, add, evaluate_int, mod, mul, sub
from poly.ir.linear_form import linear_form, normal
from poly.rewrites.fold_constants import Scaled, fold_affine, fold_scale, fold_statements
from runtime.reference.evaluate import evaluate

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, 1.0), (1, True), (0, False), (0.0, -0.0), (1.0, 2.0), (float("inf"), float("-inf"))],
)
def test_literals_that_mean_something_else_are_not_equal(a: float, b: float) -> None:
    assert Const(a) != Const(b) and Const(a) == Const(a)
    whole = [Op("add", (Index("i"), Const(x))) for x in (a, b)]
    assert whole[0] != whole[1] and len({*whole}) == 2


def test_literals_that_are_equal() -> None:
    nan = Const(float("nan"))
    assert nan == Const(float("nan")) and hash(nan) == hash(Const(float("nan")))
    assert Const(3) == Const(3) and Const(3) != Const(3, INT64) and Const(3) != 3
    assert Const(0.5, FLOAT64) == Const(0.5, FLOAT64)


def test_forms_of_literals_that_look_alike_stay_apart() -> None:
    """The form of one is remembered before the other is asked for."""
    i = Index("i")
    whole = Op("add", (i, Const(1)))
    assert linear_form(whole).constant == 1
    other = linear_form(Op("add", (i, Const(1.0))))
    assert other.constant == 0 and Const(1.0) in dict(other.terms)


def test_hashes_do_not_travel() -> None:
    """A text has another hash in every process; an expression of it must, too."""
    e = Read("X", (Op("add", (Index("i"), Const(1))), Cast(INT64, Size("N"))))
    hash(e)
    code = (
        "import pickle, sys; e = pickle.loads(bytes.fromhex(sys.argv[1]));"
        "from poly.ir.expr import *; from poly.ir.dtypes import INT64;"
        "f = Read('X', (Op('add', (Index('i'), Const(1))), Cast(INT64, Size('N'))));"
        "assert e == f and hash(e) == hash(f) and {e: 1}[f] == 1"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    line = [sys.executable, "-c", code, pickle.dumps(e).hex()]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


exprs = st.recursive(
    st.one_of(st.integers(-9, 9).map(Const), st.sampled_from("ijk").map(Index)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from((add, sub)), inner, inner).map(lambda x: x[0](x[1], x[2])),
        st.tuples(st.integers(-8, 8), inner).map(lambda x: mul(Const(x[0]), x[1])),
        st.tuples(inner, st.sampled_from((2, 4, 8))).map(lambda x: mod(x[0], x[1])),
    ),
    max_leaves=8,
)
RANGES = {"i": (0, 7), "j": (0, 3), "k": (-2, 2)}


@given(exprs, st.sampled_from((1, 2, 4, 8, 16, 32)), st.integers(0, 7), st.integers(0, 3),
       st.integers(-2, 2))  # fmt: skip
def test_places_keep_their_values(e: Expr, size: int, i: int, j: int, k: int) -> None:
    env = {"i": i, "j": j, "k": k}
    value = evaluate_int(e, env)
    assert evaluate_int(normal(e), env) == value
    assert evaluate_int(modulo(e, size, RANGES), env) == value % size


def test_multiples_of_remainders_fall_away() -> None:
    """``8 Q - 8 (Q mod 4) + i`` lies at lane i of vectors of 32."""
    q = Size("Q")
    place = add(sub(mul(Const(8), q), mul(Const(8), mod(q, 4))), Index("i"))
    assert modulo(place, 32, {"i": (0, 31)}) == Index("i")
    assert modulo(place, 64, {"i": (0, 31)}) != Index("i")


OPEN = """def f(float32 X[N,4,P], float32 W[6,4], float32 S[6], float32 V[6]) -> (Z) {
    float32 T[N,6,P]
    float32 A[6]
    T[n,k,p] +=! X[n,c,p] * W[k,c] where n in 0:N, k in 0:6, p in 0:P, c in 0:4
    A[k] = S[k] / sqrt(V[k]) where k in 0:6
    Z[n,k,p] = T[n,k,p] * A[k] where n in 0:N, k in 0:6, p in 0:P
}"""


def test_constants_of_open_programs_are_folded() -> None:
    program, constants = parse_program(OPEN), frozenset({"W", "S", "V"})
    without = fold_statements(program, constants)
    assert [r.name for r in without.recipes] == ["A"] and len(without.program.statements) == 2
    moved = fold_scale(without.program, frozenset({"W", "A"}))
    (scaled,) = moved.recipes
    assert isinstance(scaled, Scaled) and (scaled.source, scaled.factor) == ("W", "A")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 4, 5), np.float32), rng.standard_normal((6, 4), np.float32)
    s, v = rng.standard_normal(6, np.float32), rng.uniform(1, 2, 6).astype(np.float32)
    expected = evaluate(program, {"X": x, "W": w, "S": s, "V": v})["Z"]
    factor = s / np.sqrt(v)
    found = evaluate(moved.program, {"X": x, scaled.name: w * factor[:, None]})["Z"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        # A constant of as many elements as a size says cannot be computed now.
        "Y[n] = (W[n] * 2 + V[n]) * X[n] where n in 0:N",
        "Y[n] = X[n] * (W[0] + N) where n in 0:N",
        "Y[n] = X[n] * (W[N - 1] / V[0]) where n in 0:N",
    ],
)
def test_what_depends_on_sizes_is_not_folded(text: str) -> None:
    declared = "float32 X[N], float32 W[9], float32 V[9]"
    program = parse_program(f"def f({declared}) -> (Y) where N <= 9 {{ {text} }}")
    constants = frozenset({"W", "V"})
    for fold in (fold_affine, fold_scale, fold_statements):
        for recipe in fold(program, constants).recipes:
            made = getattr(recipe, "program", None)
            assert made is None or not made.sizes
            shape = fold(program, constants).program.tensors[recipe.name].shape
            assert all(isinstance(e, Const) for e in shape)
    x, w = np.arange(5, dtype=np.float32), np.linspace(1, 2, 9, dtype=np.float32)
    arrays = {"X": x, "W": w, "V": w + 1}
    folded = fold_affine(program, constants)
    given = dict(arrays)
    for recipe in folded.recipes:
        made = recipe.program  # type: ignore[union-attr]
        given[recipe.name] = evaluate(made, {t.name: given[t.name] for t in made.inputs})[
            recipe.name
        ]
    names = [t.name for t in folded.program.inputs]
    found = evaluate(folded.program, {n: given[n] for n in names})["Y"]
    np.testing.assert_allclose(found, evaluate(program, arrays)["Y"], rtol=1e-6)
