"""A GPU, or an emulator of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from farkas.targets.base import Runner
from runtime.common.cache import Cache

if TYPE_CHECKING:
    from codegen.gpu.emit import GpuSource
    from poly.ir.graph import Graph
    from poly.ir.program import Tensor
    from runtime.common.arguments import Span
    from runtime.common.compile_report import Progress
    from runtime.cpu.loaded_kernel import LoadedKernel
    from runtime.gpu.device import Device
    from runtime.gpu.gpu_program import GpuProgram
    from runtime.network.gpu_model import GpuModel
    from runtime.tuned.record_file import TunedSchedules

Array = np.ndarray


@dataclass(frozen=True)
class DeviceRunner(Runner):
    """A device, and the cache for the texts of its kernels."""

    device: Device
    cache: Cache
    sample: ClassVar[float] = 2e-3

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.device.name, self.cache)

    def load(self, source: GpuSource) -> GpuProgram:
        from runtime.gpu.gpu_program import GpuProgram

        return GpuProgram(source, self.device)

    def build(self, source: GpuSource, limit: float) -> None:
        """Compile a text, without a limit: NVRTC runs in this process, where nothing can end it."""
        self.device.compile(source)

    def repeated(
        self, function: LoadedKernel | GpuProgram, given: Mapping[str, Any], out: Any
    ) -> Callable[[int], None]:
        return cast("GpuProgram", function).repeated(given, out)

    def compile(self, graph: Graph, progress: Progress | None = None) -> GpuModel:
        from runtime.network.compile_gpu import compile_on_device

        return compile_on_device(graph, device=self.device, cache=self.cache, progress=progress)

    def wait(self) -> None:
        self.device.wait(self.device.default_stream)

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def tuned(self) -> TunedSchedules | None:
        return self.device.tuned(self.cache)

    def check_call(self, threads: int | None, stream: Any) -> None:
        self.device.check_threads(threads)
        self.device.stream(stream)

    @property
    def where(self) -> str:
        return f"on {self.device.name} ({self.device.machine})"

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        if self.device.holds(value):
            return self.device.describe(name, value)
        return super().describe(name, value)

    def on_host(self, values: Mapping[str, Any], stream: Any = None) -> dict[str, Any]:
        device = self.device
        on = device.stream(stream)
        return {n: device.fetch(n, v, on) if device.holds(v) else v for n, v in values.items()}

    def holds(self, value: Any) -> bool:
        return self.device.holds(value)

    def sent(self, values: Mapping[str, Array], stream: Any = None) -> dict[str, Any]:
        device, on = self.device, self.device.stream(stream)
        return {n: device.put(v, on) if _is_numeric(v) else v for n, v in values.items()}

    def spans(self, values: Mapping[str, Any], stream: Any = None) -> dict[str, Span]:
        from runtime.gpu.operands import span_on

        device, on = self.device, self.device.stream(stream)
        there = {n: device.operand(n, values[n], on) for n in values if device.holds(values[n])}
        found = super().spans(values) | {n: span_on(device, a) for n, a in there.items()}
        return {n: found[n] for n in values if n in found}

    def fill(
        self,
        out: Mapping[str, Any],
        results: Mapping[str, Array],
        tensors: Mapping[str, Tensor],
        stream: Any = None,
    ) -> dict[str, Any]:
        from runtime.gpu.operands import output_operand

        device, on, there = self.device, self.device.stream(stream), self.held(out)
        operands = {
            n: output_operand(device, tensors[n], a, results[n].shape, on)
            for n, a in out.items()
            if n in there
        }
        super().fill({n: a for n, a in out.items() if n not in there}, results, tensors)
        for name, operand in operands.items():
            device.write(operand.handle, np.ascontiguousarray(results[name]), on)
        device.wait(on)
        return dict(out)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.dtype.hasobject


def _restored(name: str, cache: Cache) -> DeviceRunner:
    """An unpickled runner, on the device of its name.  Raises as `find_device` does."""
    from runtime.find_device import find_device

    return DeviceRunner(find_device(name, cache), cache)
