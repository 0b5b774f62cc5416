"""PyTorch: eager, eager in channels_last, and compiled by inductor."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.kernel import Product
from benchmarks.peers.base import Peer, Prepared
from benchmarks.task import Task
from benchmarks.translate.network import read_network
from benchmarks.translate.torch_graph import torch_module


class TorchEager(Peer):
    """The network as a straight line of torch calls (a ``torch.fx`` module)."""

    name = "torch"
    modules = ("torch",)
    package = "torch"
    channels_last = False

    def load(self) -> None:
        super().load()
        importlib.import_module("torch.fx")

    def suits(self, task: Task) -> bool:
        return task.is_translated

    def prepare(self, task: Task, threads: int) -> Prepared:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        module = torch_module(read_network(task.path), self.channels_last)
        inputs = [torch.from_numpy(array) for array in task.inputs.values()]
        if self.channels_last:
            inputs = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
        call = self.compiled(torch, module, inputs)
        return Prepared(
            lambda: call(*inputs), lambda results: [r.contiguous().numpy() for r in results]
        )

    def compiled(self, torch: Any, module: Any, inputs: list[Any]) -> Any:
        """The function to call."""
        return module.forward


class TorchChannelsLast(TorchEager):
    """Images and filters with their channels innermost; only for networks with images."""

    name = "torch-cl"
    channels_last = True

    def suits(self, task: Task) -> bool:
        if isinstance(task.kernel, Product) or not super().suits(task):
            return False
        return all(array.ndim == 4 for array in task.inputs.values())


class TorchInductor(TorchEager):
    """``torch.compile`` with frozen weights."""

    name = "inductor"

    def load(self) -> None:
        super().load()
        importlib.import_module("torch._inductor.config")
        importlib.import_module("torch._dynamo")

    def compiled(self, torch: Any, module: Any, inputs: list[Any]) -> Any:
        torch._inductor.config.freezing = True
        call = torch.compile(module, fullgraph=True, dynamic=False)
        call(*inputs)
        return call
