"""Programs on a GPU: arrays there and back, and the launches in between.

What a device can do is a `Device`; there is one for each way to reach it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from codegen.gpu import GpuKernel, GpuSource
from codegen.loopir import Block, For, If, Instance, LoopNode
from poly.errors import ToolchainError
from poly.expr import evaluate_int
from poly.program import Program
from runtime.arguments import Array, allocate, bind, check_input, match_arguments

#: Blocks that a grid may have in x, y and z.
MOST_BLOCKS = (2**31 - 1, 65535, 65535)


class Device(Protocol):
    """Where kernels run.

    A buffer is whatever the device says it is.  Launches run in the order in which they are given.
    """

    #: The dialect that it takes.
    dialect: str

    def build(self, source: GpuSource) -> Any:
        """A module of compiled kernels.  Raises `ToolchainError` with the compiler's words."""

    def empty(self, count: int) -> Any:
        """A buffer of so many bytes.  Raises `ArgumentError` where there is no room for it."""

    def write(self, buffer: Any, array: Array) -> None:
        """Copy a C-contiguous array to a buffer."""

    def read(self, buffer: Any, array: Array) -> None:
        """Copy a buffer to a C-contiguous array, when all launches have ended."""

    def launch(
        self,
        module: Any,
        kernel: GpuKernel,
        grid: tuple[int, int, int],
        sizes: Sequence[int],
        buffers: Sequence[Any],
    ) -> None:
        """Start a kernel."""


class GpuProgram:
    """A compiled program that is called with numpy arrays, on a device."""

    def __init__(self, source: GpuSource, device: Device) -> None:
        self.source, self.device = source, device
        self.program: Program = source.program
        self._module = device.build(source)

    def __call__(self, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run the program.

        Raises
        ------
        ArgumentError : anything that does not fit the program's declaration, or the device.
        """
        program, device = self.program, self.device
        given, asked = match_arguments(program, arrays, named)
        inputs = {t.name: check_input(t, given[t.name]) for t in program.inputs}
        binding = bind(program, {n: a.shape for n, a in inputs.items()}, asked)
        buffers: dict[str, Any] = {}
        for t in (*program.inputs, *program.outputs, *self.source.workspace):
            if t.name not in buffers:
                count = t.dtype.bytes * int(np.prod(binding.shapes[t.name], dtype=np.int64))
                buffers[t.name] = device.empty(max(count, 1))
        for name, array in inputs.items():
            device.write(buffers[name], array)
        for kernel, grid, env in launches_of(self.source, binding.sizes):
            device.launch(
                self._module, kernel, grid, [env[s] for s in kernel.sizes],
                [buffers[name] for name in kernel.tensors],
            )  # fmt: skip
        results = []
        for t in program.outputs:
            result = allocate(t, binding.shapes[t.name])
            device.read(buffers[t.name], result)
            results.append(result)
        return results[0] if len(results) == 1 else tuple(results)


def launches_of(
    source: GpuSource, sizes: Mapping[str, int]
) -> Iterator[tuple[GpuKernel, tuple[int, int, int], dict[str, int]]]:
    """The launches of a call in order: kernel, grid, and values of its sizes and host loops.

    Raises
    ------
    ToolchainError : a grid has more blocks than a GPU takes.
    """
    sizes = source.all_sizes(sizes)
    for number, places in _instances(source.host, dict(sizes)):
        kernel = source.kernels[number]
        env = {**sizes, **dict(zip(kernel.hosts, places, strict=True))}
        extents = [evaluate_int(e, env) for e in kernel.grid]
        if min(extents, default=1) < 1:
            continue
        x, y, z = (*extents, 1, 1, 1)[:3]
        for extent, most, axis in zip((x, y, z), MOST_BLOCKS, "xyz", strict=True):
            if extent > most:
                raise ToolchainError(
                    f"{kernel.symbol} would have {extent} blocks in {axis}, over {most}; use "
                    "larger tiles, or another order of the loops on blocks"
                )
        yield kernel, (x, y, z), env


def _instances(node: LoopNode, env: dict[str, int]) -> Iterator[tuple[int, list[int]]]:
    """The launches that host code starts: number, and values of the host's loops."""
    if isinstance(node, Block):
        for child in node.children:
            yield from _instances(child, env)
    elif isinstance(node, For):
        lower, upper = evaluate_int(node.lower, env), evaluate_int(node.upper, env)
        for value in range(lower, upper, node.step):
            yield from _instances(node.body, {**env, node.var: value})
    elif isinstance(node, If):
        if evaluate_int(node.cond, env):
            yield from _instances(node.then, env)
        elif node.other is not None:
            yield from _instances(node.other, env)
    else:
        assert isinstance(node, Instance)
        number = int(node.statement.removeprefix("launch"))
        yield number, [evaluate_int(e, env) for e in node.args]
