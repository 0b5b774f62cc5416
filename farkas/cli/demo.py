"""``farkas demo``: a network and a comprehension, compiled, checked and timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from farkas.console.display import (
    StageProgress,
    code,
    loop_nest,
    median_seconds,
    seconds,
    size_text,
    stderr_console,
    stdout_console,
    working,
)
from farkas.kernels.kernel import compile
from farkas.networks.compile_onnx import compile_onnx
from farkas.networks.network import Network
from frontends.onnx.model.light_models import load_light
from poly.ir.graph import Call, View

Array = np.ndarray[Any, np.dtype[Any]]

NETWORK = "resnet50"

#: Largest error of a network's output, relative to the largest value of that output.
NETWORK_TOLERANCE = 1e-3
KERNEL_TOLERANCE = 1e-5

#: The most lines of C that are shown.
MAX_LINES = 120

#: A padded convolution with bias and rectifier: its boundary is a condition on the reduction.
CONVOLUTION = """\
def conv_relu(float32 X[N,C,H,W], float32 F[K,C,3,3], float32 B[K]) -> (Y) {
    T[n,k,p,q] +=! X[n,c,p+r-1,q+s-1] * F[k,c,r,s]
        where p in 0:H, q in 0:W, 0 <= p+r-1 < H, 0 <= q+s-1 < W
    Y[n,k,p,q]  =  max(T[n,k,p,q] + B[k], 0)
}"""


def run_demo(threads: int | None = None, console: Console | None = None) -> bool:
    """Run the demonstration; returns whether every check passed.

    Raises
    ------
    FarkasError : the models that come with onnx are missing, or something cannot be compiled.
    """
    console = console or stdout_console()
    network = demo_network(console, threads)
    kernel = demo_kernel(console, threads)
    held = network and kernel
    console.print()
    console.print("all checks held" if held else "a check FAILED", style="bold")
    return held


# --- the network ---------------------------------------------------------------------------


def demo_network(console: Console, threads: int | None, name: str = NETWORK) -> bool:
    """Compile a light model, compare it with the outputs stored beside it, and time it."""
    path, inputs, expected = load_light(name)
    _heading(console, f"{name}, an ONNX network")
    with StageProgress(stderr_console(), verbose=True) as progress:
        model = compile_onnx(path, threads=threads, progress=progress)
    assert model.is_whole, "the networks of the onnx package have fixed shapes"
    describe(console, model)
    results = model.run(inputs)
    error = relative_error(results, expected)
    held = error <= NETWORK_TOLERANCE
    verdict = "agrees with" if held else "DIFFERS from"
    console.print(
        f"check       {verdict} the stored outputs: "
        f"max relative error {error:.2g} (at most {NETWORK_TOLERANCE:g})"
    )
    with working("timing"):
        median = median_seconds(lambda: model.run(inputs))
    used = model.threads
    console.print(
        f"inference   {seconds(median)} (median, batch of {_batch(inputs)}, "
        f"{used} thread{'s' if used != 1 else ''})"
    )
    return held


def describe(console: Console, model: Network) -> None:
    """Print what was compiled, and how long each stage took."""
    report, (graph,) = model.report, model.graphs
    calls = [n for n in graph.nodes if isinstance(n, Call)]
    views = sum(isinstance(n, View) for n in graph.nodes)
    # Merged calls come from several nodes: "Conv 'c' + Relu 'r'".
    operators = Counter(
        "+".join(part.partition(" ")[0] for part in c.origin.split(" + ")) for c in calls
    )
    listed = ", ".join(f"{count} {name}" for name, count in operators.most_common())
    origin = " (from the cache)" if report.from_cache else ""
    console.print(f"compiled    {report.calls} calls and {views} views: {listed}")
    console.print(f"kernels     {report.kernels} distinct ones in one library{origin}")
    console.print(
        f"memory      constants {size_text(report.constant_bytes)}, "
        f"intermediates {size_text(report.arena_bytes)} in one block"
    )
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    for stage, took in report.stages:
        table.add_row(f"  {stage}", seconds(took))
    table.add_row("  in all", seconds(sum(t for _, t in report.stages)), style="bold")
    console.print("stages")
    console.print(table)


def relative_error(results: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest error over all outputs, each relative to its largest magnitude.

    Infinite if an output is missing, has another shape, or is NaN or infinite where it should
    not be.
    """
    worst = 0.0
    for name, reference in expected.items():
        got = results.get(name)
        if got is None or got.shape != reference.shape:
            return float("inf")
        if reference.size == 0:
            continue
        difference = np.abs(got.astype(np.float64) - reference)
        scale = float(np.abs(reference).max())
        error = float(difference.max())
        if not np.isfinite(error):
            return float("inf")
        worst = max(worst, error / scale if scale else error)
    return worst


def _batch(inputs: Mapping[str, Array]) -> int:
    shape = next(iter(inputs.values())).shape
    return shape[0] if shape else 1


# --- the comprehension -----------------------------------------------------------------------


def demo_kernel(console: Console, threads: int | None) -> bool:
    """Compile a comprehension, show its loops, and check it against numpy."""
    _heading(console, "a comprehension, compiled once for all sizes")
    code(console, CONVOLUTION, "c")
    with working("compiling"):
        kernel = compile(CONVOLUTION, threads=threads)
    console.print("\nits schedule, every step checked against the exact dependences", style="bold")
    code(console, str(kernel.schedule), "text")
    console.print("\nthe loops that came out", style="bold")
    lines = loop_nest(kernel.source).splitlines()
    code(console, "\n".join(lines[:MAX_LINES]), "c")
    if len(lines) > MAX_LINES:
        console.print(f"… and {len(lines) - MAX_LINES} more lines; `farkas show` prints all")
    console.print()
    rng = np.random.default_rng(0)
    held = True
    for n, c, h, w, k in ((1, 3, 5, 7, 4), (2, 16, 30, 17, 24), (1, 64, 56, 56, 64)):
        x = rng.standard_normal((n, c, h, w), np.float32)
        f = rng.standard_normal((k, c, 3, 3), np.float32)
        b = rng.standard_normal(k, np.float32)
        result = kernel(x, f, b)
        assert isinstance(result, np.ndarray)
        error = relative_error({"Y": result}, {"Y": numpy_convolution(x, f, b)})
        good = error <= KERNEL_TOLERANCE
        held = held and good
        console.print(
            f"check       {n}x{c}x{h}x{w}, {k} filters: "
            f"{'agrees with' if good else 'DIFFERS from'} numpy, max relative error {error:.2g}"
        )
    return held


def numpy_convolution(x: Array, f: Array, b: Array) -> Array:
    """The meaning of `CONVOLUTION` in numpy: one matrix product over all windows."""
    n, c, h, w = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * 9)
    product = columns @ f.reshape(len(f), -1).T
    result: Array = np.maximum(product + b, 0).reshape(n, h, w, len(f)).transpose(0, 3, 1, 2)
    return result


def _heading(console: Console, text: str) -> None:
    console.print()
    console.rule(text, align="left")
