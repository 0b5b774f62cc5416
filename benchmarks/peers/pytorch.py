"""PyTorch: eager, eager in channels_last, and compiled by inductor."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from benchmarks.kernel import Array, Product
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
        return task.is_translated and task.element != "int8"

    def prepare(self, task: Task, threads: int) -> Prepared:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        element = task.element
        task = task.wide or task
        module = torch_module(read_network(task.path), self.channels_last)
        inputs = [torch.from_numpy(array) for array in task.inputs.values()]
        if element != "float32":
            module = module.to(getattr(torch, element))
            inputs = [x.to(getattr(torch, element)) for x in inputs]
        if self.channels_last:
            inputs = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
        call = self.compiled(torch, module, inputs)
        return Prepared(
            lambda: call(*inputs),
            lambda results: [_shown(torch, r.contiguous()) for r in results],
        )

    def compiled(self, torch: Any, module: Any, inputs: list[Any]) -> Any:
        """The function to call."""
        return module.forward


def _shown(torch: Any, result: Any) -> Array:
    """A tensor as an array; numpy has no bfloat16."""
    return np.asarray((result.float() if result.dtype == torch.bfloat16 else result).numpy())


class TorchChannelsLast(TorchEager):
    """Images and filters with their channels innermost; only for networks with images."""

    name = "torch-cl"
    channels_last = True

    def suits(self, task: Task) -> bool:
        if isinstance(
            task.kernel and (task.kernel.wide or task.kernel), Product
        ) or not super().suits(task):
            return False
        return all(array.ndim == 4 for array in task.inputs.values())


class TorchInductor(TorchEager):
    """``torch.compile`` with frozen weights."""

    name = "inductor"
    is_slow = True
    mode = "default"

    def load(self) -> None:
        super().load()
        importlib.import_module("torch._inductor.config")
        importlib.import_module("torch._dynamo")

    def compiled(self, torch: Any, module: Any, inputs: list[Any]) -> Any:
        torch._inductor.config.freezing = True
        call = torch.compile(module, fullgraph=True, dynamic=False, mode=self.mode)
        call(*inputs)
        return call


class TorchMaxAutotune(TorchInductor):
    """``torch.compile`` that measures variants of its own products beside the library's."""

    name = "max-autotune"
    tunes = True
    mode = "max-autotune"
