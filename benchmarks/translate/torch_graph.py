"""A network as a ``torch.fx`` module: a straight line of calls of torch functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.translate.network import Network, Step, UnsupportedError, pool_padding

#: torch tensors, or the proxies that record operations on them.
Value = Any


def torch_module(network: Network, channels_last: bool = False) -> Any:
    """The module; its ``forward`` takes the inputs in order and returns a tuple of outputs.

    Raises
    ------
    UnsupportedError : an unknown operator.
    """
    torch = importlib.import_module("torch")
    fx = importlib.import_module("torch.fx")
    root = torch.nn.Module()
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    values: dict[str, Value] = {}
    for number, name in enumerate(network.inputs):
        values[name] = fx.Proxy(graph.placeholder(f"x{number}"), tracer)
    for number, (name, array) in enumerate(network.constants.items()):
        tensor = torch.from_numpy(array)
        if channels_last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        root.register_buffer(f"w{number}", tensor)
        values[name] = fx.Proxy(graph.get_attr(f"w{number}"), tracer)
    emit = _Emit(torch)
    for step in network.steps:
        method: Callable[..., Value] | None = getattr(emit, step.op.lower(), None)
        if method is None:
            raise UnsupportedError(f"the operator {step.op} is not translated to torch")
        values[step.outputs[0]] = method(step, *(values.get(n) for n in step.inputs))
    views = {s.outputs[0] for s in network.steps if s.op == "Transpose"}
    results = [values[n].contiguous() if n in views else values[n] for n in network.outputs]
    graph.output(tuple(r.node for r in results))
    return fx.GraphModule(root, graph).eval()


class _Emit:
    """A method for each operator, named like it in lower case."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.f = torch.nn.functional

    # --- convolutions and products ---------------------------------------------------------

    def conv(self, step: Step, x: Value, w: Value, b: Value = None) -> Value:
        rank = len(step.shapes[1]) - 2
        before = pool_padding(step, rank)
        if any(lo != hi for lo, hi in before):
            x = self.f.pad(x, _torch_pads(before))
            before = [(0, 0)] * rank
        run = (self.f.conv1d, self.f.conv2d, self.f.conv3d)[rank - 1]
        return run(
            x, w, b,
            stride=tuple(step.get("strides", [1] * rank)),
            padding=tuple(lo for lo, _ in before),
            dilation=tuple(step.get("dilations", [1] * rank)),
            groups=step.get("group", 1),
        )  # fmt: skip

    def convtranspose(self, step: Step, x: Value, w: Value, b: Value = None) -> Value:
        rank = len(step.shapes[1]) - 2
        before = pool_padding(step, rank)
        if any(lo != hi for lo, hi in before) or "output_shape" in step.attributes:
            raise UnsupportedError("ConvTranspose with uneven padding")
        run = (self.f.conv_transpose1d, self.f.conv_transpose2d)[rank - 1]
        return run(
            x, w, b,
            stride=tuple(step.get("strides", [1] * rank)),
            padding=tuple(lo for lo, _ in before),
            output_padding=tuple(step.get("output_padding", [0] * rank)),
            groups=step.get("group", 1),
            dilation=tuple(step.get("dilations", [1] * rank)),
        )  # fmt: skip

    def matmul(self, step: Step, a: Value, b: Value) -> Value:
        return self.torch.matmul(a, b)

    def gemm(self, step: Step, a: Value, b: Value, c: Value = None) -> Value:
        if step.get("alpha", 1.0) != 1.0 or step.get("beta", 1.0) != 1.0:
            raise UnsupportedError("Gemm with factors")
        a = a.t() if step.get("transA", 0) else a
        if step.get("transB", 0):
            return self.f.linear(a, b, c)
        return self.torch.addmm(c, a, b) if c is not None else self.torch.mm(a, b)

    def einsum(self, step: Step, *operands: Value) -> Value:
        return self.torch.einsum(step.get("equation", ""), *operands)

    # --- elementwise -----------------------------------------------------------------------

    def relu(self, step: Step, x: Value) -> Value:
        return self.torch.relu(x)

    def add(self, step: Step, a: Value, b: Value) -> Value:
        return self.torch.add(a, b)

    def sub(self, step: Step, a: Value, b: Value) -> Value:
        return self.torch.sub(a, b)

    def mul(self, step: Step, a: Value, b: Value) -> Value:
        return self.torch.mul(a, b)

    def div(self, step: Step, a: Value, b: Value) -> Value:
        return self.torch.div(a, b)

    def sum(self, step: Step, *operands: Value) -> Value:
        total = operands[0]
        for operand in operands[1:]:
            total = self.torch.add(total, operand)
        return total

    def erf(self, step: Step, x: Value) -> Value:
        return self.torch.erf(x)

    def gelu(self, step: Step, x: Value) -> Value:
        return self.f.gelu(x, approximate=step.get("approximate", "none"))

    def clip(self, step: Step, x: Value, *bounds: Value) -> Value:
        low, high = clip_bounds(step)
        return self.torch.clamp(x, low, high)

    def dropout(self, step: Step, x: Value, *settings: Value) -> Value:
        return x

    # --- normalisation and pooling ---------------------------------------------------------

    def batchnormalization(
        self, step: Step, x: Value, scale: Value, shift: Value, mean: Value, variance: Value
    ) -> Value:
        epsilon = step.get("epsilon", 1e-5)
        return self.f.batch_norm(x, mean, variance, scale, shift, False, 0.0, epsilon)

    def layernormalization(self, step: Step, x: Value, g: Value, b: Value = None) -> Value:
        return self.f.layer_norm(x, step.shapes[1], g, b, step.get("epsilon", 1e-5))

    def lrn(self, step: Step, x: Value) -> Value:
        alpha, beta = step.get("alpha", 1e-4), step.get("beta", 0.75)
        return self.f.local_response_norm(x, step.get("size", 1), alpha, beta, step.get("bias", 1))

    def softmax(self, step: Step, x: Value) -> Value:
        if step.opset >= 13:
            return self.torch.softmax(x, step.get("axis", -1))
        axis, shape = step.get("axis", 1), step.shapes[0]
        flat = x.flatten(axis) if axis < len(shape) - 1 else x
        result = self.torch.softmax(flat, axis)
        return result.reshape(shape) if axis < len(shape) - 1 else result

    def maxpool(self, step: Step, x: Value) -> Value:
        window = tuple(step.get("kernel_shape", ()))
        before = pool_padding(step, len(window))
        if any(lo != hi for lo, hi in before):
            x = self.f.pad(x, _torch_pads(before), value=float("-inf"))
            before = [(0, 0)] * len(window)
        return self.f.max_pool2d(
            x,
            window,
            stride=tuple(step.get("strides", [1] * len(window))),
            padding=tuple(lo for lo, _ in before),
            ceil_mode=bool(step.get("ceil_mode", 0)),
        )

    def averagepool(self, step: Step, x: Value) -> Value:
        window = tuple(step.get("kernel_shape", ()))
        before = pool_padding(step, len(window))
        strides = tuple(step.get("strides", [1] * len(window)))
        counted = bool(step.get("count_include_pad", 0))
        if any(lo != hi for lo, hi in before):
            if counted or step.get("ceil_mode", 0):
                raise UnsupportedError("AveragePool with uneven padding of this kind")
            total, present = (
                self.f.avg_pool2d(self.f.pad(v, _torch_pads(before)), window, strides)
                for v in (x, self.torch.ones_like(x))
            )
            return total / present
        return self.f.avg_pool2d(
            x,
            window,
            stride=strides,
            padding=tuple(lo for lo, _ in before),
            ceil_mode=bool(step.get("ceil_mode", 0)),
            count_include_pad=counted,
        )

    def globalaveragepool(self, step: Step, x: Value) -> Value:
        return self.torch.mean(x, tuple(range(2, len(step.shapes[0]))), True)

    # --- shapes ----------------------------------------------------------------------------

    def reshape(self, step: Step, x: Value, shape: Value) -> Value:
        return x.reshape(new_shape(step))

    def flatten(self, step: Step, x: Value) -> Value:
        if step.get("axis", 1) != 1:
            raise UnsupportedError("Flatten at another axis than 1")
        return x.flatten(1)

    def transpose(self, step: Step, x: Value) -> Value:
        return x.permute(tuple(step.get("perm", range(len(step.shapes[0]))[::-1])))

    def concat(self, step: Step, *operands: Value) -> Value:
        return self.torch.cat(list(operands), step.get("axis", 0))


def _torch_pads(pads: list[tuple[int, int]]) -> tuple[int, ...]:
    """Paddings in the order of ``torch.nn.functional.pad``: the last dimension first."""
    return tuple(p for pair in reversed(pads) for p in pair)


def clip_bounds(step: Step) -> tuple[float | None, float | None]:
    """The bounds of Clip, attributes in old opsets and inputs in new ones."""
    if step.opset < 11:
        return step.get("min", None), step.get("max", None)
    return tuple(  # type: ignore[return-value]
        float(step.known[p].reshape(-1)[0]) if p in step.known else None for p in (1, 2)
    )


def new_shape(step: Step) -> tuple[int, ...]:
    """The shape that Reshape gives, with zeros replaced by the extents that they stand for."""
    if 1 not in step.known:
        raise UnsupportedError("Reshape to a shape that is computed")
    wanted = [int(n) for n in step.known[1]]
    return tuple(n or step.shapes[0][axis] for axis, n in enumerate(wanted))
