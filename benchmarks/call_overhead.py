"""``python -m benchmarks.call_overhead``: microseconds of one call with 16 elements.

``2 * x + y`` as a kernel and as operators of torch and JAX, beside what each library computes
itself.  All take turns in one process; the medians are printed, of libraries that are installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import farkas as fk
from benchmarks.measure import Settings, take_turns

TEXT = "def axpy(float32 X[N], float32 Y[N]) -> (Z) { Z[i] = 2.0 * X[i] + Y[i] }"
ELEMENTS = 16


def _plain(x: Any, y: Any) -> Any:
    return 2 * x + y


def _numpy_calls(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    kernel, out = fk.compile(TEXT), np.empty_like(x)
    return {
        "numpy: 2 * x + y": partial(_plain, x, y),
        "numpy: kernel": partial(kernel, x, y),
        "numpy: kernel, out=": partial(kernel, x, y, out=out),
    }


def _torch_calls(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    torch = import_module("torch")
    a, b = torch.from_numpy(x), torch.from_numpy(y)
    operator = fk.torch.op(TEXT, name="benchmarks::axpy")
    return {
        "torch: 2 * x + y": partial(_plain, a, b),
        "torch: kernel": partial(fk.compile(TEXT), a, b),
        "torch: fk.torch.op": partial(operator, a, b),
    }


def _jax_calls(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    jax = import_module("jax")
    jax.config.update("jax_platforms", "cpu")
    a, b = jax.numpy.asarray(x), jax.numpy.asarray(y)
    operator = fk.jax.op(TEXT)

    def ready(function: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: function(a, b).block_until_ready()

    return {
        "JAX: 2 * x + y": ready(_plain),
        "JAX: jit(2 * x + y)": ready(jax.jit(_plain)),
        "JAX: kernel": ready(fk.compile(TEXT)),
        "JAX: fk.jax.op": ready(operator),
        "JAX: jit(fk.jax.op)": ready(jax.jit(operator)),
    }


def calls() -> dict[str, Callable[[], Any]]:
    """What takes turns, by name: of libraries that are installed."""
    x, y = np.random.default_rng(0).random((2, ELEMENTS), np.float32)
    made = _numpy_calls(x, y)
    for library, of in (("torch", _torch_calls), ("jax", _jax_calls)):
        if find_spec(library):
            made |= of(x, y)
    return made


def main() -> int:
    """Print a row for each way to call; returns how many are wrong."""
    made = calls()
    expected, *others = (np.asarray(call()) for call in made.values())
    wrong = sum(not np.allclose(expected, found) for found in others)
    print(f"| {ELEMENTS} elements | µs |\n|---|---|")
    for name, seconds in take_turns(made, Settings()).items():
        print(f"| {name} | {1e6 * seconds:.2f} |")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
