"""Operators of JAX: results, under jit and vmap, and what is refused."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import farkas as fk

pytest.importorskip("jax", reason="jax is not installed")
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
jax.config.update("jax_platforms", "cpu")
DRAW = np.random.default_rng(0)


def draw(*shape: int) -> Any:
    return jnp.asarray(DRAW.random(shape, np.float32))


L1 = fk.jax.op("def l1(float32 X[N,K], float32 Y[M,K]) -> (D) { D[i,j] +=! abs(X[i,k] - Y[j,k]) }")


def l1(x: Any, y: Any) -> Any:
    return abs(x[:, None] - y).sum(-1)


def close(found: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(want), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_results(wrap: Any) -> None:
    f = wrap(lambda x, y: L1(2 * x, y) + 1)
    for n in (4, 9):
        x, y = draw(n, 3), draw(5, 3)
        found = f(x, y)
        assert isinstance(found, jax.Array)
        close(found, l1(2 * x, y) + 1)


def test_several_outputs_updates_and_temporaries() -> None:
    both = fk.jax.op("def both(float32 X[N,M]) -> (S, P) { S[i] +=! X[i,j]; P[j] *=! X[i,j] }")
    x = draw(3, 4)
    sums, products = jax.jit(both)(x)
    close(sums, x.sum(1))
    close(products, x.prod(0))
    update = fk.jax.op("def u(float32 C[N], float32 A[N]) -> (C) { C[i] += A[i] }")
    c = draw(5)
    close(jax.jit(update)(c, c), 2 * c)
    close(update(c, c) - c, c)  # which has not changed
    softmax = fk.jax.op(
        "def s(float32 X[N,M]) -> (Y) { float32 m[N]; float32 e[N,M]; float32 t[N]; "
        "m[i] max=! X[i,j]; e[i,j] = exp(X[i,j] - m[i]); t[i] +=! e[i,j]; Y[i,j] = e[i,j] / t[i] }"
    )
    wide = draw(70, 300)
    close(jax.jit(softmax)(wide), jax.nn.softmax(wide))


def test_sizes_and_types_that_are_open() -> None:
    repeat = fk.jax.op("def r[N,R](float32 X[N]) -> (Y) { Y[r,i] = X[i] where r in 0:R }")
    assert jax.jit(lambda x: repeat(x, R=3))(draw(4)).shape == (3, 4)
    matmul = fk.jax.op("ij,jk->ik")
    for dtype in ("float32", "int32", "bfloat16", "float16", "uint8"):
        a, b = jnp.arange(6).reshape(2, 3).astype(dtype), jnp.ones((3, 4), dtype)
        found = matmul(a, b)
        assert found.dtype == dtype
        close(found.astype("float32"), (a @ b).astype("float32"))


def test_batches() -> None:
    x, y = draw(6, 4, 3), draw(5, 3)
    want = jnp.stack([l1(one, y) for one in x])
    close(jax.vmap(L1, (0, None))(x, y), want)
    close(jax.jit(jax.vmap(L1, (0, None)))(x, y), want)
    close(jax.vmap(L1, (2, None), 1)(x.transpose(1, 2, 0), y), want.transpose(1, 0, 2))
    close(jax.vmap(jax.vmap(L1, (None, 0)), (0, None))(x, y[None]), want[:, None])
    update = fk.jax.op("def u(float32 C[N], float32 A[N]) -> (C) { C[i] += A[i] }")
    close(jax.vmap(update, (None, 0))(y[0], x[0]), y[0] + x[0])


def test_in_loops() -> None:
    step = fk.jax.op("def step(float32 X[N]) -> (Y) { Y[i] = 0.5 * X[i] + 1.0 }")
    found = jax.lax.fori_loop(0, 20, lambda _, x: step(x), draw(4))
    close(found, jnp.full(4, 2.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: L1(draw(4, 3)), r"takes 2 arrays \(X, Y\), but 1 were given"),
        (lambda: L1(draw(4), draw(5, 3)), "X has rank 1"),
        (lambda: L1(draw(4, 3), draw(5, 2)), r"Y\.shape\[1\] is 2"),
        (lambda: L1(draw(4, 3).astype("int32"), draw(5, 3)), "X has dtype int32"),
        (lambda: L1(np.ones((4, 3)), draw(5, 3)), "X has dtype float64, which JAX has disabled"),
        (lambda: L1("abc", draw(5, 3)), "X is no array"),
        (lambda: L1(draw(4, 3), draw(5, 3), N=4), "is given sizes N; it needs none"),
        (lambda: fk.jax.op("def f(float64 X[N]) -> (Y) { Y[i] = X[i] }")(draw(3)), "float64"),
        (lambda: fk.jax.op("def f(float32 X[N]) -> (Y) { Y[i] = int64(X[i]) }")(draw(3)),
         "has 64 bits, which JAX has disabled"),
        (lambda: jax.grad(lambda x: L1(x, x).sum())(draw(4, 3)), "l1 has no gradient"),
        (lambda: fk.jax.op("Y[i] = X[i] * 2")(draw(3).astype("complex64")), "arrays of complex64"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        call()
