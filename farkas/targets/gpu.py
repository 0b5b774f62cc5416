"""A GPU, or what stands for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farkas.targets.base import Runner
from runtime.common.cache import Cache

if TYPE_CHECKING:
    from codegen.gpu.emit import GpuSource
    from poly.ir.graph import Graph
    from runtime.common.compile_report import Progress
    from runtime.gpu.device import Device
    from runtime.gpu.gpu_program import GpuProgram
    from runtime.network.gpu_model import GpuModel


@dataclass(frozen=True)
class DeviceRunner(Runner):
    """A device, and where the texts of its kernels are kept."""

    device: Device
    cache: Cache

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.device.name, self.cache)

    def load(self, source: GpuSource) -> GpuProgram:
        from runtime.gpu.gpu_program import GpuProgram

        return GpuProgram(source, self.device)

    def compile(
        self, graph: Graph, progress: Progress | None = None, kind: type[GpuModel] | None = None
    ) -> GpuModel:
        from runtime.network.compile_gpu import compile_on_device
        from runtime.network.gpu_model import GpuModel

        return compile_on_device(
            graph,
            device=self.device,
            cache=self.cache,
            progress=progress,
            kind=kind or GpuModel,
        )

    def check_threads(self, threads: int | None) -> None:
        self.device.check_threads(threads)

    def describe(self, name: str, value: Any) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        if self.device.holds(value):
            return self.device.describe(name, value)
        return super().describe(name, value)

    def on_host(self, values: Mapping[str, Any], stream: Any = None) -> dict[str, Any]:
        device = self.device
        on = device.stream(stream)
        return {n: device.fetch(n, v, on) if device.holds(v) else v for n, v in values.items()}


def _restored(name: str, cache: Cache) -> DeviceRunner:
    """A runner that was pickled, on the device of its name.  Raises as `find_device`."""
    from runtime.find_device import find_device

    return DeviceRunner(find_device(name, cache), cache)
