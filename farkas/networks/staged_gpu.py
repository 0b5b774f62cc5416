"""`StagedDeviceModel`: a network on a GPU whose shapes are found when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from farkas.networks.staged import StagedModel, output_tensor, spans_of
from poly.ir.size_values import by_name
from runtime.common.arguments import Array, Span, check_names, check_output, check_spans
from runtime.gpu.device import Device, Operand
from runtime.gpu.operands import output_operand, span_on
from runtime.network.gpu_model import GpuModel
from runtime.network.profile import Timing


class StagedDeviceModel(StagedModel):
    """A function of named arrays, of numpy or on the device, compiled for the shapes that come.

    Arrays on the device are used as they are where one stage is the whole model, and compiled for
    their shapes already; else they are copied to the host, as are values between stages.
    """

    @property
    def device(self) -> Device:
        """Where it runs."""
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

        out, stream : see `runtime.network.gpu_model.GpuModel.run`

        Raises
        ------
        ArgumentError : as of `StagedModel.run`; `threads`.
        """
        device = self.device
        self.origin.target.runner.check_threads(threads)
        inputs = by_name("inputs", inputs)
        here = {n for n, v in inputs.items() if device.holds(v)}
        given = {n: v for n, v in by_name("outputs", out).items() if v is not None}
        check_names("output", given, [p.name for p in self.outputs])
        ready = self._ready(inputs, here)
        if ready is not None:
            return ready.run(inputs, out=given, stream=stream)
        on = device.stream(stream)
        if given:
            check_spans((), self._spans(inputs, on), self._spans(given, on))
        results: dict[str, Any] = super().run(self.origin.target.runner.on_host(inputs, on))
        stay = bool(inputs) and len(here) == len(inputs)
        for name, array in results.items():
            if stay and name not in given and isinstance(array, np.ndarray):
                results[name] = device.put(array, on) if not array.dtype.hasobject else array
        return results | self._handed_out(results, given, on) if given else results

    def profile(self, inputs: Mapping[str, Any], repeat: int = 5) -> tuple[Timing, ...]:
        return super().profile(self.origin.target.runner.on_host(by_name("inputs", inputs)), repeat)

    def _ready(self, inputs: Mapping[str, Any], here: set[str]) -> GpuModel | None:
        """What is compiled for arrays of these shapes, if it is the whole model."""
        if not here or self._start.demanded or inputs.keys() != self._types.keys():
            return None
        values = {}
        for name, value in inputs.items():
            found = self.origin.target.runner.describe(name, value)
            if found is None:
                return None
            # Of which only type and shape are asked for, and which takes no memory.
            values[name] = np.broadcast_to(np.zeros((), found[0]), found[1])
        with self._lock:
            variant = self._start.find(values)
        if variant is None or not variant.stage.is_whole:
            return None
        return variant.model if isinstance(variant.model, GpuModel) else None

    def _spans(self, arrays: Mapping[str, Any], stream: Any) -> dict[str, Span]:
        """What arrays take of the host's memory, or of the device's."""
        device = self.device
        there = {n: device.operand(n, a, stream) for n, a in arrays.items() if device.holds(a)}
        return spans_of(arrays) | {n: span_on(device, a) for n, a in there.items()}

    def _handed_out(
        self, results: Mapping[str, Array], out: Mapping[str, Any], stream: Any
    ) -> dict[str, Any]:
        """The arrays that were given, with the results; all of them fit, or none is written."""
        places: dict[str, Array | Operand] = {}
        for name, value in out.items():
            tensor, shape = output_tensor(name, results[name]), results[name].shape
            if self.device.holds(value):
                places[name] = output_operand(self.device, tensor, value, shape, stream)
            else:
                places[name] = check_output(tensor, value, shape)
        for name, place in places.items():
            if isinstance(place, Operand):
                self.device.write(place.handle, np.ascontiguousarray(results[name]), stream)
            else:
                place[...] = results[name]
        self.device.wait(stream)
        return dict(out)
