"""``python -m benchmarks.recurrences``: gradients of long recurrences, their time and memory.

Beside JAX and torch, each in a process of its own on two threads, several times in turns.  The
memory is what the process needs at most beyond what it had before the first call.  Gradients are
compared.  The first case is that of jax#40150: a scan of 614 steps whose state is a dictionary of
60 scalars; the update of a scalar is ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import farkas as fk
from farkas.console.display import seconds

THREADS, TURNS, CALLS = 2, 3, 5
#: How far gradients may be apart, over the largest element.
TOLERANCE = 2e-3

SCALARS, SCAN = 60, 614
SCAN_TEXT = f"""
def scan(float32 w[{SCALARS}], float32 s0[{SCALARS}], float32 x[{SCAN}]) -> (L) {{
    float32 S[{SCAN + 1},{SCALARS}]
    S[0,i] = s0[i]
    for t in 0:{SCAN} {{
        S[t+1,i] = S[t,i] + 0.1 * sigmoid(S[t,(i+{SCALARS - 1})%{SCALARS}])
            * tanh(w[i]*x[t] - S[t,i]) / (1 + S[t,i]*S[t,i]) where i in 0:{SCALARS}
    }}
    L[] +=! S[{SCAN},i] * S[{SCAN},i]
}}
"""
STEPS, SIDE = 1000, 256
#: Steps between the states that JAX and torch keep: what Farkas chooses.
SEGMENT = 40
HEAT_TEXT = f"""
def heat(float32 U0[{SIDE},{SIDE}], float32 a[{SIDE},{SIDE}]) -> (L) {{
    float32 U[{STEPS + 1},{SIDE},{SIDE}]
    U[0,i,j] = U0[i,j]
    for t in 0:{STEPS} {{
        U[t+1,i,j] = U[t,i,j] + a[i,j] * U[t,i,j] * (
            U[t,(i+1)%{SIDE},j] + U[t,(i+{SIDE - 1})%{SIDE},j]
            + U[t,i,(j+1)%{SIDE}] + U[t,i,(j+{SIDE - 1})%{SIDE}] - 4*U[t,i,j])
            where i in 0:{SIDE}, j in 0:{SIDE}
    }}
    L[] +=! U[{STEPS},i,j] * U[{STEPS},i,j]
}}
"""

#: From arrays to a call that gives the gradients with respect to the first two.
Build = Callable[[Sequence[Any]], Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """A recurrence: its inputs, and who computes its gradient, ours first."""

    inputs: Callable[[], list[Any]]
    contenders: dict[str, Build]


def _farkas(text: str, **options: Any) -> Build:
    def build(arrays: Sequence[Any]) -> Callable[[], Any]:
        names = [t.name for t in fk.parse(text).inputs][:2]
        kernel = fk.compile(fk.grad(text, names, **options), threads=THREADS)
        return lambda: kernel(*arrays)

    return build


def _jax(loss: Callable[..., Any], split: bool = False) -> Build:
    """JAX's gradient; `split` if the first two inputs are dictionaries of scalars."""

    def build(arrays: Sequence[Any]) -> Callable[[], Any]:
        jax = import_module("jax")
        given: list[Any] = [jax.numpy.asarray(a) for a in arrays]
        if split:
            given[:2] = ({f"s{n}": a[n] for n in range(len(a))} for a in given[:2])
        gradient = jax.jit(jax.grad(loss, (0, 1)))

        def call() -> Any:
            found = jax.block_until_ready(gradient(*given))
            return [_stacked(d) for d in found] if split else found

        return call

    return build


def _stacked(scalars: Any) -> Any:
    return import_module("jax").numpy.stack([scalars[f"s{n}"] for n in range(len(scalars))])


def _torch(loss: Callable[..., Any]) -> Build:
    def build(arrays: Sequence[Any]) -> Callable[[], Any]:
        torch = import_module("torch")
        torch.set_num_threads(THREADS)
        given = [torch.from_numpy(a) for a in arrays]
        floats = [t.requires_grad_() for t in given[:2]]
        return lambda: torch.autograd.grad(loss(*given), floats)

    return build


def _dictionary_loss(w: Any, s0: Any, x: Any) -> Any:
    jax = import_module("jax")

    def step(s: Any, x: Any) -> Any:
        def moved(n: int) -> Any:
            own, other = s[f"s{n}"], s[f"s{(n - 1) % SCALARS}"]
            force = jax.numpy.tanh(w[f"s{n}"] * x - own) / (1 + own * own)
            return own + 0.1 * jax.nn.sigmoid(other) * force

        return {f"s{n}": moved(n) for n in range(SCALARS)}, None

    last, _ = jax.lax.scan(step, s0, x)
    return sum(v * v for v in last.values())


def _vector_loss(w: Any, s0: Any, x: Any) -> Any:
    jax = import_module("jax")
    jnp = jax.numpy

    def step(s: Any, x: Any) -> Any:
        return s + 0.1 * jax.nn.sigmoid(jnp.roll(s, 1)) * jnp.tanh(w * x - s) / (1 + s * s), None

    last, _ = jax.lax.scan(step, s0, x)
    return (last * last).sum()


def _torch_scan_loss(w: Any, s: Any, x: Any) -> Any:
    torch = import_module("torch")
    for at in x:
        s = s + 0.1 * torch.sigmoid(s.roll(1)) * torch.tanh(w * at - s) / (1 + s * s)
    return (s * s).sum()


def _heat_step(u: Any, a: Any, roll: Callable[..., Any]) -> Any:
    around = roll(u, 1, 0) + roll(u, -1, 0) + roll(u, 1, 1) + roll(u, -1, 1)
    return u + a * u * (around - 4 * u)


def _jax_heat(u: Any, a: Any) -> Any:
    jax = import_module("jax")
    last, _ = jax.lax.scan(lambda u, _: (_heat_step(u, a, jax.numpy.roll), None), u, length=STEPS)
    return (last * last).sum()


def _jax_heat_in_segments(u: Any, a: Any) -> Any:
    jax = import_module("jax")
    step = lambda u, _: (_heat_step(u, a, jax.numpy.roll), None)  # noqa: E731
    segment = jax.checkpoint(lambda u, _: (jax.lax.scan(step, u, length=SEGMENT)[0], None))
    last, _ = jax.lax.scan(segment, u, length=STEPS // SEGMENT)
    return (last * last).sum()


def _torch_heat(u: Any, a: Any) -> Any:
    torch = import_module("torch")
    for _ in range(STEPS):
        u = _heat_step(u, a, torch.roll)
    return (u * u).sum()


def _torch_heat_in_segments(u: Any, a: Any) -> Any:
    torch = import_module("torch")
    checkpoint = import_module("torch.utils.checkpoint").checkpoint

    def segment(u: Any, a: Any) -> Any:
        for _ in range(SEGMENT):
            u = _heat_step(u, a, torch.roll)
        return u

    for _ in range(STEPS // SEGMENT):
        u = checkpoint(segment, u, a, use_reentrant=False)
    return (u * u).sum()


def _scan_inputs() -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(n).astype(np.float32) for n in (SCALARS, SCALARS, SCAN)]


def _heat_inputs() -> list[Any]:
    rng = np.random.default_rng(0)
    shape = (SIDE, SIDE)
    return [rng.uniform(0.5, 1, shape).astype(np.float32), np.full(shape, 0.1, np.float32)]


CASES = {
    "scan of 60 scalars, 614 steps": Case(
        _scan_inputs,
        {
            "Farkas": _farkas(SCAN_TEXT),
            "JAX, dictionary": _jax(_dictionary_loss, split=True),
            "JAX, vector": _jax(_vector_loss),
            "torch, vector": _torch(_torch_scan_loss),
        },
    ),
    f"heat, {STEPS} steps of {SIDE} x {SIDE}": Case(
        _heat_inputs,
        {
            "Farkas": _farkas(HEAT_TEXT),
            "Farkas, recomputed": _farkas(HEAT_TEXT, recompute="U"),
            "JAX": _jax(_jax_heat),
            "JAX, recomputed": _jax(_jax_heat_in_segments),
            "torch": _torch(_torch_heat),
            "torch, recomputed": _torch(_torch_heat_in_segments),
        },
    ),
}


def _memory(what: str) -> int:
    """A line of the process's status, in bytes."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(what))
    return 1024 * int(line.split()[1])


def child(case: str, who: str, path: str) -> None:
    """Measure in this process; print the median of the calls and the memory."""
    found = CASES[case]
    call = found.contenders[who](found.inputs())
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _memory("VmRSS")
    result = call()
    peak = _memory("VmHWM") - before
    np.savez(path, *(np.asarray(x) for x in result))
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    print(json.dumps([statistics.median(times), peak]))


def measure(case: str) -> None:
    """Print a table of a case."""
    times: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    results: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            for who in CASES[case].contenders:
                path = f"{folder}/{who}.npz"
                words = [sys.executable, "-m", "benchmarks.recurrences", "--child", case, who, path]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                took, peak = json.loads(done.stdout.splitlines()[-1])
                times.setdefault(who, []).append(took)
                peaks[who] = int(peak)
                with np.load(path) as arrays:
                    results[who] = [arrays[n] for n in arrays.files]
    best = statistics.median(times["Farkas"])
    print(case)
    for who, took in times.items():
        for a, b in zip(results[who], results["Farkas"], strict=True):
            if not np.abs(a - b).max() <= TOLERANCE * np.abs(b).max():
                raise SystemExit(f"{case}: the gradients of {who} are others")
        median = statistics.median(took)
        memory = f"{peaks[who] / 2**20:7.0f} MB"
        print(f"  {who:<20} {seconds(median):>8} {median / best:6.2f}  {memory}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.recurrences", description=__doc__)
    parser.add_argument("--child", nargs=3, metavar=("CASE", "WHO", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.child:
        child(*args.child)
        return 0
    for case in CASES:
        measure(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
