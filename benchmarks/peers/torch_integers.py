"""PyTorch's products and convolutions of uint8 by int8, which are oneDNN's."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.convolution import Convolution
from benchmarks.kernel import Kernel
from benchmarks.peers.base import Peer, Prepared
from benchmarks.task import Task


class TorchIntegers(Peer):
    """``torch._int_mm`` for two matrices; oneDNN's linear and convolution with packed weights.

    The latter give float32, of the same integers.
    """

    name = "torch-int8"
    modules = ("torch",)
    package = "torch"

    def suits(self, task: Task) -> bool:
        if task.element != "int8" or task.wide is None or task.wide.kernel is None:
            return False
        return _kind(task.wide.kernel) != ""

    def prepare(self, task: Task, threads: int) -> Prepared:
        torch = importlib.import_module("torch")
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        assert task.wide is not None and task.wide.kernel is not None and task.arrays is not None
        arrays = {n: torch.from_numpy(a) for n, a in task.arrays.items()}
        call = _calls(torch, task.wide.kernel, arrays)
        return Prepared(call, lambda result: [result.contiguous().numpy()])


def _kind(kernel: Kernel) -> str:
    """``product``, ``linear`` or ``convolution``, as far as torch has it in int8."""
    if isinstance(kernel, Convolution):
        return "convolution" if len(kernel.size) == 2 else ""
    shapes = [*kernel.inputs.values(), *kernel.weights.values()]
    if [n.op_type for n in kernel.nodes()] != ["MatMul"] or any(len(s) != 2 for s in shapes):
        return ""
    return "linear" if kernel.weights else "product"


def _calls(torch: Any, kernel: Kernel, arrays: dict[str, Any]) -> Callable[[], Any]:
    """The call of a kernel, its weights packed."""
    kind, ops, floats = _kind(kernel), torch.ops.onednn, torch.float32
    if kind == "product":
        a, b = arrays.values()
        return lambda: torch._int_mm(a, b)
    x, scale = arrays["X"], torch.ones(1)
    zero = torch.zeros(1, dtype=torch.int64)
    if kind == "linear":
        packed = ops.qlinear_prepack(arrays["W"].t().contiguous(), list(x.shape))
        return lambda: ops.qlinear_pointwise(
            x, 1.0, 0, packed, scale, zero, None, 1.0, 0, floats, "none", [], ""
        )
    assert isinstance(kernel, Convolution)
    x = x.contiguous(memory_format=torch.channels_last)
    shape = (list(kernel.stride), list(kernel.padding), list(kernel.dilation), kernel.groups)
    scales, zeros = (t.expand(kernel.filters).contiguous() for t in (scale, zero))
    packed = ops.qconv_prepack(arrays["F"], scales, 1.0, 0, *shape, list(x.shape))
    bias = arrays["B"].float()
    return lambda: ops.qconv2d_pointwise(
        x, 1.0, 0, packed, scales, zeros, bias, *shape, 1.0, 0, floats, "none", [], ""
    )
