"""`Executable`: runs a network, compiled as a whole or (`Stages`) stage by stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from poly.errors import ArgumentError
from poly.ir.intervals import MOST_BYTES
from poly.ir.port import Port
from runtime.common.compile_report import CompileReport
from runtime.network.profile import Timing

if TYPE_CHECKING:
    from frontends.onnx import Source
    from runtime.network.compiled_graph import CompiledGraph


@dataclass(frozen=True, eq=False)
class Parts:
    """What a file of `Network.save` has.

    made : the name of the graph that is all of it, or the record of its stages; models : its graphs
    by name; others : graphs of stages that are imported again, since operators of them run as numpy
    open : reads the model again, which is needed in the file; None if it is not
    """

    made: Any
    models: Mapping[str, CompiledGraph]
    others: tuple[CompiledGraph, ...] = ()
    open: Callable[[], Source] | None = None


class Executable(ABC):
    """Arrays by name in, arrays by name out; see `Network` for `run`, `profile` and the rest."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    threads: int | None

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Run it once."""

    @abstractmethod
    def run_again(
        self, inputs: Mapping[str, Any], threads: Any = None, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """A run whose arrays match those of an earlier one; None leaves it to `run`."""

    def prepare(self, shapes: Mapping[str, Sequence[int] | int]) -> None:
        """See `Network.prepare`; what is compiled for fixed sizes is ready."""
        check_prepared(self.inputs, shapes)

    @abstractmethod
    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        """Median seconds of each compiled call."""

    @abstractmethod
    def parts(self) -> Parts:
        """What is compiled so far, to be saved.  Variants that are in the cache are loaded."""

    @property
    @abstractmethod
    def compiled(self) -> tuple[CompiledGraph, ...]:
        """The graphs compiled so far."""

    @property
    @abstractmethod
    def report(self) -> CompileReport:
        """What compiling has taken and produced so far."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """For each of these graphs, the conditions on sizes under which it is used again."""
        return ("fixed sizes",)

    @property
    def opaque_operators(self) -> tuple[str, ...]:
        """The operators run as numpy so far, each once."""
        return ()


def check_prepared(
    inputs: Sequence[Port], shapes: Mapping[str, Sequence[int] | int]
) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs for given sizes.

    Raises
    ------
    ArgumentError : sizes that are missing, unknown, or do not match the declarations.
    """
    names = [p.name for p in inputs]
    known = {*names, *(e for p in inputs for e in p.shape or () if isinstance(e, str))}
    for name in shapes.keys() - known:
        raise ArgumentError(f"shapes names {name!r}; the inputs are {', '.join(map(str, inputs))}")
    sizes: dict[str, int] = {}
    found = {port.name: port.at(shapes) for port in inputs}
    for port in inputs:
        port.check(found[port.name], sizes)
        if any(e < 0 for e in found[port.name]):
            raise ArgumentError(f"the shape {found[port.name]} of {port} has a negative size")
        if prod(max(1, e) for e in found[port.name]) * port.dtype.bytes >= MOST_BYTES:
            raise ArgumentError(f"the shape {found[port.name]} of {port} is too large for memory")
    return found


class WholeGraph(Executable):
    """A network whose shapes are fixed: one compiled graph."""

    def __init__(self, graph: CompiledGraph) -> None:
        self.graph = graph
        self.inputs, self.outputs, self.threads = graph.inputs, graph.outputs, graph.threads

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        return self.graph.run(inputs, threads, out=out, stream=stream)

    def run_again(
        self, inputs: Mapping[str, Any], threads: Any = None, out: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        return self.graph.run_again(inputs, threads, out)

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        return self.graph.profile(inputs, repeat)

    def parts(self) -> Parts:
        return Parts("0", {"0": self.graph})

    @property
    def compiled(self) -> tuple[CompiledGraph, ...]:
        return (self.graph,)

    @property
    def report(self) -> CompileReport:
        return self.graph.report
