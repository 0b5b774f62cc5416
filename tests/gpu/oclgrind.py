"""Kernels in oclgrind, a simulator of OpenCL that reports races, accesses outside of arrays,
values that nobody has written, and threads that wait at different barriers.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from codegen.gpu.emit import GpuKernel, GpuSource
from poly.machine.gpu import SHARED_BYTES
from runtime.common.arguments import Array
from runtime.cpu.toolchain import run_command
from runtime.gpu.device import Device
from tests.gpu.sanitized import LONGEST, ExactMemory


class OclgrindDevice(Device):
    """A device whose launches run when the first result is read; what is said is in `reports`.

    Each call is a child, whose memory nobody has written but what is given to it.
    """

    name, dialect = "oclgrind", "opencl"

    def __init__(self, folder: Path) -> None:
        self.pool = ExactMemory(self.allocate, self.free)
        self.folder = folder
        self.reports: list[str] = []
        self._text = ""
        self._arrays: list[Array] = []
        self._given: set[int] = set()
        self._launches: list[tuple[Any, ...]] = []

    def build(self, *sources: GpuSource) -> str:
        (source,) = sources
        return source.text

    def part(self, handle: int, start: int, count: int) -> int:
        raise NotImplementedError("only networks ask for parts of memory, and none is run here")

    def allocate(self, count: int) -> int:
        self._arrays.append(np.zeros(count, np.uint8))
        return len(self._arrays) - 1

    def free(self, handle: int) -> None:
        pass  # with the whole call

    def write(self, handle: int, array: Array, stream: None) -> None:
        self._arrays[handle][: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        self._given.add(handle)

    def copy(self, to: int, origin: int, count: int, stream: None) -> None:
        self._run()
        self._arrays[to][:count] = self._arrays[origin][:count]
        self._given.add(to)

    def read(self, handle: int, array: Array, stream: None) -> None:
        self._run()
        array[...] = self._arrays[handle][: array.nbytes].view(array.dtype).reshape(array.shape)

    def wait(self, stream: None) -> None:
        pass

    def stream(self, value: Any) -> None:
        assert value is None

    def locate(self, handle: int) -> tuple[str, int]:
        return f"oclgrind {handle}", 0

    def launch(
        self,
        module: str,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        handles: Sequence[int],
        stream: None,
    ) -> None:
        self._text = module
        self._launches.append((kernel.symbol, grid, kernel.block, tuple(sizes), tuple(handles)))

    def _run(self) -> None:
        """Run what was launched since the last time."""
        if not self._launches:
            return
        folder = Path(mkdtemp(dir=self.folder))
        call = (self._text, self._arrays, self._given, self._launches)
        (folder / "call").write_bytes(pickle.dumps(call))
        simulator = ("oclgrind", "--data-races", "--uninitialized", "--log", str(folder / "log"))
        simulator += ("--local-mem-size", str(SHARED_BYTES), "--max-errors", "1000000")
        script = str(Path(__file__).with_name("oclgrind_child.py"))
        child = (sys.executable, script, str(folder / "call"), str(folder / "results"))
        done = run_command((*simulator, *child), None, LONGEST)
        said = (folder / "log").read_text().split("\n\n") if (folder / "log").exists() else []
        parts = (part.strip() for part in said)
        self.reports += [p.splitlines()[0] for p in parts if p and not is_of_a_value(p, self._text)]
        if done.code != 0:
            self.reports.append(f"code {done.code}: {done.errors[-500:]}")
        else:
            self._arrays = pickle.loads((folder / "results").read_bytes())
        self._given, self._launches = set(range(len(self._arrays))), []


def is_of_a_value(report: str, text: str) -> bool:
    """Whether a report is of a branch that a value takes, as a minimum does, and no statement.

    A tile at the edge computes with what nobody has written for elements that are not there, and
    keeps nothing of it.  Were it kept, the store would be reported.
    """
    place = re.search(r"At line (\d+) ", report)
    if not report.startswith("Controlflow depends on uninitialized value") or place is None:
        return False
    number, lines = int(place[1]), text.splitlines()
    first = next(n for n, line in enumerate(lines, 1) if line.startswith("__kernel"))
    return number < first or not re.match(r"\s*(if|for|while|}? *else)\b", lines[number - 1])


@functools.cache
def why_not() -> str:
    """Why nothing runs in oclgrind here; "" if it does."""
    if not shutil.which("oclgrind"):
        return "oclgrind is not installed; it is a package of Debian"
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl is not installed: pip install '.[opencl]'"
    return ""
