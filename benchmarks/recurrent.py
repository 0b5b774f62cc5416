"""Suite recurrent: RNN, GRU and LSTM with seeded random weights, two directions, two layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from benchmarks.kernel import Array, aligned, one_model
from benchmarks.networks import Builder
from benchmarks.task import Task

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
#: Steps, batch, features.
_SHAPES = ((100, 1, 128), (50, 16, 128), (30, 1, 512))


def names() -> tuple[str, ...]:
    """Each operator for each shape."""
    return tuple(f"{op} {t}x{b}x{h}" for op in _GATES for t, b, h in _SHAPES)


def _parts(name: str) -> tuple[str, tuple[int, ...]]:
    op, _, shape = name.partition(" ")
    return op, tuple(map(int, shape.split("x")))


def size(name: str) -> tuple[int, int]:
    """Operations of products only; bytes of the weights, inputs and outputs."""
    op, (t, b, h) = _parts(name)
    weights = 2 * _GATES[op] * (h * h + h * h + 2 * h * h + h * h)
    return 2 * t * b * weights, 4 * (weights + t * b * h + 2 * t * b * h)


def write(name: str, folder: Path) -> Path:
    """Write the file of a network; returns its path."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    op, (t, b, h) = _parts(name)
    gates, build, x = _GATES[op], Builder(0), "X"
    for layer in range(2):
        width = h if layer == 0 else 2 * h
        weights = [build.normal((2, gates * h, n), n**-0.5) for n in (width, h)]
        bias = build.normal((2, 2 * gates * h), 0.1)
        y = build.node(op, [x, *weights, bias], hidden_size=h, direction="bidirectional")
        # [T, 2, B, H] -> [T, B, 2H]
        y = build.node("Transpose", [y], perm=[0, 2, 1, 3])
        x = build.node("Reshape", [y, build.constant(np.array([t, b, 2 * h], np.int64))])
    build.nodes[-1].output[0] = "Y"
    model = one_model(op, build.nodes, {"X": (t, b, h)}, {"Y": (t, b, 2 * h)}, build.weights)
    onnx.save(model, path)
    return path


def task(name: str, path: Path) -> Task:
    """The task of a network."""
    _, shape = _parts(name)
    x: Array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return Task(name, "recurrent", path, {"X": aligned(x)}, ("Y",))
