"""`Target`: a machine, the pipeline that compiles for it, and what runs the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from frontends.onnx import Routines
from poly.errors import ArgumentError
from runtime.common.arguments import Span, check_output, span_of

if TYPE_CHECKING:
    from codegen.loops.nodes import LoopNode
    from codegen.pipeline import Generated, Pipeline
    from poly.ir.graph import Graph
    from poly.ir.program import Program, Tensor
    from poly.machine.cpu import Machine
    from poly.machine.gpu import GpuMachine
    from poly.schedule.schedule import Schedule
    from runtime.common.compile_report import Progress
    from runtime.cpu.loaded_kernel import LoadedKernel
    from runtime.gpu.device import Device
    from runtime.gpu.gpu_program import GpuProgram
    from runtime.network.compiled_graph import CompiledGraph
    from runtime.tuned.record_file import TunedSchedules

Array = np.ndarray


class Runner(ABC):
    """Compiles generated text and runs it.  Each kind of device overrides these hooks."""

    #: Whether whole networks are kept in the cache, and found by the content of their files.
    recalls: ClassVar[bool] = False
    #: The value of `threads` for a single thread; None where calls have no such number.
    one_thread: ClassVar[int | None] = None
    #: Whether there is a roofline to compare times with.
    has_roofline: ClassVar[bool] = False
    #: Which operators without comprehensions are routines of a graph there.
    routines: ClassVar[Routines] = Routines.NONE
    #: The default number of threads of a call; None: all, or no such number.
    threads: int | None = None
    #: Calls are timed in groups of so many seconds: several times what `wait` takes.
    sample: ClassVar[float] = 1e-4
    #: The C compiler, as ``cc=`` takes it; None where there is none.
    cc: str | None = None

    @abstractmethod
    def load(self, source: Any) -> LoadedKernel | GpuProgram:
        """The function made from a text."""

    @abstractmethod
    def compile(self, graph: Graph, progress: Progress | None = None) -> CompiledGraph:
        """A graph of fixed or open sizes, compiled."""

    @abstractmethod
    def check_call(self, threads: int | None, stream: Any) -> None:
        """Refuse threads or a stream that a call cannot have; None is always accepted.

        Raises
        ------
        ArgumentError : an invalid number, or one that the device does not support.
        """

    def build(self, source: Any, limit: float) -> None:
        """Compile a text before `load` does, where that needs no device.

        limit : seconds that the compiler may take

        Raises
        ------
        ToolchainError : the compiler failed, or took longer.
        CacheError : the result cannot be stored.
        """
        return

    def wait(self) -> None:
        """Return when all calls are done."""
        return

    def repeated(
        self, function: LoadedKernel | GpuProgram, given: Mapping[str, Any], out: Any
    ) -> Callable[[int], None]:
        """Call a function as often as it is told, with arrays that `sent` made; for timing."""

        def run(count: int) -> None:
            for _ in range(count):
                function(**given, out=out)

        return run

    @property
    def tuned(self) -> TunedSchedules | None:
        """The schedules that were tuned where it runs; None where nothing can be timed."""
        return None

    def prepare(self) -> None:
        """Begin, in the background, to make ready what all kernels need."""
        return

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the device, as ``target=`` takes it."""

    @property
    def where(self) -> str:
        """A readable name of the device; "" for this machine's processor."""
        return ""

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Element type and shape of an array; None if the runner does not accept it."""
        if isinstance(value, (np.ndarray, np.generic)):
            return value.dtype, value.shape
        return None

    def holds(self, value: Any) -> bool:
        """Whether an array is on a device."""
        return False

    def held(self, values: Mapping[str, Any]) -> set[str]:
        """The names of arrays that are on a device."""
        return {name for name, value in values.items() if self.holds(value)}

    def on_host(self, values: Mapping[str, Any], stream: Any = None) -> dict[str, Any]:
        """Arrays on the host; those on a device are copied, after the work on a stream."""
        return dict(values)

    def sent(self, values: Mapping[str, Array], stream: Any = None) -> dict[str, Any]:
        """Arrays copied to the device, if there is one."""
        return dict(values)

    def spans(self, values: Mapping[str, Any], stream: Any = None) -> dict[str, Span]:
        """The memory that arrays use, except those that are copied or refused anyway."""
        plain = {n: a for n, a in values.items() if isinstance(a, np.ndarray)}
        return {n: span_of(a) for n, a in plain.items() if a.flags.c_contiguous}

    def fill(
        self,
        out: Mapping[str, Any],
        results: Mapping[str, Array],
        tensors: Mapping[str, Tensor],
        stream: Any = None,
    ) -> dict[str, Any]:
        """Copy results into the arrays that were given for them; all of these match, or none is
        written.

        tensors : the declaration of each result

        Raises
        ------
        ArgumentError : an array does not match its result.
        """
        arrays = {n: check_output(tensors[n], a, results[n].shape) for n, a in out.items()}
        for name, array in arrays.items():
            array[...] = results[name]
        return dict(out)


class NoRunner(Runner):
    """For a target that only generates text."""

    name = ""

    def load(self, source: Any) -> LoadedKernel | GpuProgram:
        raise ArgumentError("the target only generates text, nothing runs on it")

    def compile(self, graph: Graph, progress: Progress | None = None) -> CompiledGraph:
        raise ArgumentError("the target only generates text, nothing runs on it")

    def check_call(self, threads: int | None, stream: Any) -> None:
        raise ArgumentError("the target only generates text, nothing runs on it")


@dataclass(frozen=True)
class Target:
    """Where kernels run, and how they are compiled for it.

    machine : the properties that schedules depend on
    name : of its pipeline
    runner : compiles the text and calls it
    """

    machine: Machine | GpuMachine
    name: str
    runner: Runner

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.machine, self.name, self.runner)

    @property
    def pipeline(self) -> Pipeline[Any, Any]:
        """Rewrites, tactics, loop passes and printer; loaded when they are first needed."""
        from codegen.pipeline import PIPELINES

        return PIPELINES[self.name]

    @property
    def device(self) -> Device:
        """The device of a GPU.  Raises `ArgumentError` for other targets."""
        found: Device | None = getattr(self.runner, "device", None)
        if found is None:
            raise ArgumentError(f"target {self.name!r} has no device")
        return found

    @property
    def language(self) -> str:
        """The name of its language in pictures."""
        return self.pipeline.language

    def prepare(self, program: Program, exact: bool = False) -> Program:
        """Rewrite a user's program to the one that has the automatic schedule."""
        return self.pipeline.prepare(program, self.machine, exact)

    def automatic(
        self, program: Program, exact: bool = False, tuned: bool = False
    ) -> Generated[Any]:
        """The automatic schedule of a program, and its text.

        tuned : the schedule that was tuned for it here instead, if there is one
        """
        found = self.runner.tuned if tuned else None
        script = None if found is None else found.script
        return self.pipeline.automatic(program, self.machine, exact, script)

    def loops(self, schedule: Schedule) -> tuple[LoopNode, ...]:
        """The loops of each function or kernel of a schedule, as they are printed."""
        return self.pipeline.loops(schedule)

    def emit(self, schedule: Schedule, program: Program) -> Any:
        """The text of a schedule of a program, or of what `prepare` makes of it."""
        return self.pipeline.emit(schedule, program)


def _restored(machine: Machine | GpuMachine, name: str, runner: Runner) -> Target:
    """An unpickled target; it runs on the present machine."""
    device = getattr(runner, "device", None)
    if device is not None:
        machine = device.machine
    elif not isinstance(runner, NoRunner):
        from poly.machine.cpu import host_machine

        machine = host_machine()
    return Target(machine, name, runner)
