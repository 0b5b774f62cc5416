"""Products of matrices and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frontends.onnx.core.comprehension_text import (
    Extent,
    at,
    declare,
    function,
    line,
    literal,
    names,
)
from frontends.onnx.core.node import Compute, InC, Node, Result, Unsupported, Value, operator
from frontends.onnx.core.stages import Array, Body
from frontends.onnx.ops.broadcasting import broadcast, operand, result_shape
from frontends.onnx.ops.select import opaque, taken
from poly.ir.dtypes import FLOAT32, FLOAT64

#: Rows of a matrix up to which elimination by hand is as fast as LAPACK.
MOST_BY_HAND = 32


@dataclass(frozen=True)
class Product:
    """The text of numpy's matmul: Y[output] is a sum over `ranges` of left * right.

    shape : of the output; outer : ranges of the output's indices, the last of which are ``i``
    for rows and ``j`` for columns, where the operands have them
    """

    shape: tuple[int, ...]
    output: tuple[str, ...]
    left: str
    right: str
    outer: Mapping[str, Extent]
    ranges: Mapping[str, Extent]

    def sum(self, tensor: str, left: str = "{0}", right: str = "{0}") -> str:
        """The statement that sums ``left * right``, formats over the two reads."""
        value = f"{left.format(self.left)} * {right.format(self.right)}"
        return line(f"{at(tensor, self.output)} +=! {value}", self.ranges)


def product(node: Node, a: Value, b: Value) -> Product:
    """The text of A·B, with numpy's rules for vectors and batches.

    Raises
    ------
    ModelError : if the shapes do not multiply.
    """
    if a.rank == 0 or b.rank == 0:
        raise node.fail("a scalar is not a matrix")
    inner = a.shape[-1]
    if inner != (b.shape[-2] if b.rank > 1 else b.shape[0]):
        raise node.fail(f"shapes {list(a.shape)} and {list(b.shape)} do not multiply")
    batch = broadcast(node, [a.shape[:-2], b.shape[:-2]])
    outer = names(len(batch), ("b", "d", "e", "f"))
    left = operand("A", a.shape[:-2], outer, batch)[2:-1]
    right = operand("B", b.shape[:-2], outer, batch)[2:-1]
    rows = ["i"] if a.rank > 1 else []
    columns = ["j"] if b.rank > 1 else []
    shape = (*batch, *(a.shape[-2:-1] if rows else ()), *(b.shape[-1:] if columns else ()))
    shape = result_shape(node, shape, a)
    indices = [*outer, *rows, *columns]
    free: dict[str, Extent] = dict(zip(indices, shape, strict=True))
    return Product(
        shape,
        tuple(indices),
        at("A", [*filter(None, [left]), *rows, "k"]),
        at("B", [*filter(None, [right]), "k", *columns]),
        free,
        free | {"k": inner},
    )


@operator("MatMul")
def matmul(node: Node) -> Sequence[Result]:
    """Y[..,i,j] += A[..,i,k] * B[..,k,j], with numpy's rules for vectors and batches."""
    a, b = node.required(0), node.required(1)
    p = product(node, a, b)
    if a.dtype.compute == a.dtype:
        lines = [p.sum("Y")]
    else:
        lines = [
            declare("T", a.dtype.compute, p.shape),
            p.sum("T"),
            line(f"{at('Y', p.output)} = {at('T', p.output)}", p.outer),
        ]
    program = function(
        "matmul",
        [declare("A", a.dtype, a.shape), declare("B", b.dtype, b.shape)],
        [declare("Y", a.dtype, p.shape)],
        lines,
    )
    return [Compute(program, (a, b))]


@operator("Gemm")
def gemm(node: Node) -> Sequence[Result]:
    """Y = alpha * A' * B' + beta * C."""
    a, b, c = node.required(0), node.required(1), node.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise node.fail(f"operands of rank {a.rank} and {b.rank} are not matrices")
    trans_a, trans_b = node.flag("transA"), node.flag("transB")
    rows, inner = a.shape[::-1] if trans_a else a.shape
    other, columns = b.shape[::-1] if trans_b else b.shape
    if inner != other:
        raise node.fail(f"shapes {list(a.shape)} and {list(b.shape)} do not multiply")
    shape = result_shape(node, (rows, columns), a)
    if c is not None and broadcast(node, [c.shape, shape]) != shape:
        raise node.fail(f"C of shape {list(c.shape)} does not broadcast to {list(shape)}")
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    free: dict[str, Extent] = {"i": rows, "j": columns}
    product = f"{'A[k,i]' if trans_a else 'A[i,k]'} * {'B[j,k]' if trans_b else 'B[k,j]'}"
    value = "T[i,j]" if alpha == 1 else f"{literal(alpha)} * T[i,j]"
    inputs = [declare("A", a.dtype, a.shape), declare("B", b.dtype, b.shape)]
    operands = [a, b]
    if c is not None and beta != 0:
        read = operand("C", c.shape, ("i", "j"), shape)
        value += f" + {read}" if beta == 1 else f" + {literal(beta)} * {read}"
        inputs.append(declare("C", c.dtype, c.shape))
        operands.append(c)
    ranges = free | {"k": inner}
    if value == "T[i,j]" and a.dtype.compute == a.dtype:
        lines = [line(f"Y[i,j] +=! {product}", ranges)]
    else:
        if a.dtype.is_integer and not (alpha == 1 and beta == 1):
            value = f"{a.dtype}({value})"
        lines = [
            declare("T", a.dtype.compute, shape),
            line(f"T[i,j] +=! {product}", ranges),
            line(f"Y[i,j] = {value}", free),
        ]
    program = function("gemm", inputs, [declare("Y", a.dtype, shape)], lines)
    return [Compute(program, tuple(operands))]


@operator("Einsum")
def einsum(node: Node) -> Sequence[Result]:
    """The equation as a comprehension."""
    values = node.operands
    equation = node.word("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        raise node.fail(f"{equation!r} has {len(terms)} terms for {len(values)} operands")
    if len(values) > 24:
        raise Unsupported(f"Einsum of {len(values)} operands")
    spelled = [_labels(node, term, v.rank) for term, v in zip(terms, values, strict=True)]
    extents: dict[str, int] = {}
    for labels, value in zip(spelled, values, strict=True):
        for label, extent in zip(labels, value.shape, strict=True):
            if extents.setdefault(label, extent) == 1:
                extents[label] = extent
            elif extent not in (1, extents[label]):
                raise node.fail(f"{equation!r}: sizes {extents[label]} and {extent} differ")
    dots = [e for e in sorted(extents, reverse=True) if not e.isalpha()]
    flat = [label for labels in spelled for label in labels]
    if arrow:
        out = _expand(node, right, dots)
    else:
        once = sorted(label for label in set(flat) if flat.count(label) == 1 and label.isalpha())
        out = [*dots, *once]
    if len(set(out)) != len(out) or not set(out) <= set(extents):
        raise node.fail(f"{equation!r}: the result's indices are not those of the operands")
    order = [*out, *(label for label in dict.fromkeys(flat) if label not in out)]
    local = {label: name for label, name in zip(order, names(len(order)), strict=True)}
    shape = result_shape(node, [extents[label] for label in out], values[0])
    reads = [
        at(
            f"X{n}",
            [
                local[label] if extent == extents[label] else 0
                for label, extent in zip(labels, value.shape, strict=True)
            ],
        )
        for n, (labels, value) in enumerate(zip(spelled, values, strict=True))
    ]
    ranges: dict[str, Extent] = {local[label]: extents[label] for label in order}
    free: dict[str, Extent] = {local[label]: extents[label] for label in out}
    y, t = at("Y", free), at("T", free)
    dtype = values[0].dtype
    op = "+=!" if len(order) > len(out) else "="
    if dtype.compute == dtype or op == "=":
        lines = [line(f"{y} {op} {' * '.join(reads)}", ranges)]
    else:
        lines = [
            declare("T", dtype.compute, shape),
            line(f"{t} {op} {' * '.join(reads)}", ranges),
            line(f"{y} = {t}", free),
        ]
    inputs = [declare(f"X{n}", v.dtype, v.shape) for n, v in enumerate(values)]
    program = function("einsum", inputs, [declare("Y", dtype, shape)], lines)
    return [Compute(program, values)]


def _labels(node: Node, term: str, rank: int) -> list[str]:
    """One label for each axis of an operand; those under an ellipsis count from the right."""
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after)
    letters = before + after
    if (letters and not letters.isalpha()) or not letters.isascii():
        raise node.fail(f"einsum term {term!r} is malformed")
    if (hidden != 0 and not dots) or hidden < 0:
        raise node.fail(f"einsum term {term!r} does not fit an operand of rank {rank}")
    return [*before, *(f"{hidden - n:03d}" for n in range(hidden)), *after]


def _expand(node: Node, term: str, dots: Sequence[str]) -> list[str]:
    before, ellipsis, after = term.partition("...")
    letters = before + after
    if (letters and not letters.isalpha()) or not letters.isascii():
        raise node.fail(f"einsum term {term!r} is malformed")
    return [*before, *(dots if ellipsis else ()), *after]


def of_matrices(node: Node, function: Callable[[Array], Array], kind: str) -> Sequence[Result]:
    """A function of numpy of square matrices, in float64; in C it is a routine of this kind."""
    x = node.required(0)
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise node.fail(f"an operand of shape {list(x.shape)} has no square matrices")

    def run(arrays: Sequence[Array | None], _: Sequence[Body]) -> Sequence[Array]:
        matrices = taken(arrays, 0)
        return [np.asarray(function(matrices.astype(np.float64))).astype(matrices.dtype)]

    size, outer = x.shape[-1], x.shape[:-2]
    shape, rows = (outer, size) if kind == "determinant" else (x.shape, 2 * size)
    arguments = math.prod(outer), size
    in_c = InC(
        kind, (shape,), arguments, scratch=(8, (rows, size)), failure="a matrix has no inverse",
        is_slow=not isinstance(size, int) or size > MOST_BY_HAND,
    )  # fmt: skip
    return opaque([x], [x.dtype], run, in_c if x.dtype in (FLOAT32, FLOAT64) else None)


@operator("Det")
def determinant(node: Node) -> Sequence[Result]:
    """The determinants of matrices."""
    return of_matrices(node, np.linalg.det, "determinant")
