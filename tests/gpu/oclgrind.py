"""Kernels in oclgrind, a simulator of OpenCL that reports races, accesses outside of arrays,
values that nobody has written, and threads that wait at different barriers.

It stands in for the drivers of one process, so each call is a child: this file as a script, with a
file of what to run and one for the results.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np


@dataclass
class Call:
    """A text and launches of its kernels: symbol, grid, block, sizes and numbers of arrays."""

    text: str
    arrays: list[np.ndarray] = field(default_factory=list)
    #: Which arrays have a content, and which are asked for.
    given: set[int] = field(default_factory=set)
    launches: list[tuple[str, Sequence[int], Sequence[int], Sequence[int], Sequence[int]]] = field(
        default_factory=list
    )


class OclgrindDevice:
    """A device whose launches run when the first result is read; what is said is in `reports`."""

    dialect = "opencl"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[str] = []
        self._call = Call("")

    def build(self, source: Any) -> str:
        return source.text  # type: ignore[no-any-return]

    def empty(self, count: int) -> int:
        self._call.arrays.append(np.zeros(count, np.uint8))
        return len(self._call.arrays) - 1

    def write(self, buffer: int, array: np.ndarray) -> None:
        self._call.arrays[buffer][: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        self._call.given.add(buffer)

    def launch(
        self,
        module: str,
        kernel: Any,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        buffers: Sequence[int],
    ) -> None:
        self._call.text = module
        self._call.launches.append((kernel.symbol, grid, kernel.block, sizes, buffers))

    def read(self, buffer: int, array: np.ndarray) -> None:
        if self._call.launches:
            self._run()
        data = self._call.arrays[buffer][: array.nbytes]
        array[...] = data.view(array.dtype).reshape(array.shape)

    def _run(self) -> None:
        from runtime.toolchain import run_command

        folder = Path(mkdtemp(dir=self.folder))
        (folder / "call").write_bytes(pickle.dumps(self._call))
        simulator = ("oclgrind", "--data-races", "--uninitialized", "--log", str(folder / "log"))
        child = (sys.executable, __file__, str(folder / "call"), str(folder / "results"))
        done = run_command((*simulator, *child), None, 120.0)
        said = (folder / "log").read_text().split("\n\n") if (folder / "log").exists() else []
        self.reports += [part.strip().splitlines()[0] for part in said if part.strip()]
        if done.code != 0:
            self.reports.append(f"code {done.code}: {done.errors[-500:]}")
        else:
            self._call = Call("", pickle.loads((folder / "results").read_bytes()))


@functools.cache
def why_not() -> str:
    """Why nothing runs in oclgrind here; "" if it does."""
    if not shutil.which("oclgrind"):
        return "oclgrind is not installed; it is a package of Debian"
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl is not installed: pip install 'farkas[opencl]'"
    return ""


def main(request: str, results: str) -> None:
    """What the child does."""
    import pyopencl as cl

    call = pickle.loads(Path(request).read_bytes())
    (platform,) = (p for p in cl.get_platforms() if p.name == "Oclgrind")
    context = cl.Context(platform.get_devices())
    queue = cl.CommandQueue(context)
    # Optimised code may have instructions that the check for values nobody wrote does not know.
    program = cl.Program(context, call.text).build(["-cl-opt-disable"])
    buffers = [cl.Buffer(context, cl.mem_flags.READ_WRITE, a.nbytes) for a in call.arrays]
    for n in call.given:
        cl.enqueue_copy(queue, buffers[n], call.arrays[n])
    for symbol, grid, block, sizes, numbers in call.launches:
        total = tuple(g * b for g, b in zip(grid, block, strict=True))
        arguments = [*map(np.int64, sizes), *(buffers[n] for n in numbers)]
        getattr(program, symbol)(queue, total, block, *arguments)
    for array, buffer in zip(call.arrays, buffers, strict=True):
        cl.enqueue_copy(queue, array, buffer)
    queue.finish()
    Path(results).write_bytes(pickle.dumps(call.arrays))


if __name__ == "__main__":
    sys.modules["tests.gpu.oclgrind"] = sys.modules["__main__"]  # where `Call` comes from
    main(*sys.argv[1:])
