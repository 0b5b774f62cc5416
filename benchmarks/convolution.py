"""Convolutions of any rank, with groups and dilation, and transposed ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as points
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from benchmarks.kernel import Array, Arrays, Kernel, Shape, Text


@dataclass(frozen=True)
class Convolution(Kernel):
    """A convolution with a bias; weights and bias are constants.

    Attributes
    ----------
    channels, filters : channels in and out
    size : extents of the input, one number a spatial dimension
    window : extents of the kernel
    stride, dilation, padding : one number a dimension; the padding is the same on both sides
    groups, batch : numbers
    """

    channels: int
    filters: int
    size: Shape
    window: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1
    batch: int = 1

    @property
    def _spatial(self) -> Shape:
        parts = zip(self.size, self.window, self.stride, self.padding, self.dilation, strict=True)
        return tuple((h + 2 * p - d * (r - 1) - 1) // s + 1 for h, r, s, p, d in parts)

    @property
    def inputs(self) -> dict[str, Shape]:
        return {"X": (self.batch, self.channels, *self.size)}

    @property
    def weights(self) -> dict[str, Shape]:
        shape = (self.filters, self.channels // self.groups, *self.window)
        return {"F": shape, "B": (self.filters,)}

    @property
    def output(self) -> Shape:
        return (self.batch, self.filters, *self._spatial)

    @property
    def flops(self) -> int:
        return 2 * prod(self.output) * prod(self.weights["F"][1:])

    def nodes(self) -> list[NodeProto]:
        attributes: dict[str, Any] = {
            "kernel_shape": self.window,
            "strides": self.stride,
            "pads": (*self.padding, *self.padding),
            "dilations": self.dilation,
            "group": self.groups,
        }
        return [helper.make_node("Conv", ["X", "F", "B"], ["Y"], **attributes)]

    def reference(self, arrays: Arrays) -> Array:
        """Compute one filter tap at a time: a matrix product over channels for each position."""
        rank, g = len(self.size), self.groups
        pad = [(0, 0), (0, 0), *((p, p) for p in self.padding)]
        padded = np.pad(arrays["X"], pad)
        out = self._spatial
        filters = arrays["F"].reshape(g, self.filters // g, self.channels // g, *self.window)
        moved = np.moveaxis(filters, range(3), range(rank, rank + 3))
        result = np.zeros((self.batch, g, self.filters // g, prod(out)), np.float32)
        for tap in points(*map(range, self.window)):
            slices = tuple(
                slice(t * d, t * d + s * (q - 1) + 1, s)
                for t, d, s, q in zip(tap, self.dilation, self.stride, out, strict=True)
            )
            seen = padded[(slice(None), slice(None), *slices)]
            seen = seen.reshape(self.batch, g, self.channels // g, prod(out))
            result += moved[tap] @ seen
        shown = result.reshape(self.output)
        return np.asarray(shown + arrays["B"].reshape(-1, *[1] * rank))

    @property
    def text(self) -> Text | None:
        """The text for one group or one filter per group; window, strides and padding are fixed."""
        depthwise = self.groups == self.channels == self.filters
        if self.groups != 1 and not depthwise:
            return None
        rank = len(self.size)
        sizes, outs, taps = "HWD"[:rank], "pqo"[:rank], "rst"[:rank]
        reads, clauses = [], []
        for n in range(rank):
            h, q, r = sizes[n], outs[n], taps[n]
            s, p, d, w = self.stride[n], self.padding[n], self.dilation[n], self.window[n]
            read = f"{s}*{q} + {d}*{r}" + (f" - {p}" if p else "")
            reads.append(read)
            if p:
                span = f"{h} + {2 * p - d * (w - 1) - 1}"
                clauses += [f"{q} in 0:({span})//{s} + 1", f"0 <= {read} < {h}"]
        where = f" where {', '.join(clauses)}" if clauses else ""
        window = ",".join(map(str, self.window))
        index = f"n,k,{','.join(outs)}"
        filters = "F[C,1," if depthwise else "F[K,C,"
        used = "k,0" if depthwise else "k,c"
        channel = "k" if depthwise else "c"
        text = (
            f"def convolution(float32 X[N,C,{','.join(sizes)}], float32 {filters}{window}], "
            f"float32 B[{'C' if depthwise else 'K'}]) -> (Y) {{\n"
            f"    T[{index}] +=! X[n,{channel},{','.join(reads)}] * F[{used},{','.join(taps)}]"
            f"{where}\n"
            f"    Y[{index}] = T[{index}] + B[k]\n}}"
        )
        values = {"N": self.batch, "C": self.channels, **dict(zip(sizes, self.size, strict=True))}
        if not depthwise:
            values["K"] = self.filters
        return Text(text, values, {**self.inputs, **self.weights})


def conv2d(
    name: str,
    family: str,
    channels: int,
    filters: int,
    size: int | Shape,
    window: int | Shape,
    stride: int = 1,
    padding: int | None = None,
    dilation: int = 1,
    groups: int = 1,
    batch: int = 1,
) -> Convolution:
    """A convolution over two dimensions; the padding is half the window unless it is given."""
    shape = (size, size) if isinstance(size, int) else size
    taps = (window, window) if isinstance(window, int) else window
    pads = tuple(d * (w // 2) for w, d in zip(taps, (dilation,) * 2, strict=True))
    if padding is not None:
        pads = (padding, padding)
    return Convolution(
        name, family, channels, filters, shape, taps, (stride,) * 2, pads, (dilation,) * 2,
        groups, batch,
    )  # fmt: skip


def conv1d(
    name: str,
    family: str,
    channels: int,
    filters: int,
    length: int,
    window: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    batch: int = 1,
) -> Convolution:
    """A convolution over one dimension, padded so that its length is kept."""
    pads = (dilation * (window // 2),)
    return Convolution(
        name, family, channels, filters, (length,), (window,), (stride,), pads, (dilation,),
        groups, batch,
    )  # fmt: skip


@dataclass(frozen=True)
class Transposed(Kernel):
    """A transposed convolution with a bias over two dimensions, as decoders use it.

    Every element of the input is spread over a window of the output; windows are `stride` apart
    and `padding` elements are cropped at every edge.
    """

    channels: int
    filters: int
    size: Shape
    window: int
    stride: int
    padding: int
    batch: int = 1

    @property
    def _full(self) -> Shape:
        return tuple((h - 1) * self.stride + self.window for h in self.size)

    @property
    def inputs(self) -> dict[str, Shape]:
        return {"X": (self.batch, self.channels, *self.size)}

    @property
    def weights(self) -> dict[str, Shape]:
        shape = (self.channels, self.filters, self.window, self.window)
        return {"F": shape, "B": (self.filters,)}

    @property
    def output(self) -> Shape:
        return (self.batch, self.filters, *(h - 2 * self.padding for h in self._full))

    @property
    def flops(self) -> int:
        return 2 * prod(self.inputs["X"]) * self.filters * self.window**2

    def nodes(self) -> list[NodeProto]:
        attributes: dict[str, Any] = {
            "kernel_shape": (self.window,) * 2,
            "strides": (self.stride,) * 2,
            "pads": (self.padding,) * 4,
        }
        return [helper.make_node("ConvTranspose", ["X", "F", "B"], ["Y"], **attributes)]

    def reference(self, arrays: Arrays) -> Array:
        h, w = self.size
        full = np.zeros((self.batch, self.filters, *self._full), np.float32)
        pixels = arrays["X"].reshape(self.batch, self.channels, h * w)
        for r, s in points(range(self.window), range(self.window)):
            part = arrays["F"][:, :, r, s].T @ pixels
            rows = slice(r, r + self.stride * (h - 1) + 1, self.stride)
            columns = slice(s, s + self.stride * (w - 1) + 1, self.stride)
            full[:, :, rows, columns] += part.reshape(self.batch, self.filters, h, w)
        cut = slice(self.padding, -self.padding or None)
        return np.asarray(full[:, :, cut, cut] + arrays["B"][:, None, None])
