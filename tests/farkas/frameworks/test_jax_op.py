"""Operators of JAX: results, under jit, vmap and export, and what is refused."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.ir.dtypes import FLOAT32
from tests.poly.texts import HEAT

pytest.importorskip("jax", reason="jax is not installed")
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
export: Any = importlib.import_module("jax.export")
check_grads = importlib.import_module("jax.test_util").check_grads
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
    for r, n in ((3, 4), (2, 4), (3, 5), (3, 4)):
        x = draw(n)
        close(repeat(x, R=r), jnp.tile(x, (r, 1)))
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


def exported(function: Any, *shapes: str, constraints: tuple[str, ...] = ()) -> Any:
    """A function exported for shapes with the same symbols."""
    scope = export.SymbolicScope(constraints)
    given = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), "float32")
        for shape in shapes
    ]
    known = [export.DisabledSafetyCheck.custom_call("farkas_kernel")]
    return export.export(jax.jit(function), disabled_checks=known)(*given)


def test_one_exported_function_for_many_shapes() -> None:
    f = exported(lambda x, y: L1(2 * x, y) + 1, "n, k", "m, k")
    assert f"{f.out_avals[0].shape}" == "(n, m)"
    loaded = export.deserialize(f.serialize())
    for n, m, k in ((4, 5, 3), (1, 1, 1), (70, 90, 8)):
        x, y = draw(n, k), draw(m, k)
        close(f.call(x, y), l1(2 * x, y) + 1)
        close(jax.jit(loaded.call)(x, y), l1(2 * x, y) + 1)
    batches = exported(jax.vmap(L1, (0, None)), "b, n, k", "m, k")
    x, y = draw(6, 4, 3), draw(5, 3)
    close(batches.call(x, y), jnp.stack([l1(one, y) for one in x]))


EXTENTS = {
    "a valid convolution": (
        "def f(float32 X[H], float32 K[3]) -> (Y) { Y[y] +=! X[y+u] * K[u] }",
        ("n", "3"),
        "n - 2",
        lambda x, k: jnp.convolve(x, k[::-1], "valid"),
    ),
    "a multiple": (
        "def f(float32 X[2*N]) -> (Y) { Y[i] max=! X[2*i+u] where u in 0:2 }",
        ("2*n",),
        "n",
        lambda x: x.reshape(-1, 2).max(1),
    ),
    "a quotient": (
        "def f(float32 X[N]) -> (Y) { Y[i] = X[2*i] where i in 0:N//2 }",
        ("n",),
        "floordiv(n, 2)",
        lambda x: x[: len(x) // 2 * 2 : 2],
    ),
    "the smaller one": (
        "def f(float32 X[N], float32 Y[M]) -> (Z) { Z[i] = X[i] * Y[i] where i in 0:min(N, M) }",
        ("n", "m"),
        "min(n, m)",
        lambda x, y: x[: len(y)] * y[: len(x)],
    ),
    "temporaries": (
        "def f(float32 X[N,M]) -> (Y) { float32 e[N,M]; float32 t[N]; e[i,j] = exp(X[i,j]); "
        "t[i] +=! e[i,j]; Y[i,j] = e[i,j] / t[i] }",
        ("n, m",),
        "n, m",
        lambda x: jax.nn.softmax(x),
    ),
    "an update": (
        "def f(float32 C[N], float32 A[N]) -> (C) { C[i] += A[i] }",
        ("n", "n"),
        "n",
        lambda c, a: c + a,
    ),
}


@pytest.mark.parametrize("name", EXTENTS)
def test_shapes_of_results_in_symbols(name: str) -> None:
    text, shapes, result, expected = EXTENTS[name]
    f = exported(fk.jax.op(text), *shapes)
    assert ", ".join(map(str, f.out_avals[0].shape)) == result
    for n, m in ((4, 9), (9, 5), (300, 200)):
        given = [draw(*eval(f"({shape},)", {"n": n, "m": m})) for shape in shapes]
        close(f.call(*given), expected(*given))


def test_sizes_in_symbols() -> None:
    """A size that no shape determines is an operand of the exported call."""
    repeat = fk.jax.op("def r[N,R](float32 X[N]) -> (Y) { Y[r,i] = X[i] where r in 0:R }")
    f = exported(lambda x, y: repeat(x, R=y.shape[0] + 1), "n", "m")
    assert f"{f.out_avals[0].shape}" == "(m + 1, n)"
    for n, m in ((3, 2), (5, 7)):
        x = draw(n)
        close(f.call(x, draw(m)), jnp.tile(x, (m + 1, 1)))
    two = fk.jax.op(
        "def t[N,R,S](float32 X[N]) -> (Y) { Y[r,s,i] = X[i] where r in 0:R, s in 0:S }"
    )
    f = exported(lambda x, y: two(x, S=y.shape[0], R=2), "n", "m")
    x = draw(3)
    close(f.call(x, draw(5)), jnp.tile(x, (2, 5, 1)))
    f = exported(lambda y: repeat(x, R=y.shape[0]), "m")
    close(f.call(draw(4)), jnp.tile(x, (4, 1)))


def test_exported_functions_in_another_process(tmp_path: Path) -> None:
    """It makes the kernel again, with the schedule that it had, and needs no operator."""
    text = "def d(float32 X[N], float32 Y[N]) -> (Z) { Z[i] = 2 * X[i] + Y[i] }"
    doubled = fk.jax.op(text, schedule="split S0: i by 8")
    f = exported(doubled, "n", "n")
    assert "split S0: i by 8" in f.mlir_module()
    (tmp_path / "f.bin").write_bytes(f.serialize())
    code = f"""
import farkas as fk, jax, numpy as np
from farkas.frameworks import xla_kernels
f = jax.export.deserialize(bytearray(open({str(tmp_path / "f.bin")!r}, "rb").read()))
fk.jax.register()
for n in (3, 20):
    x = np.arange(n, dtype=np.float32)
    assert np.array_equal(f.call(x, x), 3 * x)
(kernel,) = xla_kernels._kernels.values()
assert str(kernel.schedule) == "split S0: i by 8", kernel.schedule
"""
    root = str(Path(fk.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr


def test_a_call_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays with values do not cost a trace each."""
    traced = []
    operator = fk.jax.op("def t(float32 X[N]) -> (Y) { Y[i] = 3 * X[i] }")
    original = operator._kernel
    monkeypatch.setattr(operator, "_kernel", lambda p: traced.append(p) or original(p))
    for n in (3, 3, 5, 3):
        x = draw(n)
        close(operator(x), 3 * x)
    assert len(traced) == 2


def test_temporaries_of_several_threads() -> None:
    """Memory for them is kept between calls, and no two calls use the same."""
    text = """def s(float32 X[N,M]) -> (Y) {
        float32 e[N,M]; float32 t[M]
        e[i,j] = exp(X[i,j])
        t[j] +=! e[i,j]
        Y[i,j] = e[i,j] / t[j]
    }"""
    f = jax.jit(fk.jax.op(text))
    given = [draw(7 * n, 11) for n in range(1, 9)]

    def run(x: Any) -> None:
        for _ in range(100):
            close(f(x), jax.nn.softmax(x, 0))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, given))


def test_threads_that_call_with_new_shapes() -> None:
    f = exported(L1, "n, k", "m, k")
    given = [(draw(n, 3), draw(n + 1, 3)) for n in range(1, 33)]
    with ThreadPoolExecutor(8) as pool:
        for (x, y), found in zip(given, pool.map(lambda a: f.call(*a), given), strict=True):
            close(found, l1(x, y))


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (None, ("n, k", "m, j"), r"Y\.shape\[1\] is j, which need not be K = k: write both with"),
        (None, ("n, k", "m, 7"), r"Y\.shape\[1\] is 7, which need not be K = k"),
        (None, ("n, 7", "m, k"), r"Y\.shape\[1\] is k, which need not be K = 7"),
        ("def f(float32 X[2*N]) -> (Y) { Y[i] = X[2*i] }", ("n",),
         r"X\.shape\[0\] is n, which need not be 2 \* N = 2\*floordiv\(n, 2\)"),
    ],
)  # fmt: skip
def test_symbols_that_are_refused(text: str | None, shapes: Any, message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        exported(fk.jax.op(text) if text else L1, *shapes)


def test_results_of_other_shapes_are_refused() -> None:
    """The foreign function would write beyond them."""
    made = L1._kernel(L1.operation.program([FLOAT32] * 2))
    with pytest.raises(fk.ArgumentError, match=r"D has shape \(4, 4\), expected \(4, 5\)"):
        made.add((), [(4, 3), (5, 3)], [(4, 4)])


def test_preconditions_of_calls_with_new_shapes() -> None:
    f = exported(fk.jax.op("def f(float32 X[N], float32 Y[M]) -> (Z) "
                           "{ Z[i] = X[i] * Y[i] where i in 0:N }"), "n", "m")  # fmt: skip
    x = draw(5)
    close(f.call(x[:3], x), x[:3] * x[:3])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"precondition .* does not hold"):
        jax.block_until_ready(f.call(x, x[:3]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: L1(draw(4, 3)), r"takes 2 arrays \(X, Y\), but 1 was given"),
        (lambda: L1(draw(4), draw(5, 3)), "X has rank 1"),
        (lambda: L1(draw(4, 3), draw(5, 2)), r"Y\.shape\[1\] is 2"),
        (lambda: L1(draw(4, 3).astype("int32"), draw(5, 3)), "X has dtype int32"),
        (lambda: L1(np.ones((4, 3)), draw(5, 3)), "X has dtype float64, which JAX has disabled"),
        (lambda: L1("abc", draw(5, 3)), "X is no array"),
        (lambda: L1(draw(4, 3), draw(5, 3), N=4), r"takes no size N by name: l1\(X, Y\)"),
        (lambda: L1(X=draw(4, 3), Y=draw(5, 3)), r"takes its inputs by position: l1\(X, Y\)"),
        (lambda: fk.jax.op("def f(float64 X[N]) -> (Y) { Y[i] = X[i] }")(draw(3)), "float64"),
        (lambda: fk.jax.op("def f(float32 X[N]) -> (Y) { Y[i] = int64(X[i]) }")(draw(3)),
         "has 64 bits, which JAX has disabled"),
        (lambda: fk.jax.op("Y[i] = X[i] * 2")(draw(3).astype("complex64")), "arrays of complex64"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, message: str) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        call()


def test_tensors_of_torch_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    message = r"X is a tensor of torch, not an array of JAX: pass jax\.numpy\.from_dlpack\(X\)"
    for tensor in (torch.rand(4, 3), torch.rand(4, 3, requires_grad=True)):
        with pytest.raises(fk.ArgumentError, match=message):
            L1(tensor, draw(5, 3))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
         ((3, 4), (4, 2))),
        ("def f(float32 X[N,M]) -> (Y) { top[i] max=! X[i,j]\nE[i,j] = exp(X[i,j] - top[i])\n"
         "total[i] +=! E[i,j]\nY[i,j] = E[i,j] / total[i] }", ((3, 4),)),
        ("def f(float32 X[N]) -> (S) { S[0] = X[0]\nS[i+1] = S[i] * X[i+1] where i in 0:N-1 }",
         ((5,),)),
        ("def f(float32 X[N]) -> (L) { L[] +=! X[i] * X[i] * X[i] }", ((5,),)),
    ],
)  # fmt: skip
def test_gradients(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    operator = fk.jax.op(text)
    given = tuple(draw(*s) for s in shapes)
    check_grads(operator, given, order=2, modes=["rev"], atol=1e-2, rtol=1e-2)
    jitted = jax.jit(jax.grad(lambda *x: operator(*x).sum()))(*given)
    np.testing.assert_allclose(jitted, jax.grad(lambda *x: operator(*x).sum())(*given), rtol=1e-5)


def test_gradients_that_compute_states_again() -> None:
    text = HEAT.replace("float64", "float32")
    given = draw(9), draw(9)
    again, kept = fk.jax.op(text, recompute={"U": 5}), fk.jax.op(text)
    for wrap in (lambda f: f, jax.jit):
        found = wrap(jax.grad(again, argnums=(0, 1)))(*given)
        expected = wrap(jax.grad(kept, argnums=(0, 1)))(*given)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    with pytest.raises(fk.GradientError, match="no block computes 'V'"):
        fk.jax.op(text, recompute="V")


def test_gradients_of_words_and_batches() -> None:
    embed = fk.jax.op("def f(float32 E[V,D], int32 t[N]) -> (Y) { Y[n,d] = E[t[n],d] }")
    words = jax.numpy.asarray([2, 0, 2], "int32")
    found = jax.grad(lambda e: embed(e, words).sum())(draw(3, 2))
    np.testing.assert_allclose(found, [[1, 1], [0, 0], [2, 2]])
    cube = fk.jax.op("def f(float32 X[N]) -> (L) { L[] +=! X[i] * X[i] * X[i] }")
    x = draw(4, 5)
    np.testing.assert_allclose(jax.vmap(jax.grad(cube))(x), 3 * x * x, rtol=1e-5)
