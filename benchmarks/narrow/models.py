"""The networks of suite narrow: each in each form, with what its results are compared with.

A quantised network is compared with ONNX Runtime without graph optimisations on the same file.
Contenders round some sums otherwise, and may fold scales, so that a value in the middle may be one
step apart; the difference that is allowed is therefore that which quantising itself brings, the
difference between that result and the one on float32, and at least 2 % of the largest value.
Networks in 16 bits are compared with the one on float32.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.kernel import Array, aligned
from benchmarks.narrow.forms import FORMS, plain_results, write_form
from benchmarks.narrow.networks import NETWORKS, inputs_of
from benchmarks.task import Task, UnavailableError

_LEAST = 0.02
#: Seconds after which writing a file is given up.
_TIMEOUT = 1200
_INPUTS = 7


def names() -> tuple[str, ...]:
    """Each network in each form."""
    return tuple(f"{network} {form}" for network in NETWORKS for form in FORMS)


def size(name: str) -> tuple[int, int]:
    """No operations or bytes are counted."""
    return 0, 0


def write(name: str, folder: Path) -> Path:
    """Write the file of a network, if it does not exist, in a process of its own.

    Raises
    ------
    UnavailableError : it cannot be quantised, and why.
    """
    path = folder / f"{name}.onnx"
    if not path.exists():
        line = [sys.executable, "-m", "benchmarks.narrow.models", name, str(folder)]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"no file after {error.timeout:.0f} s") from error
        if done.returncode or not path.exists():
            last = done.stderr.strip().splitlines()[-1:]
            raise UnavailableError(f"its file could not be written: {''.join(last)[-300:]}")
    return path


def make(name: str, folder: Path) -> None:
    """Write the file of a network and the expected results beside it, in this process."""
    network, _, kind = name.partition(" ")
    form, path = FORMS[kind], folder / f"{name}.onnx"
    wide, exact = _wide(network, folder)
    part = path.with_suffix(".part")
    write_form(form, wide, part)
    expected, tolerance = exact, form.tolerance
    if not form.element:
        expected = plain_results(part, inputs_of(onnx.load(wide), _INPUTS))
        tolerance = max(_LEAST, _apart(expected, exact))
    results = {f"y{n}": a for n, a in enumerate(expected)}
    _save(_results(path), {**results, "tolerance": np.array(tolerance)})
    part.rename(path)


def _wide(network: str, folder: Path) -> tuple[Path, list[Array]]:
    """The file of a network on float32, and its results."""
    path = folder / f"{network}.onnx"
    if not path.exists():
        part = path.with_suffix(".part")
        model = NETWORKS[network]()
        inputs = inputs_of(model, _INPUTS)
        onnx.save(model, part)
        results = {f"y{n}": a for n, a in enumerate(plain_results(part, inputs))}
        _save(_results(path), results)
        _save(_inputs(network, folder), inputs)
        part.rename(path)
    with np.load(_results(path)) as stored:
        return path, list(stored.values())


def _save(path: Path, arrays: Mapping[str, Any]) -> None:
    np.savez(path, **arrays)


def _results(path: Path) -> Path:
    return path.with_suffix(".results.npz")


def _inputs(network: str, folder: Path) -> Path:
    return folder / f"{network}.inputs.npz"


def _apart(results: list[Array], exact: list[Array]) -> float:
    pairs = zip(results, exact, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def task(name: str, path: Path) -> Task:
    """The task of a network whose file has been written."""
    network, _, kind = name.partition(" ")
    with np.load(_inputs(network, path.parent)) as stored:
        inputs = {n: aligned(a) for n, a in stored.items()}
    with np.load(_results(path)) as stored:
        tolerance = float(stored["tolerance"])
        expected = [stored[n] for n in stored if n != "tolerance"]
    outputs = tuple(o.name for o in onnx.load(path, load_external_data=False).graph.output)
    return Task(
        name, "narrow-networks", path, inputs, outputs, reference=lambda: expected,
        tolerance=tolerance, element=FORMS[kind].element or "float32",
    )  # fmt: skip


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
