"""``python -m benchmarks.shipping``: exported C beside Farkas itself and another generator of C.

The networks are those of suite E.  All C is compiled with the same flags; all results are compared.
``emx-onnx-cgen`` is a peer if its command is found (``pip install emx-onnx-cgen``).
"""

from __future__ import annotations

import argparse
import ctypes
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from rich.console import Console
from rich.table import Table

import farkas as fk
from benchmarks import models
from benchmarks.kernel import Array, aligned
from benchmarks.measure import QUICK, Settings, take_turns
from benchmarks.task import Task
from benchmarks.translate.network import value_shapes
from farkas.export.exported import Exported
from farkas.networks.export_network import exported

FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512")
PEER = "emx-onnx-cgen"
#: Names that objects may need: those of the C library's memory and mathematics, and what a position
#: independent object has.
_ALLOWED = ("mem", "_GLOBAL_OFFSET_TABLE_", "__cpu_")


@dataclass
class Found:
    """What was measured of a network: seconds by contender, bytes, and names of other libraries."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    note: str = ""

    def ratio(self, one: str, other: str) -> float | None:
        """The time of one contender over another's."""
        if one not in self.seconds or other not in self.seconds:
            return None
        return self.seconds[one] / self.seconds[other]


def measure(name: str, folder: Path, isa: str, threads: int, settings: Settings) -> Found:
    """Measure a network of suite E.

    Raises
    ------
    AssertionError : a wrong result.
    """
    task = models.task(name, models.write(name, folder))
    found = Found(name)
    one, team = (exported(task.path, "net", isa=isa, threads=t) for t in ("none", "pthread"))
    library = _compiled(one, folder / f"{name}-1", found)
    shared = _compiled(team, folder / f"{name}-n", Found(name))
    found.bytes["workspace"], found.bytes["bound"] = one.module.workspace, one.module.bound
    model = fk.compile_onnx(task.path)
    expected = list(model.run(task.inputs).values())
    results = {"C": _call(one, library, task), "C threads": _call(team, shared, task, threads)}
    calls: dict[str, Callable[[], object]] = {
        "Farkas": lambda: model.run(task.inputs, threads=1),
        "C": results["C"].run,
    }
    peer = _peer(task, folder / f"{name}-peer", found)
    if peer is not None:
        results[PEER] = peer
        calls[PEER] = peer.run
    for what, made in results.items():
        made.run()
        _compare(f"{name}: {what}", made.outputs, expected)
    found.seconds = take_turns(calls, settings)
    pair = {
        "Farkas threads": lambda: model.run(task.inputs, threads=threads),
        "C threads": results["C threads"].run,
    }
    found.seconds |= take_turns(pair, settings)
    results["C threads"].stop()
    return found


@dataclass
class Call:
    """A call of a library: its outputs, all its arrays, and how to end its threads."""

    run: Callable[[], object]
    outputs: Sequence[Array]
    arrays: Sequence[Array]
    stop: Callable[[], object] = lambda: None


def _compiled(made: Exported, folder: Path, found: Found) -> ctypes.CDLL:
    """The library of exported C; what its object needs, and the size of its code, go to `found`."""
    folder.mkdir()
    made.write(folder / "net.c")
    line = ["gcc", *FLAGS, "-Wall", "-Wextra", "-Werror", "-fPIC", "-c", "net.c"]
    subprocess.run(line, cwd=folder, check=True)
    listed = subprocess.run(["nm", "-u", "net.o"], cwd=folder, check=True, capture_output=True)
    names = [line.split()[-1] for line in listed.stdout.decode().splitlines()]
    found.needs = tuple(n for n in names if not n.startswith(_ALLOWED))
    sizes = subprocess.run(["size", "net.o"], cwd=folder, check=True, capture_output=True)
    found.bytes["weights"] = len(made.module.weights)
    found.bytes["code"] = int(sizes.stdout.split()[6]) - found.bytes["weights"]
    line = ["gcc", "-shared", "net.o", "-o", "net.so", "-lm", "-lpthread"]
    subprocess.run(line, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "net.so"))


def _call(made: Exported, library: ctypes.CDLL, task: Task, threads: int = 0) -> Call:
    """threads : of a team; 0: none"""
    results = [aligned(np.zeros(shape, dtype)) for shape, dtype in made.results]
    memory = aligned(np.zeros(made.workspace + threads * made.module.memory, np.uint8))
    arrays = (*(task.inputs[label] for label in made.inputs), *results, memory)
    passed = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    passed.append(ctypes.c_size_t(memory.nbytes))  # type: ignore[arg-type]
    if not threads:
        return Call(lambda: library.net_run(*passed), results, arrays)
    team = ctypes.create_string_buffer(1 << 12)
    assert library.net_start(team, ctypes.c_int(threads)) == 0
    stop = lambda: library.net_stop(team)  # noqa: E731
    return Call(lambda: library.net_run(*passed, team), results, arrays, stop)


def _peer(task: Task, folder: Path, found: Found) -> Call | None:
    """The other generator's library; None if there is none, or it cannot."""
    if shutil.which(PEER) is None:
        return None
    folder.mkdir()
    model = _described(task.path)
    onnx.save(model, folder / "net.onnx")
    line = [PEER, "compile", "net.onnx", "net.c"]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    line = ["gcc", *FLAGS, "-w", "-shared", "-fPIC", "net.c", "-o", "net.so", "-lm"]
    if done.returncode or subprocess.run(line, cwd=folder).returncode:
        found.note = f"{PEER} fails"
        return None
    library = ctypes.CDLL(str(folder / "net.so"))
    weights = folder / "model.bin"
    assert not weights.exists() or library.model_load(str(weights).encode())
    shapes = value_shapes(model)
    results = [aligned(np.zeros(shapes[name], np.float32)) for name in task.outputs]
    arrays = (*task.inputs.values(), *results)
    passed = [ctypes.c_void_p(a.ctypes.data) for a in arrays]
    return Call(lambda: library.model(*passed), results, arrays)


def _described(path: Path) -> onnx.ModelProto:
    """A model with the shapes of all values, which the other generator takes from the file."""
    model = onnx.load(path)
    shapes, float32 = value_shapes(model), onnx.TensorProto.FLOAT
    graph = model.graph
    del graph.value_info[:]
    stated = {i.name for i in (*graph.input, *graph.initializer)}
    for info in graph.output:
        info.CopyFrom(helper.make_tensor_value_info(info.name, float32, shapes[info.name]))
        stated.add(info.name)
    made = [name for node in graph.node for name in node.output if name in shapes]
    graph.value_info.extend(
        helper.make_tensor_value_info(n, float32, shapes[n]) for n in made if n not in stated
    )
    return model


def _compare(what: str, found: Sequence[Array], expected: Sequence[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        scale = float(np.abs(b).max()) or 1.0
        error = float(np.abs(a - b).max()) / scale
        assert error < 1e-3, f"{what} differs by {error:.1e}"


# --- showing ------------------------------------------------------------------------------------

#: Columns of ratios: a heading, and the contenders.
_RATIOS = (
    ("C/Farkas", "C", "Farkas"),
    (f"{PEER}/C", PEER, "C"),
    ("C/Farkas, threads", "C threads", "Farkas threads"),
)


def table(rows: Sequence[Found]) -> Table:
    """Times in ms, ratios, and bytes."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("ms", no_wrap=True)
    names = ("Farkas", "C", PEER, "Farkas threads", "C threads")
    for name in (*names, *(h for h, _, _ in _RATIOS), "workspace/bound", "code KiB", "needs"):
        shown.add_column(name, justify="right")
    for row in rows:
        times = [f"{1e3 * row.seconds[n]:.2f}" if n in row.seconds else "" for n in names]
        ratios = [_number(row.ratio(a, b)) for _, a, b in _RATIOS]
        memory = row.bytes["workspace"] / max(row.bytes["bound"], 1)
        code = f"{row.bytes['code'] / 1024:.0f}"
        shown.add_row(
            row.name, *times, *ratios, f"{memory:.2f}", code, " ".join(row.needs) or row.note
        )
    means = [_number(_mean([row.ratio(a, b) for row in rows])) for _, a, b in _RATIOS]
    shown.add_row("geometric mean", *[""] * len(names), *means)
    return shown


def _number(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _mean(ratios: Sequence[float | None]) -> float | None:
    known = [math.log(r) for r in ratios if r is not None]
    return math.exp(statistics.mean(known)) if known else None


def _best_isa() -> str:
    """The instruction set of this machine."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    tests: Mapping[str, str] = {"avx512vl": "x86-64-v4", "avx2": "x86-64-v3", "sse4_2": "x86-64-v2"}
    found = next((isa for flag, isa in tests.items() if flag in flags), "generic")
    return f"{found}+avx512_vnni" if "avx512_vnni" in flags else found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.shipping", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=models.names(), default=models.names())
    parser.add_argument("--isa", default=_best_isa())
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    console, rows = Console(width=200), []
    settings = QUICK if given.quick else Settings()
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, Path(folder), given.isa, given.threads, settings))
        console.print(f"{name} is measured", style="dim")
    console.print(f"for {given.isa}, gcc {' '.join(FLAGS)}, {given.threads} threads")
    console.print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
