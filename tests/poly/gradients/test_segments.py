"""Gradients whose states are computed again equal those whose states are kept."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import farkas as fk
from poly.gradients.request import named
from poly.ir.expr import Const, evaluate_int
from poly.ir.program import Program
from runtime.reference.evaluate import evaluate
from tests.differential.blocks import block_text

HEAT = """
def heat[N, T](float64 U0[N], float64 a[N]) -> (L) {
    float64 U[T+1,N]
    U[0,i] = U0[i]
    for t in 0:T {
        U[t+1,i] = U[t,i] + a[i]*(U[t,max(i-1,0)] + U[t,min(i+1,N-1)] - 2*U[t,i]) * U[t,i]
    }
    L[] +=! U[T,i] * U[T,i]
}
"""
LOSS_AFTER_THE_BLOCK = """
def f(float64 X[T,N], float64 W[N,N], float64 H0[N]) -> (L) {
    H[0,j] = H0[j]
    P[t,j] +=! X[t,k] * W[k,j]
    for t in 0:T {
        Z[t,j] +=! H[t,k] * W[k,j]
        H[t+1,j] = tanh(Z[t,j] + P[t,j])
    }
    E[t] +=! H[t+1,j] * H[t+1,j] where t in 0:T
    L[] +=! E[t] * X[t,0]
}
"""
RESULTS_OF_STEPS = """
def f(float64 X[T,N], float64 V[N,N], float64 W[N,N], float64 H0[N]) -> (float64 Y[T,N], L) {
    h[j] = H0[j]
    L[] = 0
    for t in 0:T {
        z[j] +=! h[k] * W[k,j]
        h[j] = tanh(z[j] + X[t,j])
        Y[t,m] +=! V[j,m] * h[j]
        L[] += h[j] * h[j] * t
    }
}
"""
TWO_STEPS_BACK = """
def wave(float64 U0[N], float64 c[N], float64 F[T,N]) -> (float64 Y[N]) {
    U[0,i] = U0[i]
    U[1,i] = sin(U0[i])
    for t in 0:T {
        U[t+2,i] = 2*U[t+1,i] - U[t,i] + c[i]*sin(U[t+1,i]*U[t,i]) + F[t,i]
    }
    Y[i] = U[T+1,i] * U[T,i]
}
"""
STATES_AS_RESULT = """
def f(float64 X[T,N], float64 h0[N]) -> (float64 H[T + 1,N]) {
    H[0,j] = h0[j]
    for t in 2:T+2 { H[t-1,j] = sin(H[t-2,j]) * X[t-2,j] }
}
"""
LSTM = """
def lstm(float64 X[T,N], float64 W[4,N,N], float64 R[4,N,N], float64 h0[N], float64 c0[N]) -> (H) {
    G[t,g,j] +=! W[g,j,n] * X[t,n]
    H[0,j] = h0[j]
    C[0,j] = c0[j]
    for t in 0:T {
        G[t,g,j] += R[g,j,k] * H[t,k]
        C[t+1,j] = sigmoid(G[t,2,j]) * C[t,j] + sigmoid(G[t,0,j]) * tanh(G[t,3,j])
        H[t+1,j] = sigmoid(G[t,1,j]) * tanh(C[t+1,j])
    }
}
"""
PART_OF_THE_STATE = """
def f(float64 X[T,N], float64 h0[N]) -> (L) {
    H[0,j] = h0[j]
    for t in 0:T {
        D[t,j] +=! H[t,k] * X[t,j] where k in 0:min(t+1,N), j in 0:N
        H[t+1,j] = sin(D[t,j]) + H[t,N-1-j] * t
    }
    L[] +=! H[t,j] * X[t,j] where t in 0:T
}
"""
TEXTS = {
    "heat": (HEAT, "U"),
    "loss after the block": (LOSS_AFTER_THE_BLOCK, "H"),
    "results of steps": (RESULTS_OF_STEPS, "h"),
    "two steps back": (TWO_STEPS_BACK, "U"),
    "states as result": (STATES_AS_RESULT, "H"),
    "lstm": (LSTM, "H"),
    "ranges that grow": (PART_OF_THE_STATE, "H"),
}


def compared(kept: Program, again: Program, sizes: dict[str, int], seed: int = 0) -> float:
    """The largest difference of results, relative to the largest of each."""
    rng = np.random.default_rng(seed)
    shapes = {t.name: [evaluate_int(e, sizes) for e in t.shape] for t in kept.inputs}
    arrays = {n: 0.4 * rng.standard_normal(shape) for n, shape in shapes.items()}
    given = {n: v for n, v in sizes.items() if n in kept.sizes}
    a, b = evaluate(kept, arrays, given), evaluate(again, arrays, given)
    return max(float((abs(a[n] - b[n]) / (1 + abs(a[n]).max(initial=0))).max(initial=0)) for n in a)


@pytest.mark.parametrize(("text", "state"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize(("steps", "length"), [(8, 4), (7, 3), (2, 1), (0, 2)])
def test_it_equals_what_is_kept(text: str, state: str, steps: int, length: int) -> None:
    kept, again = fk.value_and_grad(text), fk.value_and_grad(text, recompute={state: length})
    assert compared(kept, again, {"T": steps, "N": 3}) < 1e-12


def test_what_comes_before_the_block_stays_before_what_overwrites_its_operands() -> None:
    text = """def f(float64 P[N,N], float64 Q[N,N], float64 X[T,N], float64 H0[N]) -> (Y) {
        W[k,j] = P[k,j]
        A[t,j] +=! X[t,k] * W[k,j]
        W[k,j] = Q[k,j]
        H[0,j] = H0[j]
        for t in 0:T { A[t,j] += H[t,k] * W[k,j]; H[t+1,j] = tanh(A[t,j]) }
        Y[j] = H[T,j]
    }"""
    assert fk.value_and_grad(text).outputs
    with pytest.raises(fk.GradientError, match="cannot be computed again in segments"):
        fk.value_and_grad(text, recompute={"H": 3})


@pytest.mark.parametrize(("text", "state"), TEXTS.values(), ids=TEXTS)
def test_it_prints_and_parses(text: str, state: str) -> None:
    made = fk.grad(text, recompute=[state])
    assert fk.parse(str(made)) == made


@pytest.mark.parametrize(("text", "state"), [TEXTS["heat"], TEXTS["results of steps"]])
def test_it_compiles(text: str, state: str) -> None:
    made = fk.value_and_grad(text, recompute={state: 3})
    rng, sizes = np.random.default_rng(0), {"T": 11, "N": 19}
    shapes = {t.name: [evaluate_int(e, sizes) for e in t.shape] for t in made.inputs}
    arrays = {n: 0.1 * rng.standard_normal(shape) for n, shape in shapes.items()}
    given = {"T": 11} if "T" in fk.compile(made).program.sizes and text is HEAT else {}
    wanted = evaluate(made, arrays, given)
    for threads in (1, 2):
        found = fk.compile(made, threads=threads)(**arrays, **given)
        for got, t in zip(found, made.outputs, strict=True):
            np.testing.assert_allclose(got, wanted[t.name], rtol=1e-9, atol=1e-12)


def test_few_states_are_there() -> None:
    made = fk.grad(fk.parse(HEAT, sizes={"T": 1000}), recompute="U")
    states = {t.name: t.shape[0] for t in made.temps if t.shape}
    assert max(evaluate_int(e, {}) for e in states.values()) < 50
    assert evaluate_int(states["U_kept"], {}) == 25


def test_too_little_memory_says_what_recomputing_saves() -> None:
    kernel = fk.compile(fk.grad(HEAT))
    message = (
        r"not enough memory for temporaries of 1600 GB \(d?U 800 GB, d?U 800 GB.*\); for a "
        r"gradient, recompute= of fk\.grad would need about 3200 MB"
    )
    with pytest.raises(fk.ArgumentError, match=message):
        kernel(np.zeros(10**5), np.zeros(10**5), T=10**6)


def test_the_first_state_may_be_read_after_the_block() -> None:
    text = HEAT.replace("L[] +=! U[T,i] * U[T,i]", "L[] +=! U[T,i] * U[0,i]")
    for steps in (6, None):
        program = fk.parse(text, sizes={} if steps is None else {"T": steps})
        again = fk.value_and_grad(program, recompute={"U": 3})
        assert compared(fk.value_and_grad(program), again, {"T": 6, "N": 3}) < 1e-12
        assert again.tensors["U_last"].shape[0] == again.tensors["U_first"].shape[0] == Const(1)


def test_random_recurrences() -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        text = re.sub(r"bfloat16|float16|float32|int32", "float64", block_text(seed))
        program = fk.parse(text)
        state = next(s.target.tensor for s in program.statements if s.block)
        try:
            wrt, of = named(program, None, None)
            kept = fk.value_and_grad(program, wrt, of)
            again = fk.value_and_grad(program, wrt, of, recompute={state: 1 + seed % 4})
        except fk.GradientError as error:
            seen[str(error)[:30]] += 1
            continue
        assert compared(kept, again, {"T": 4 + seed % 4, "B": 2, "M": 3}, seed) < 1e-9, text
        seen["right"] += 1
    assert seen["right"] > 24, seen


@pytest.mark.parametrize(
    ("text", "recompute", "message"),
    [
        (HEAT, "V", r"recompute: no block computes 'V'; they compute U"),
        ("Y[i] = X[i] * X[i]", "Y", r"recompute: no block computes 'Y': there are none"),
        (HEAT, {"U": 0}, "recompute: 0 steps for U, expected 1 or more"),
        (HEAT, {"U": 2.5}, r"recompute: 2\.5 steps for U"),
        (
            HEAT.replace("L[] +=! U[T,i] * U[T,i]", "L[] +=! U[T,i] * U[T//2,i]"),
            "U",
            r"cannot be computed again in segments: statement S2 uses U\[T // 2, i\]",
        ),
        (
            "def f(float64 X[T,N]) -> (Y) { float64 Z[T,N]\nfor t in 0:T { Z[t,i] = sin(X[t,i])\n"
            "Y[t,i] = Z[t,i] * Z[t,i] } }",
            "Z",
            "no step of this block reads what an earlier one computed",
        ),
    ],
)  # fmt: skip
def test_refusals(text: str, recompute: object, message: str) -> None:
    with pytest.raises(fk.GradientError, match=message):
        fk.grad(text, dtypes=None if "def" in text else "float64", recompute=recompute)  # type: ignore[arg-type]
