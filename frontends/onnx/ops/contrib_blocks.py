"""Operators of ONNX Runtime's own domain on weights of 2, 4 or 8 bits, with a scale for each block.

Several weights share a byte, the first in its lowest bits.  Weights stay packed in memory, and are
unpacked where they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frontends.onnx.core.comprehension_text import Extent, at, declare, function, line, names
from frontends.onnx.core.narrow_types import CARRIERS, carried
from frontends.onnx.core.node import Compute, Node, Result, Unsupported, Value
from frontends.onnx.ops.broadcasting import result_shape
from frontends.onnx.ops.contrib_schemas import contrib
from frontends.onnx.ops.move import indexed
from poly.ir.dtypes import UINT8

#: As many rows are multiplied by weights that are unpacked for each of them; for more, weights are
#: unpacked once.
_FEW_ROWS = 8


def _packing(node: Node) -> tuple[int, int]:
    """The bits of a weight, and the weights of a byte."""
    bits = node.integer("bits", 4)
    if bits not in (2, 4, 8):
        raise Unsupported(f"{node.operator} with weights of {bits} bits")
    return bits, 8 // bits


def _unpacked(byte: str, bits: int, part: str | int) -> str:
    """A weight of a byte as a float: which one, as a number or as text."""
    if bits == 8:
        return f"float32({byte})"
    if isinstance(part, int):
        moved = byte if part == 0 else f"({byte} >> {part * bits})"
    else:
        moved = f"({byte} >> uint8(({part}) * {bits}))"
    last = isinstance(part, int) and part == 8 // bits - 1
    return f"float32({moved})" if last else f"float32({moved} & {(1 << bits) - 1})"


def _power(node: Node) -> int:
    """The size of blocks."""
    size = node.integer("block_size", 128)
    if size < 16 or size & (size - 1):
        raise node.fail(f"block_size is {size}, not a power of 2 that is at least 16")
    return size


_FLOAT8 = "float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float4e2m1"


# --- products ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Weights:
    """The weights of a product: `inner` for each column, in blocks of `size`, `parts` of them in a
    byte."""

    node: Node
    columns: int
    inner: int
    size: int
    bits: int
    parts: int

    @property
    def blocks(self) -> int:
        return -(-self.inner // self.size)

    def operands(self) -> dict[str, Value]:
        """Weights, scales and zero points, checked."""
        node, columns, blocks = self.node, self.columns, self.blocks
        found = {"B": node.required(1), "S": node.required(2)}
        self._check(1, (columns, blocks, self.size // self.parts))
        self._check(2, (columns, blocks))
        zero = node.optional(3)
        if zero is not None:
            packed = zero.dtype == UINT8
            self._check(3, (columns, -(-blocks // self.parts) if packed else blocks))
            found["Z"] = zero
        return found

    def _check(self, position: int, shape: tuple[int, ...]) -> None:
        """Check a shape; scales and zero points may be vectors."""
        value = self.node.required(position)
        allowed = [shape] if position == 1 else [shape, (math.prod(shape),)]
        if value.shape not in allowed:
            raise self.node.fail(
                f"input number {position + 1} has shape {list(value.shape)}, not {list(shape)}"
            )

    def zero(self, block: str) -> str:
        """The zero point of a block of column j."""
        value = self.node.optional(3)
        if value is None:
            return f"{float(1 << (self.bits - 1))!r}"
        if value.dtype != UINT8:
            return f"float32({_of_block('Z', value, 'j', block, self.blocks)})"
        if self.parts == 1:
            return f"float32({_of_block('Z', value, 'j', block, self.blocks)})"
        count = -(-self.blocks // self.parts)
        byte = _of_block("Z", value, "j", f"({block}) // {self.parts}", count)
        return _unpacked(byte, self.bits, f"({block}) % {self.parts}")

    def scale(self, block: str) -> str:
        return f"float32({_of_block('S', self.node.required(2), 'j', block, self.blocks)})"


def _of_block(tensor: str, value: Value, column: str, block: str, count: int) -> str:
    """The element of a block in a matrix, or in its rows one behind the other."""
    return at(tensor, [column, block] if value.rank == 2 else [f"{count} * {column} + {block}"])


@contrib(
    "MatMulNBits", "A:T1 B:T2 scales:T1 zero_points:T3? g_idx:T4? bias:T1?", "Y:T1",
    {
        "T1": "float float16 bfloat16", "T2": "uint8", "T3": "uint8 float float16 bfloat16",
        "T4": "int32",
    },
    K="int!", N="int!", bits="int", block_size="int!", accuracy_level="int", weight_prepacked="int",
)  # fmt: skip
def matmul_nbits(node: Node) -> Sequence[Result]:
    """Y[..,j] = sum over k of A[..,k] * (B[j,k] - zero) * scale + bias[j]

    `accuracy_level` says how little accuracy is enough, and changes nothing.
    """
    a, bias = node.required(0), node.optional(5)
    weights = _weights(node)
    if a.rank < 1 or a.shape[-1] != weights.inner:
        raise node.fail(f"A has shape {list(a.shape)}, but K is {weights.inner}")
    if bias is not None and bias.shape != (weights.columns,):
        raise node.fail(f"a bias of shape {list(bias.shape)} for {weights.columns} columns")
    operands = {"A": a} | weights.operands()
    rows = names(a.rank - 1, ("i", "l", "m", "n"))
    shape = result_shape(node, (*a.shape[:-1], weights.columns), a)
    outer: dict[str, Any] = dict(zip((*rows, "j"), shape, strict=True))
    few = weights.inner % weights.parts == 0 and math.prod(a.shape[:-1]) <= _FEW_ROWS
    sums = _by_bytes(weights, rows, outer) if few else _by_weights(weights, rows, outer)
    value = at("T", outer)
    if bias is not None:
        operands["C"] = bias
        value += " + float32(C[j])"
    lines = [
        declare("T", a.dtype.compute, shape),
        *sums,
        line(f"{at('Y', outer)} = {value}", outer),
    ]
    inputs = [declare(n, v.dtype, v.shape) for n, v in operands.items()]
    program = function("matmul_nbits", inputs, [declare("Y", a.dtype, shape)], lines)
    return [Compute(program, tuple(operands.values()))]


def _weights(node: Node) -> _Weights:
    """The weights of a product, under its attributes."""
    if node.integer("weight_prepacked", 0):
        raise Unsupported("MatMulNBits with weights that are packed for a GPU")
    columns, inner, (bits, parts) = node.integer("N", 0), node.integer("K", 0), _packing(node)
    if columns < 1 or inner < 1:
        raise node.fail(f"K is {inner} and N is {columns}")
    weights = _Weights(node, columns, inner, _power(node), bits, parts)
    groups = node.optional(4)
    if groups is not None and groups.size:
        trivial = np.arange(inner) // weights.size
        known = node.known(4, "g_idx of MatMulNBits")
        assert known is not None
        if known.size < inner or not np.array_equal(known.reshape(-1)[:inner], trivial):
            raise Unsupported("MatMulNBits with blocks that are not adjacent (g_idx)")
    return weights


def _by_bytes(w: _Weights, rows: Sequence[str], outer: dict[str, Extent]) -> list[str]:
    """The sum over bytes of the products with the weights of each."""
    terms = [
        f"float32({at('A', [*rows, k])}) * ({weight} - {w.zero('b')})"
        for k, weight in _of_byte(w)
    ]  # fmt: skip
    ranges, guards = _bytes(w)
    total = f"{at('T', outer)} +=! ({' + '.join(terms)}) * {w.scale('b')}"
    return [line(total, outer | ranges, guards)]


def _by_weights(w: _Weights, rows: Sequence[str], outer: dict[str, Extent]) -> list[str]:
    """All weights, then the product with them."""
    sum_ = f"{at('T', outer)} +=! float32({at('A', [*rows, 'k'])}) * W[j,k]"
    weights = _whole(w) if w.inner % w.parts == 0 else _single(w)
    return [
        f"float32 W[{w.columns},{w.inner}]",
        *weights,
        line(sum_, outer | {"k": w.inner}),
    ]


def _whole(w: _Weights) -> list[str]:
    """Statements for all weights, one for each part of a byte."""
    ranges, guards = _bytes(w)
    return [
        line(
            f"W[j,{k}] = ({weight} - {w.zero('b')}) * {w.scale('b')}",
            {"j": w.columns} | ranges,
            guards,
        )
        for k, weight in _of_byte(w)
    ]


def _single(w: _Weights) -> list[str]:
    """A statement for all weights, the last of which do not fill a byte."""
    block = f"k // {w.size}"
    byte = at("B", ["j", block, f"k % {w.size} // {w.parts}"])
    weight = f"({_unpacked(byte, w.bits, f'k % {w.parts}')} - {w.zero(block)}) * {w.scale(block)}"
    return [line(f"W[j,k] = {weight}", {"j": w.columns, "k": w.inner})]


def _of_byte(w: _Weights) -> list[tuple[str, str]]:
    """The number and the text of each weight of byte h of block b."""
    start = f"{w.size} * b + {w.parts} * h"
    return [
        (f"{start} + {part}" if part else start, _unpacked("B[j,b,h]", w.bits, part))
        for part in range(w.parts)
    ]


def _bytes(w: _Weights) -> tuple[dict[str, Extent], list[str]]:
    """The ranges of the bytes of a column, and a condition where the last block is not full."""
    ranges: dict[str, Extent] = {"b": w.blocks, "h": w.size // w.parts}
    whole = w.inner % w.size == 0
    return ranges, [] if whole else [f"{w.size} * b + {w.parts} * h < {w.inner}"]


#: What a weight of 4 bits means, by quant_type: parts of 12 or NF4, as bitsandbytes has them.
_CODES = (
    np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32)
    / np.float32(12),
    np.array([
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
        -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
        0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ], np.float32),
)  # fmt: skip


@contrib(
    "MatMulBnb4", "A:T1 B:T2 absmax:T1", "Y:T1",
    {"T1": "float float16 bfloat16", "T2": "uint8"}, K="int!", N="int!", block_size="int!",
    quant_type="int!", training_mode="int", transB="int",
)  # fmt: skip
def matmul_bnb4(node: Node) -> Sequence[Result]:
    """Y[..,j] = sum over k of A[..,k] * code of weight K*j + k * scale of its block

    The first weight of a byte is in its high bits.
    """
    a, b, scales = node.required(0), node.required(1), node.required(2)
    columns, inner, size = node.integer("N", 0), node.integer("K", 0), _power(node)
    kind = node.integer("quant_type", 0)
    if not node.flag("transB", True) or node.flag("training_mode"):
        raise Unsupported("MatMulBnb4 for training")
    if columns < 1 or inner < 1 or kind not in (0, 1):
        raise node.fail(f"K is {inner}, N is {columns}, and quant_type {kind}")
    if a.rank < 1 or a.shape[-1] != inner:
        raise node.fail(f"A has shape {list(a.shape)}, but K is {inner}")
    count = columns * inner
    if b.shape not in ((-(-count // 2),), (-(-count // 2), 1)) or scales.shape != (
        -(-count // size),
    ):
        raise node.fail(f"weights {list(b.shape)} and scales {list(scales.shape)} for {count}")
    rows = names(a.rank - 1, ("i", "l", "m", "n"))
    shape = result_shape(node, (*a.shape[:-1], columns), a)
    outer: dict[str, Any] = dict(zip((*rows, "j"), shape, strict=True))
    number = f"({inner} * j + k)"
    byte = at("B", [f"{number} // 2", *[0] * (b.rank - 1)])
    code = f"int32(select({number} % 2 == 0, {byte} >> 4, {byte} & 15))"
    lines = [
        f"float32 W[{columns},{inner}]",
        line(f"W[j,k] = C[{code}] * float32(S[{number} // {size}])", {"j": columns, "k": inner}),
        declare("T", a.dtype.compute, shape),
        line(
            f"{at('T', outer)} +=! float32({at('A', [*rows, 'k'])}) * W[j,k]",
            outer | {"k": inner},
        ),
        line(f"{at('Y', outer)} = {at('T', outer)}", outer),
    ]
    inputs = [declare(n, v.dtype, v.shape) for n, v in (("A", a), ("B", b), ("S", scales))]
    outputs = [declare("Y", a.dtype, shape)]
    program = function("matmul_bnb4", [*inputs, "float32 C[16]"], outputs, lines)
    return [Compute(program, (a, b, scales, _CODES[kind]))]


# --- rows --------------------------------------------------------------------------------------


@contrib(
    "GatherBlockQuantized", "data:T1 indices:Tind scales:T2 zero_points:T1?", "output:T2",
    {
        "T1": f"int4 uint4 uint8 {_FLOAT8}", "T2": "float float16 bfloat16",
        "Tind": "int32 int64",
    },
    bits="int", block_size="int", gather_axis="int", quantize_axis="int",
)  # fmt: skip
def gather_block_quantized(node: Node) -> Sequence[Result]:
    """Parts of weights; those of uint8 share bytes along the last axis.  Indices out of range give
    zeros.
    """
    data, which, scales = node.required(0), node.required(1), node.required(2)
    (bits, parts), size = _packing(node), _power(node)
    if data.rank < 1:
        raise node.fail("a scalar has no elements to gather")
    first = node.axis(node.integer("gather_axis", 0), data.rank)
    axis = node.axis(node.integer("quantize_axis", 1), data.rank)
    middle = float(1 << (bits - 1))
    if data.dtype in CARRIERS:
        if data.dtype.is_float:
            raise Unsupported(f"GatherBlockQuantized of {data.dtype}")
        data, parts, middle = carried(data), 1, 0.0
    elif data.rank < 2 or first != 0:
        raise node.fail("elements of uint8 are gathered along the first of several axes")
    elif axis != data.rank - 1:
        raise node.fail("elements of uint8 have blocks along the last axis")
    shape = (*data.shape[:-1], data.shape[-1] * parts)
    blocks = (*shape[:axis], -(-shape[axis] // size), *shape[axis + 1 :])
    if scales.shape != blocks:
        raise node.fail(f"scales of shape {list(scales.shape)}, not {list(blocks)}")
    zero = node.optional(3)
    packed = (*blocks[:-1], -(-blocks[-1] // parts))
    if zero is not None and zero.shape != packed:
        raise node.fail(f"zero points of shape {list(zero.shape)}, not {list(packed)}")
    out = result_shape(node, (*shape[:first], *which.shape, *shape[first + 1 :]), scales)
    indices = names(len(out))
    last = first + which.rank
    index, extent = at("I", indices[first:last]), shape[first]
    place = f"select({index} < 0, {index} + {extent}, {index})"
    inside = [*indices[:first], f"min(max({place}, 0), {max(extent - 1, 0)})", *indices[last:]]
    block = [f"({i}) // {size}" if a == axis else i for a, i in enumerate(inside)]
    value = _element("D", inside, bits, parts)
    low = f"{middle!r}" if zero is None else _element("Z", block, bits, parts)
    text = f"({value} - {low}) * float32({at('S', block)})"
    text = f"select({index} >= {-extent} and {index} < {extent}, {text}, 0.0)"
    operands = {"D": data, "I": which, "S": scales} | ({} if zero is None else {"Z": carried(zero)})
    return [indexed("gather_blocks", operands, scales.dtype, out, f"{scales.dtype}({text})")]


def _element(tensor: str, index: Sequence[str], bits: int, parts: int) -> str:
    """An element of a tensor that is packed along its last axis, as a float."""
    if parts == 1:
        return f"float32({at(tensor, index)})"
    byte = at(tensor, [*index[:-1], f"({index[-1]}) // {parts}"])
    return _unpacked(byte, bits, f"({index[-1]}) % {parts}")
