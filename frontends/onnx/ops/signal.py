"""Fourier transforms as products with tables, and filter banks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frontends.onnx.core.comprehension_text import Extent, at, declare, function, line, names
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Compute, Known, Node, Result, Value, operator
from frontends.onnx.core.stages import Array, Body
from frontends.onnx.core.tensors import element_type
from frontends.onnx.ops.select import opaque, taken
from poly.ir.dtypes import FLOAT32, DType

#: The most elements of a transform's table; numpy computes longer transforms.
MAX_TABLE = 1 << 22


def _table(length: int, used: int, outputs: int, inverse: bool, parts: int, dtype: DType) -> Array:
    """W[k,o,n,c] such that Y[k,o] = sum over n, c of W[k,o,n,c] * X[n,c], (o, c) real, imaginary.

    exp(∓2πi·kn/length), times 1/length for the inverse.
    """
    # Angles are reduced as integers, so that large ones stay exact.
    turns = np.outer(np.arange(outputs), np.arange(used)) % length
    angles = (2 if inverse else -2) * np.pi * turns / length
    real, imaginary = np.cos(angles), np.sin(angles)
    table = np.stack([[real, -imaginary], [imaginary, real]])  # [o, c, k, n]
    if inverse:
        table /= length
    return np.ascontiguousarray(table.transpose(2, 0, 3, 1)[..., :parts]).astype(dtype.numpy)


@operator("DFT")
def dft(node: Node) -> Sequence[Result]:
    """Y[..,k,..,o] += X[..,n,..,c] * W[k,o,n,c], a product with a table of sines and cosines."""
    x = node.required(0)
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise node.fail(f"an operand of shape {list(x.shape)} is not a signal")
    if node.opset < 20:
        axis = node.axis(node.integer("axis", 1), x.rank)
    else:
        given = node.known_ints(2, "the axis")
        axis = node.axis(given[0] if given else -2, x.rank)
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    lengths = node.known_ints(1, "the length")
    size = x.shape[axis]
    length = lengths[0] if lengths else 2 * (size - 1) if inverse and onesided else size
    if length < 1 or axis == x.rank - 1:
        raise node.fail(f"a transform of length {length} on axis {axis}")
    if inverse and onesided:
        return _real_inverse(node, x, axis, length)
    outputs = length // 2 + 1 if onesided else length
    used, parts = min(size, length), x.shape[-1]
    shape = [*x.shape[:-1], 2]
    shape[axis] = outputs
    checked_shape(shape, x.dtype, node.origin)
    if outputs * used * 2 * parts > MAX_TABLE:
        fixed = int(length) if lengths else None  # that of the operand

        def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
            data = taken(arrays, 0).astype(np.float64)
            values = data[..., 0] + (1j * data[..., 1] if parts == 2 else 0)
            found = (np.fft.ifft if inverse else np.fft.fft)(values, fixed, axis)
            if onesided:
                found = np.split(found, [found.shape[axis] // 2 + 1], axis)[0]
            return [np.stack([found.real, found.imag], -1).astype(x.dtype.numpy)]

        return opaque([x], [x.dtype], run)
    table = _table(length, used, outputs, inverse, parts, x.dtype.compute)
    return [_transformed("dft", x, axis, table, tuple(shape))]


def _transformed(name: str, x: Value, axis: int, table: Array, shape: tuple[int, ...]) -> Compute:
    """Y[..,k,..,o] +=! X[..,n,..,c] * W[k,o,n,c]."""
    indices = list(names(x.rank - 1, ("i", "j", "l", "m", "p", "q")))
    source = [*indices[:axis], "n", *indices[axis + 1 :], "c"]
    target = [*indices[:axis], "k", *indices[axis + 1 :], "o"]
    outer: dict[str, Extent] = dict(zip(target, shape, strict=True))
    ranges = outer | {"n": table.shape[2], "c": table.shape[3]}
    value = f"{at('X', source)} * W[k,o,n,c]"
    if x.dtype.compute == x.dtype:
        lines = [line(f"{at('Y', target)} +=! {value}", ranges)]
    else:
        lines = [
            declare("T", x.dtype.compute, shape),
            line(f"{at('T', target)} +=! {value}", ranges),
            line(f"{at('Y', target)} = {at('T', target)}", outer),
        ]
    inputs = [declare("X", x.dtype, x.shape), declare("W", x.dtype.compute, table.shape)]
    program = function(name, inputs, [declare("Y", x.dtype, shape)], lines)
    return Compute(program, (x, table))


def _real_inverse(node: Node, x: Value, axis: int, length: int) -> Sequence[Result]:
    """The real signal whose transform has X as its first half."""
    used = min(x.shape[axis], length // 2 + 1)
    turns = np.outer(np.arange(length), np.arange(used)) % length
    angles = 2 * np.pi * turns / length
    twice = np.full(used, 2.0)
    twice[0] = 1.0
    if length % 2 == 0 and used == length // 2 + 1:
        twice[-1] = 1.0
    real, imaginary = np.cos(angles) * twice / length, -np.sin(angles) * twice / length
    table = np.stack([real, imaginary], -1)[:, None, :, : x.shape[-1]]
    shape = [*x.shape[:-1], 1]
    shape[axis] = length
    checked_shape(shape, x.dtype, node.origin)
    table = np.ascontiguousarray(table).astype(x.dtype.compute.numpy)
    return [_transformed("inverse_dft", x, axis, table, tuple(shape))]


@operator("STFT")
def stft(node: Node) -> Sequence[Result]:
    """Y[b,f,k,o] += X[b,f*step+n,c] * V[n] * W[k,o,n,c]."""
    x, window = node.required(0), node.optional(2)
    step = node.known_ints(1, "the step")
    lengths = node.known_ints(3, "the length")
    if x.rank == 2:
        shape_in, read = x.shape, "X[b,{0}*f + n]"
        parts = 1
    elif x.rank == 3 and x.shape[2] in (1, 2):
        shape_in, read, parts = x.shape, "X[b,{0}*f + n,c]", x.shape[2]
    else:
        raise node.fail(f"an operand of shape {list(x.shape)} is not a signal")
    length = lengths[0] if lengths else window.shape[0] if window is not None else shape_in[1]
    if not step or step[0] < 1 or not 1 <= length <= shape_in[1]:
        raise node.fail(f"step {step}, length {length} of {shape_in[1]}")
    if window is not None and window.shape != (length,):
        raise node.fail(f"a window of shape {list(window.shape)} for {length} elements")
    outputs = length // 2 + 1 if node.flag("onesided", True) else length
    frames = 1 + (shape_in[1] - length) // step[0]
    shape = checked_shape((x.shape[0], frames, outputs, 2), x.dtype, node.origin)
    table = _table(length, length, outputs, False, parts, x.dtype)
    value = f"{read.format(step[0])} * W[k,o,n,c]"
    operands: dict[str, Value | Array] = {"X": x, "W": table}
    inputs = [declare("X", x.dtype, x.shape), declare("W", x.dtype, table.shape)]
    if window is not None:
        value = f"{read.format(step[0])} * V[n] * W[k,o,n,c]"
        operands["V"] = window
        inputs.append(declare("V", window.dtype, window.shape))
    ranges: dict[str, Extent] = dict(zip("bfko", shape, strict=True))
    lines = [line(f"Y[b,f,k,o] +=! {value}", ranges | {"n": length, "c": parts})]
    program = function("stft", inputs, [declare("Y", x.dtype, shape)], lines)
    return [Compute(program, tuple(operands.values()))]


@operator("MelWeightMatrix")
def mel_weight_matrix(node: Node) -> Sequence[Result]:
    """Triangular filters that are equally wide on the mel scale, 2595 log10(1 + f / 700)."""
    scalars = []
    for position in range(5):
        array = node.known(position, "the parameters of a filter bank")
        if array is None or array.size != 1:
            raise node.fail("every parameter must be a number")
        scalars.append(array.reshape(-1)[0].item())
    bins, length, rate, low, high = scalars
    number = node.integer("output_datatype", 1)
    dtype = element_type(number, node) if number else FLOAT32
    if not (0 < bins < 1 << 20 and 0 < length < 1 << 28 and rate > 0 and 0 <= low < high):
        raise node.fail(f"parameters {scalars}")
    rows = int(length) // 2 + 1
    checked_shape((rows, int(bins)), dtype, node.origin)
    first, last = (2595 * np.log1p(f / 700) / np.log(10) for f in (low, high))
    mels = first + np.arange(bins + 2) * (last - first) / (bins + 2)
    hertz = 700 * np.expm1(mels / 2595 * np.log(10))
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    if edges[-1] > rows:
        raise node.fail("the filters exceed half the sampling rate")
    weights = np.zeros((rows, int(bins)))
    for n in range(int(bins)):
        left, centre, right = edges[n : n + 3]
        if left == centre:
            weights[centre, n] = 1
        else:
            weights[left : centre + 1, n] = np.arange(centre - left + 1) / (centre - left)
        if right > centre:
            weights[centre:right, n] = np.arange(right - centre, 0, -1) / (right - centre)
    return [Known(weights.astype(dtype.numpy))]
