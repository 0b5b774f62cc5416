"""`CompiledGraph`: a graph that can be run; `CpuModel` and `GpuModel` are the two kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poly.errors import ArgumentError
from poly.ir.graph import Call, Graph, Routine
from poly.ir.port import Port
from runtime.common.arguments import Shape
from runtime.common.compile_report import CompileReport
from runtime.network.bind_sizes import size_axes
from runtime.network.profile import Timing

if TYPE_CHECKING:
    from codegen.gpu.emit import GpuKernel
    from runtime.gpu.gpu_program import Grid


class CompiledGraph(ABC):
    """A graph of fixed or open sizes, compiled and loaded.

    Concurrent runs from several threads take turns: they share memory.

    graph : as compiled; nodes : the calls and routines that a run makes, in order
    inputs, outputs : with their names in the model
    threads : the default number for a run; None if it has no such number
    """

    report: CompileReport
    threads: int | None

    def __init__(self, graph: Graph, nodes: Sequence[Call | Routine], threads: int | None) -> None:
        self.graph, self.nodes, self.threads = graph, tuple(nodes), threads
        self.calls = tuple(n for n in nodes if isinstance(n, Call))
        self.inputs: tuple[Port, ...] = tuple(map(graph.port, graph.inputs))
        self.outputs: tuple[Port, ...] = tuple(map(graph.port, graph.outputs))
        self.input_names = tuple(port.name for port in self.inputs)
        self.output_names = tuple(port.name for port in self.outputs)
        self._axes = size_axes(graph)

    def _sizes(self, shapes: Sequence[Shape]) -> tuple[int, ...]:
        """The sizes that follow from the shapes of the inputs, in order."""
        return tuple(shapes[position][axis] for position, axis in self._axes)

    def _check_shapes(self, shapes: Sequence[Shape], planned: Mapping[str, Shape]) -> None:
        """Refuse shapes of the inputs, in order, other than planned; raises `ArgumentError`."""
        for value, shape in zip(self.graph.inputs, shapes, strict=True):
            if shape != planned[value]:
                name = self.graph.label(value)
                raise ArgumentError(f"{name} has shape {shape}, not {planned[value]}")

    @property
    @abstractmethod
    def source(self) -> dict[str, str]:
        """The generated text: on a CPU by file, on a GPU by the symbol of the first kernel."""

    @property
    @abstractmethod
    def schedules(self) -> dict[str, str]:
        """The schedule script of each program, by the symbol of its (first) kernel."""

    @property
    @abstractmethod
    def fallbacks(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """For programs whose first schedules could not be generated, these and why, by symbol."""

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Run the graph: arrays by input name in, arrays by output name out, in the graph's order.

        Parameters
        ----------
        out : arrays to write to, for some or all outputs by name
        stream : the stream to run on, on a GPU

        Raises
        ------
        ArgumentError : an input is missing, unknown, or of another dtype or shape; an array of
            `out` does not match the output, or shares memory with another one; `threads` on a GPU,
            `stream` on a CPU.
        ModelError : elements of an input that a routine cannot use, such as an index.
        """

    def run_again(
        self, inputs: Mapping[str, Any], threads: Any = None, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """A run whose arrays match those of an earlier one; None leaves it to `run`."""
        return None

    @abstractmethod
    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each call, one after the other."""

    @abstractmethod
    def launches(self) -> Mapping[str, Sequence[tuple[GpuKernel, Grid]]]:
        """The kernels that each call launches, by the call's name; empty if sizes are open, or on a
        CPU, where a call is one function.
        """
