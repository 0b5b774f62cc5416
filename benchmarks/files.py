"""Suite files: the networks of a folder, which the variable FARKAS_BENCH_FILES names.

Beside ``NAME.onnx`` there may be ``NAME.npz`` with an array for each input, and ``result0``,
``result1`` … for the outputs, and ``tolerance``, the greatest difference that is allowed, relative
to the greatest magnitude.  Without it, inputs are random, of size 1 where the file leaves a size
open, and results are compared with those of the first contender.  ``python -m benchmarks.exported``
writes such a folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx

from benchmarks.kernel import aligned
from benchmarks.models import count
from benchmarks.task import Task, UnavailableError
from runtime.common.random_arrays import random_array

_TOLERANCE = 1e-3
VARIABLE = "FARKAS_BENCH_FILES"


def _folder() -> Path:
    return Path(os.environ.get(VARIABLE, "networks")).resolve()


def names() -> tuple[str, ...]:
    """The names of the files, in the order of the alphabet."""
    return tuple(sorted(p.stem for p in _folder().glob("*.onnx")))


def size(name: str) -> tuple[int, int]:
    """As `benchmarks.models.count` says, where all shapes are known."""
    try:
        return count(onnx.load(_folder() / f"{name}.onnx"))
    except (KeyError, IndexError, TypeError, ValueError):
        return 0, 0


def write(name: str, folder: Path) -> Path:
    """The file of a network."""
    path = _folder() / f"{name}.onnx"
    if not path.exists():
        raise UnavailableError(f"{path} does not exist; {VARIABLE} names another folder")
    return path


def task(name: str, path: Path) -> Task:
    """The task of a network, with the arrays beside its file."""
    graph = onnx.load(path, load_external_data=False).graph
    stored = {t.name for t in graph.initializer}
    declared = {i.name: i.type.tensor_type for i in graph.input if i.name not in stored}
    outputs = tuple(o.name for o in graph.output)
    beside = path.with_suffix(".npz")
    if beside.exists():
        with np.load(beside) as arrays:
            inputs = {n: aligned(arrays[n]) for n in declared}
            results = [arrays[f"result{k}"] for k in range(len(outputs))]
            tolerance = float(arrays.get("tolerance", _TOLERANCE))
        return Task(
            name, "files", path, inputs, outputs, reference=lambda: results, tolerance=tolerance
        )
    draw = np.random.default_rng(0)
    inputs = {}
    for n, kind in declared.items():
        shape = tuple(d.dim_value or 1 for d in kind.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        inputs[n] = aligned(random_array(draw, dtype, shape))
    return Task(name, "files", path, inputs, outputs)
