"""``python -m benchmarks.gradients [NAME …]``: gradients beside torch, Inductor and JAX.

For each operator: the backward half alone, with what the forward half kept, and both. Contenders
take turns in one process on two threads; results are compared first. Prints medians, and ratios to
the fastest other below 1 where Farkas is faster.  With ``--quick``, fewer turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

import farkas as fk
from benchmarks.measure import QUICK, Settings, take_turns
from benchmarks.results import geomean
from farkas.console.display import seconds
from poly.gradients.request import named
from poly.gradients.split import halves

#: How far gradients may be apart, over the largest element.
TOLERANCE = 2e-3
THREADS = 2


@dataclass(frozen=True)
class Operator:
    """An operator in the language, in torch and in JAX, and the shapes of its inputs.

    integers : the greatest value of inputs of integers, by their position
    """

    text: str
    torch: Callable[..., Any]
    jax: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    integers: tuple[tuple[int, int], ...] = ()

    def inputs(self) -> list[Any]:
        rng = np.random.default_rng(0)
        greatest = dict(self.integers)
        return [
            rng.integers(0, greatest[n], s)
            if n in greatest
            else (rng.standard_normal(s) * (0.3 if len(s) < 4 else 0.5)).astype(np.float32)
            for n, s in enumerate(self.shapes)
        ]


def _torch() -> Any:
    return import_module("torch")


def _functional() -> Any:
    return import_module("torch.nn.functional")


def _jnp() -> Any:
    return import_module("jax.numpy")


def _jax_conv(x: Any, f: Any, pad: int, groups: int = 1) -> Any:
    return import_module("jax").lax.conv_general_dilated(
        x, f, (1, 1), ((pad, pad), (pad, pad)), feature_group_count=groups
    )


def _jax_norm(x: Any, g: Any, b: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / _jnp().sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g + b


def _jax_attention(q: Any, k: Any, v: Any) -> Any:
    scores = _jnp().einsum("hid,hjd->hij", q, k) * 0.125
    return _jnp().einsum("hij,hjd->hid", import_module("jax").nn.softmax(scores, -1), v)


def _torch_lstm(x: Any, w: Any, r: Any, h: Any, c: Any) -> Any:
    torch = _torch()
    inputs = torch.einsum("gjn,tn->tgj", w, x)
    found = []
    for t in range(x.shape[0]):
        g = inputs[t] + torch.einsum("gjk,k->gj", r, h)
        c = torch.sigmoid(g[2]) * c + torch.sigmoid(g[0]) * torch.tanh(g[3])
        h = torch.sigmoid(g[1]) * torch.tanh(c)
        found.append(h)
    return torch.stack(found)


def _jax_lstm(x: Any, w: Any, r: Any, h: Any, c: Any) -> Any:
    jax, jnp = import_module("jax"), _jnp()

    def step(state: Any, g: Any) -> Any:
        h, c = state
        g = g + jnp.einsum("gjk,k->gj", r, h)
        c = jax.nn.sigmoid(g[2]) * c + jax.nn.sigmoid(g[0]) * jnp.tanh(g[3])
        h = jax.nn.sigmoid(g[1]) * jnp.tanh(c)
        return (h, c), h

    return jax.lax.scan(step, (h, c), jnp.einsum("gjn,tn->tgj", w, x))[1]


OPERATORS: dict[str, Operator] = {
    "product": Operator(
        "def f(float32 A[M,K], float32 B[K,N]) -> (C) { C[i,j] +=! A[i,k] * B[k,j] }",
        lambda a, b: a @ b, lambda a, b: a @ b, ((512, 512), (512, 512)),
    ),
    "dense, 128 rows": Operator(
        "def f(float32 A[M,K], float32 B[N,K], float32 b[N]) -> (C) "
        "{ P[i,j] +=! A[i,k] * B[j,k]\nC[i,j] = max(P[i,j] + b[j], 0) }",
        lambda a, w, b: _functional().relu(_functional().linear(a, w, b)),
        lambda a, w, b: _jnp().maximum(a @ w.T + b, 0), ((128, 768), (3072, 768), (3072,)),
    ),
    "convolution 1x1": Operator(
        "def f(float32 X[N,C,H,W], float32 F[K,C]) -> (Y) "
        "{ Y[n,k,p,q] +=! X[n,c,p,q] * F[k,c] }",
        lambda x, f: _functional().conv2d(x, f[:, :, None, None]),
        lambda x, f: _jax_conv(x, f[:, :, None, None], 0), ((8, 128, 28, 28), (128, 128)),
    ),
    "convolution 3x3": Operator(
        "def f(float32 X[N,C,H,W], float32 F[K,C,3,3]) -> (Y) "
        "{ Y[n,k,p,q] +=! X[n,c,p+r-1,q+s-1] * F[k,c,r,s] "
        "where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W }",
        lambda x, f: _functional().conv2d(x, f, padding=1), lambda x, f: _jax_conv(x, f, 1),
        ((8, 64, 28, 28), (64, 64, 3, 3)),
    ),
    "depthwise 3x3": Operator(
        "def f(float32 X[N,C,H,W], float32 F[C,3,3]) -> (Y) "
        "{ Y[n,c,p,q] +=! X[n,c,p+r-1,q+s-1] * F[c,r,s] "
        "where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W }",
        lambda x, f: _functional().conv2d(x, f[:, None], padding=1, groups=x.shape[1]),
        lambda x, f: _jax_conv(x, f[:, None], 1, x.shape[1]), ((8, 128, 28, 28), (128, 3, 3)),
    ),
    "softmax": Operator(
        "def f(float32 X[N,M]) -> (Y) { top[i] max=! X[i,j]\nE[i,j] = exp(X[i,j] - top[i])\n"
        "total[i] +=! E[i,j]\nY[i,j] = E[i,j] / total[i] }",
        lambda x: _functional().softmax(x, -1),
        lambda x: import_module("jax").nn.softmax(x, -1), ((2048, 1024),),
    ),
    "layer norm": Operator(
        "def f(float32 X[N,D], float32 G[D], float32 B[D]) -> (Y) { s[i] +=! X[i,d]\n"
        "mean[i] = s[i] / D\nt[i] +=! (X[i,d] - mean[i]) * (X[i,d] - mean[i])\n"
        "scale[i] = rsqrt(t[i] / D + 1e-5)\n"
        "Y[i,d] = (X[i,d] - mean[i]) * scale[i] * G[d] + B[d] }",
        lambda x, g, b: _functional().layer_norm(x, (x.shape[1],), g, b), _jax_norm,
        ((2048, 768), (768,), (768,)),
    ),
    "attention": Operator(
        "def f(float32 Q[H,N,D], float32 K[H,N,D], float32 V[H,N,D]) -> (O) { "
        "S[h,i,j] +=! Q[h,i,d] * 0.125 * K[h,j,d]\ntop[h,i] max=! S[h,i,j]\n"
        "E[h,i,j] = exp(S[h,i,j] - top[h,i])\ntotal[h,i] +=! E[h,i,j]\n"
        "U[h,i,d] +=! E[h,i,j] * V[h,j,d]\nO[h,i,d] = U[h,i,d] / total[h,i] }",
        lambda q, k, v: _functional().scaled_dot_product_attention(q[None], k[None], v[None])[0],
        _jax_attention, ((12, 512, 64), (12, 512, 64), (12, 512, 64)),
    ),
    "LSTM": Operator(
        "def f(float32 X[T,N], float32 W[4,M,N], float32 R[4,M,M], float32 h0[M], float32 c0[M])"
        " -> (H) { G[t,g,j] +=! W[g,j,n] * X[t,n]\nS[0,j] = h0[j]\nC[0,j] = c0[j]\n"
        "for t in 0:T { G[t,g,j] += R[g,j,k] * S[t,k]\n"
        "C[t+1,j] = sigmoid(G[t,2,j]) * C[t,j] + sigmoid(G[t,0,j]) * tanh(G[t,3,j])\n"
        "S[t+1,j] = sigmoid(G[t,1,j]) * tanh(C[t+1,j]) }\nH[t,j] = S[t+1,j] }",
        _torch_lstm, _jax_lstm, ((64, 128), (4, 128, 128), (4, 128, 128), (128,), (128,)),
    ),
    "embedding": Operator(
        "def f(float32 E[V,D], int64 t[N]) -> (Y) { Y[n,d] = E[t[n],d] }",
        lambda e, t: _functional().embedding(t, e), lambda e, t: e[t], ((8192, 512), (2048,)),
        ((1, 8192),),
    ),
    "cumulative product": Operator(
        "def f(float32 X[N,M]) -> (P) { P[i,0] = X[i,0]\nP[i,j+1] = P[i,j] * X[i,j+1] }",
        lambda x: x.cumprod(1), lambda x: _jnp().cumprod(x, 1), ((256, 1024),),
    ),
}  # fmt: skip

#: Contenders by name: their backward halves, and forward with backward.
Calls = tuple[Callable[[], Any], Callable[[], Any]]


def _ours(operator: Operator, arrays: Sequence[Any], seed: Any) -> Calls:
    sizes: dict[str, int] = {}
    program = fk.parse(operator.text)
    for t, a in zip(program.inputs, arrays, strict=True):
        sizes |= {str(e): n for e, n in zip(t.shape, a.shape, strict=True) if str(e).isidentifier()}
    program = fk.parse(operator.text, sizes=sizes)
    wrt, of = named(program, None, None)
    made = halves(program, wrt, of)
    forward = fk.compile(made.forward, threads=THREADS)
    backward = fk.compile(made.backward, threads=THREADS)
    both = fk.compile(fk.value_and_grad(program, wrt, of), threads=THREADS)
    results = forward(*arrays)
    results = results if isinstance(results, tuple) else (results,)
    values = dict(zip((t.name for t in made.forward.outputs), results, strict=True))
    kept = [values[n] for n in made.kept]
    out = backward(*arrays, *kept, seed)
    every = both(*arrays, seed)
    return (
        lambda: backward(*arrays, *kept, seed, out=out),
        lambda: both(*arrays, seed, out=every),
    )


def _of_torch(function: Callable[..., Any], arrays: Sequence[Any], seed: Any) -> Calls:
    torch = _torch()
    given = [torch.from_numpy(a.copy()) for a in arrays]
    floats = [t.requires_grad_() for t in given if t.is_floating_point()]
    g = torch.from_numpy(seed)
    value = function(*given)
    return (
        lambda: torch.autograd.grad(value, floats, g, retain_graph=True),
        lambda: torch.autograd.grad(function(*given), floats, g),
    )


def _of_jax(function: Callable[..., Any], arrays: Sequence[Any], seed: Any) -> Calls:
    jax = import_module("jax")
    given = [jax.numpy.asarray(a) for a in arrays]
    floats = [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
    g = jax.numpy.asarray(seed)

    def of_floats(*some: Any) -> Any:
        every = list(given)
        for n, a in zip(floats, some, strict=True):
            every[n] = a
        return function(*every)

    some = [given[n] for n in floats]
    _, pullback = jax.jit(lambda *x: jax.vjp(of_floats, *x))(*some)
    back = jax.jit(lambda p, y: p(y))

    def value_and_gradients(y: Any, *x: Any) -> Any:
        value, pull = jax.vjp(of_floats, *x)
        return value, *pull(y)

    both = jax.jit(value_and_gradients)
    return (
        lambda: jax.block_until_ready(back(pullback, g)),
        lambda: jax.block_until_ready(both(g, *some)),
    )


def _checked(found: Any, expected: Any, name: str) -> None:
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        error = np.abs(a - b).max() / max(1e-30, np.abs(b).max())
        if not error < TOLERANCE:
            raise SystemExit(f"{name}: gradients differ by {error:.1e}")


def measure(name: str, settings: Settings) -> tuple[float, float]:
    """Print the times of an operator; returns Farkas's over the fastest other's, both ways."""
    operator = OPERATORS[name]
    arrays = operator.inputs()
    torch = _torch()
    shape = operator.torch(*(torch.from_numpy(a) for a in arrays)).shape
    seed = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    contenders = {
        "Farkas": _ours(operator, arrays, seed),
        "torch": _of_torch(operator.torch, arrays, seed),
        "Inductor": _of_torch(torch.compile(operator.torch), arrays, seed),
        "JAX": _of_jax(operator.jax, arrays, seed),
    }
    expected = [np.asarray(x) for x in contenders["torch"][0]()]
    for who, calls in contenders.items():
        for which, call in enumerate(calls):
            found = call()
            found = found if isinstance(found, (tuple, list)) else (found,)
            _checked(found[-len(expected) :], expected, f"{name}, {who} {which}")
    ratios = []
    for which, what in enumerate(("backward", "both")):
        times = take_turns({w: c[which] for w, c in contenders.items()}, settings)
        best = min(t for w, t in times.items() if w != "Farkas")
        ratios.append(times["Farkas"] / best)
        shown = "  ".join(f"{w} {seconds(t):>8}" for w, t in times.items())
        print(f"{name:<20} {what:<8} {shown}  {ratios[-1]:.2f}", flush=True)
    return ratios[0], ratios[1]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gradients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators; default is all")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    args = parser.parse_args(words)
    _torch().set_num_threads(THREADS)
    settings = QUICK if args.quick else Settings()
    found = [measure(name, settings) for name in args.names or OPERATORS]
    for which, what in enumerate(("backward", "both")):
        print(f"{what}: geomean {geomean([f[which] for f in found]):.2f} of the fastest other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
