"""Tensors of one value, and of none."""

from __future__ import annotations

from collections.abc import Sequence

from frontends.onnx.core.comprehension_text import at, declare, function, line, literal, names
from frontends.onnx.core.node import Compute
from poly.ir.dtypes import BOOL, DType


def filled(shape: Sequence[int], dtype: DType, value: str) -> Compute:
    """A tensor of one value."""
    indices = names(len(shape))
    text = f"{dtype}({value})" if dtype == BOOL else value
    body = line(f"{at('Y', indices)} = {text}", dict(zip(indices, shape, strict=True)))
    return Compute(function("fill", [], [declare("Y", dtype, shape)], [body]), ())


def nothing(shape: Sequence[int], dtype: DType) -> Compute:
    """A tensor without elements."""
    return filled(shape, dtype, literal(0.0) if dtype.is_float else literal(0))
