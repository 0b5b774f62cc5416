"""`DeviceModel`: a compiled ONNX model of fixed shapes on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farkas.networks.base import Network
from runtime.network.gpu_model import GpuModel

if TYPE_CHECKING:
    from farkas.views.page import View
    from poly.ir.graph import Graph


class DeviceModel(GpuModel, Network):
    """A network of fixed shapes on a GPU; see `runtime.network.gpu_model.GpuModel`."""

    @property
    def graphs(self) -> tuple[Graph, ...]:
        return (self.graph,)

    def explain(self, run: bool = True) -> View:
        """What was fused and what that saves, what was not and why, and what each kernel is.

        run : time the calls, with made-up inputs
        """
        from farkas.views.explain import explain_on_device

        return explain_on_device(self, run)
