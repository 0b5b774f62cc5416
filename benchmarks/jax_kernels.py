"""``python -m benchmarks.jax_kernels [NAME …]``: ten operators under ``jax.jit``, beside jnp's.

`fk.jax.op` and the expression that jnp users write, both compiled by `jax.jit`, take turns in one
process; results are compared first.  Prints medians, and ratios below 1 where Farkas is faster.
With ``--quick``, fewer turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import farkas as fk
from benchmarks.measure import QUICK, Settings, take_turns
from benchmarks.results import geomean

#: How far results may be apart, over the largest value.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Operator:
    """An operator in the language and in jnp, and the shapes of its inputs.

    small : shapes for tests
    """

    text: str
    jnp: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    small: tuple[tuple[int, ...], ...]

    def inputs(self, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """Random arrays of JAX."""
        random = np.random.default_rng(0)
        asarray = import_module("jax.numpy").asarray
        return [asarray(random.random(shape, np.float32) - 0.5) for shape in shapes]


def _l1(x: Any, y: Any) -> Any:
    return abs(x[:, None] - y[None]).sum(-1)


def _max_plus(a: Any, b: Any) -> Any:
    return (a[:, :, None] + b[None]).max(1)


def _banded(a: Any, b: Any) -> Any:
    rows, width = a.shape
    return sum(a[:, d, None] * b[d : d + rows] for d in range(width))


def _average(x: Any) -> Any:
    def step(y: Any, now: Any) -> tuple[Any, Any]:
        y = 0.9 * y + 0.1 * now
        return y, y

    _, found = import_module("jax").lax.scan(step, x[0], x[1:])
    return import_module("jax.numpy").concatenate([x[:1], found])


def _dense(x: Any, w: Any, b: Any) -> Any:
    return import_module("jax").nn.silu(x @ w + b)


def _softmax(x: Any) -> Any:
    return import_module("jax").nn.softmax(x, -1)


def _layer_norm(x: Any, g: Any, b: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / import_module("jax.numpy").sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g
        + b
    )


def _blur(x: Any) -> Any:
    rows, columns = x.shape[0] - 2, x.shape[1] - 2
    parts = (x[u : u + rows, v : v + columns] for u in range(3) for v in range(3))
    return sum(parts) * (1 / 9)


def _products(x: Any) -> Any:
    return import_module("jax.numpy").cumprod(x + 1.0, 1)


def _attention(q: Any, k: Any, v: Any) -> Any:
    jnp = import_module("jax.numpy")
    scores = jnp.einsum("hid,hjd->hij", q, k) * 0.125
    return jnp.einsum("hij,hjd->hid", import_module("jax").nn.softmax(scores, -1), v)


OPERATORS: dict[str, Operator] = {
    "L1 distances": Operator(
        "def l1(float32 X[N,K], float32 Y[M,K]) -> (D) { D[i,j] +=! abs(X[i,k] - Y[j,k]) }",
        _l1, ((1024, 64), (1024, 64)), ((5, 4), (6, 4)),
    ),
    "max-plus product": Operator(
        "def mp(float32 A[N,K], float32 B[K,M]) -> (C) { C[i,j] max=! A[i,k] + B[k,j] }",
        _max_plus, ((512, 512), (512, 512)), ((5, 4), (4, 6)),
    ),
    "banded product": Operator(
        "def bm(float32 A[N,W], float32 B[N+W-1,M]) -> (Y) { Y[i,j] +=! A[i,d] * B[i+d,j] }",
        _banded, ((4096, 17), (4112, 64)), ((5, 3), (7, 4)),
    ),
    "moving average": Operator(
        """def ema(float32 X[T,C]) -> (Y) {
            Y[0,c] = X[0,c]
            for t in 1:T { Y[t,c] = 0.9 * Y[t-1,c] + 0.1 * X[t,c] }
        }""",
        _average, ((4096, 256),), ((7, 4),),
    ),
    "dense, silu": Operator(
        """def dense(float32 X[N,K], float32 W[K,M], float32 b[M]) -> (Y) {
            float32 P[N,M]
            P[i,j] +=! X[i,k] * W[k,j]
            Y[i,j] = (P[i,j] + b[j]) / (1.0 + exp(-(P[i,j] + b[j])))
        }""",
        _dense, ((512, 512), (512, 512), (512,)), ((5, 4), (4, 6), (6,)),
    ),
    "softmax": Operator(
        """def softmax(float32 X[N,M]) -> (Y) {
            float32 m[N]; float32 e[N,M]; float32 t[N]
            m[i] max=! X[i,j]
            e[i,j] = exp(X[i,j] - m[i])
            t[i] +=! e[i,j]
            Y[i,j] = e[i,j] / t[i]
        }""",
        _softmax, ((2048, 1024),), ((5, 7),),
    ),
    "layer norm": Operator(
        """def norm(float32 X[N,M], float32 g[M], float32 b[M]) -> (Y) {
            float32 s[N]; float32 v[N]
            s[i] +=! X[i,j] / M
            v[i] +=! (X[i,j] - s[i]) * (X[i,j] - s[i]) / M
            Y[i,j] = (X[i,j] - s[i]) / sqrt(v[i] + 1e-5) * g[j] + b[j]
        }""",
        _layer_norm, ((4096, 768), (768,), (768,)), ((5, 7), (7,), (7,)),
    ),
    "3x3 stencil": Operator(
        """def blur(float32 X[N+2,M+2]) -> (Y) {
            float32 t[N,M]
            t[i,j] +=! X[i+u,j+v] where u in 0:3, v in 0:3
            Y[i,j] = t[i,j] * (1.0 / 9.0)
        }""",
        _blur, ((2050, 2050),), ((6, 7),),
    ),
    "cumulative product": Operator(
        """def products(float32 X[N,M]) -> (Y) {
            Y[i,0] = X[i,0] + 1.0
            for j in 1:M { Y[i,j] = Y[i,j-1] * (X[i,j] + 1.0) }
        }""",
        _products, ((2048, 1024),), ((5, 7),),
    ),
    "attention": Operator(
        """def attention(float32 Q[H,N,D], float32 K[H,M,D], float32 V[H,M,D]) -> (Y) {
            s[h,i,j] +=! Q[h,i,d] * K[h,j,d]
            m[h,i] max=! s[h,i,j]
            e[h,i,j] = exp((s[h,i,j] - m[h,i]) * 0.125)
            t[h,i] +=! e[h,i,j]
            o[h,i,d] +=! e[h,i,j] * V[h,j,d]
            Y[h,i,d] = o[h,i,d] / t[h,i]
        }""",
        _attention, ((8, 512, 64),) * 3, ((2, 5, 4), (2, 6, 4), (2, 6, 4)),
    ),
}  # fmt: skip


def error(found: Any, expected: Any) -> float:
    """The largest difference, over the largest value."""
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape:
        return np.inf
    return float(abs(a - b).max() / max(1e-6, abs(b).max()))


def main(arguments: Sequence[str]) -> int:
    """Print a row for each operator, and the geometric mean; returns how many are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(OPERATORS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    jax = import_module("jax")
    jax.config.update("jax_platforms", "cpu")
    wrong, ratios = 0, []
    print("| operator | shapes | Farkas, ms | jnp, ms | ratio |\n|---|---|---|---|---|")
    for name in options.names or OPERATORS:
        operator = OPERATORS[name]
        given = operator.inputs(operator.shapes)
        made = {"farkas": jax.jit(fk.jax.op(operator.text)), "jnp": jax.jit(operator.jnp)}
        off = error(*(function(*given) for function in made.values()))
        if not off < TOLERANCE:
            wrong += 1
            print(f"{name}: results differ by {off:.1e}", file=sys.stderr)
            continue
        calls = {n: partial(_run, jax, f, given) for n, f in made.items()}
        times = take_turns(calls, QUICK if options.quick else Settings())
        ratios.append(times["farkas"] / times["jnp"])
        shapes = ", ".join("x".join(map(str, s)) for s in operator.shapes)
        ours, theirs = (f"{1e3 * times[n]:.2f}" for n in ("farkas", "jnp"))
        print(f"| {name} | {shapes} | {ours} | {theirs} | {ratios[-1]:.2f} |", flush=True)
    if ratios:
        print(f"| geometric mean | | | | {geomean(ratios):.2f} |")
    return wrong


def _run(jax: Any, function: Callable[..., Any], given: Sequence[Any]) -> object:
    return jax.block_until_ready(function(*given))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
