"""`StagedDeviceModel`: a network on a GPU whose shapes are found when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farkas.device_target import DeviceTarget
from farkas.staged import StagedModel, check_is_array
from poly.expr import Const
from poly.program import Tensor
from poly.sizes import by_name
from runtime.arguments import check_names
from runtime.gpu_device import Device
from runtime.gpu_model import GpuModel
from runtime.gpu_operands import output_operand
from runtime.profile import Timing


class StagedDeviceModel(StagedModel):
    """A function of named arrays, of numpy or on the device, compiled for the shapes that come.

    Arrays on the device are used as they are where one stage is the whole model, and compiled for
    their shapes already; else they are copied to the host, as are values between stages.
    """

    @property
    def device(self) -> Device:
        """Where it runs."""
        assert isinstance(self.origin.target, DeviceTarget)
        return self.origin.target.device

    def run(
        self,
        inputs: Mapping[str, Any],
        threads: int | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Run the model, as `StagedModel.run`.

        If all inputs lie on the device, so do outputs that are not given.

        out, stream : see `runtime.gpu_model.GpuModel.run`

        Raises
        ------
        ArgumentError : as of `StagedModel.run`; `threads`.
        """
        device = self.device
        self.origin.target.check_threads(threads)
        inputs = by_name("inputs", inputs)
        here = {n for n, v in inputs.items() if device.holds(v)}
        given = {n: v for n, v in by_name("outputs", out).items() if v is not None}
        check_names("output", given, [p.name for p in self.outputs])
        there = {n for n, v in given.items() if device.holds(v)}
        ready = self._ready(inputs, here)
        if ready is not None:
            return ready.run(inputs, out=given, stream=stream)
        on = device.stream(stream)
        fetched = self.origin.target.on_host(inputs, on)
        hosted = {n: v for n, v in given.items() if n not in there}
        results: dict[str, Any] = super().run(fetched, out=hosted)
        stay = bool(inputs) and len(here) == len(inputs)
        for name, array in results.items():
            if name in there:
                self._write(name, given[name], array, on)
                results[name] = given[name]
            elif stay and name not in given and isinstance(array, np.ndarray):
                results[name] = device.put(array, on) if not array.dtype.hasobject else array
        return results

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        return super().profile(self.origin.target.on_host(by_name("inputs", inputs)), repeat)

    def _ready(self, inputs: Mapping[str, Any], here: set[str]) -> GpuModel | None:
        """What is compiled for arrays of these shapes, if it is the whole model."""
        if not here or self._start.demanded or inputs.keys() != self._types.keys():
            return None
        values = {}
        for name, value in inputs.items():
            found = self.origin.target.describe(name, value)
            if found is None:
                return None
            # Of which only type and shape are asked for, and which takes no memory.
            values[name] = np.broadcast_to(np.zeros((), found[0]), found[1])
        with self._lock:
            variant = self._start.find(values)
        if variant is None or not variant.stage.is_whole:
            return None
        return variant.model if isinstance(variant.model, GpuModel) else None

    def _write(self, name: str, value: Any, array: np.ndarray, stream: Any) -> None:
        """Copy a result to an array on the device."""
        check_is_array(name, array)
        dtype = next(p.dtype for p in self.outputs if p.name == name)
        tensor = Tensor(name, dtype, tuple(map(Const, array.shape)))
        operand = output_operand(self.device, tensor, value, array.shape, stream)
        self.device.write(operand.handle, np.ascontiguousarray(array), stream)
        self.device.wait(stream)
