"""Limits on what a model file may ask for, checked before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from frontends.onnx.core.symbolic_dims import Dim, hint_of
from poly.errors import ModelError
from poly.ir.dtypes import DType

MAX_RANK = 16
MAX_TENSOR_BYTES = 1 << 36
MAX_MODEL_BYTES = (1 << 31) - 1  # protobuf's own limit for one message
MAX_NODES = 1 << 18
MAX_FANIN = 1 << 14
#: How deep functions and branches may be nested.
MAX_DEPTH = 64
#: The most elements of a known operand with which an opaque operator runs at import.
MAX_FOLDED = 1 << 16
#: Constants that a model describes without storing them (ConstantOfShape, Range, …), in total.
MAX_GENERATED_BYTES = 1 << 31


def checked_shape(dims: Sequence[Any], dtype: DType, what: str) -> tuple[Any, ...]:
    """The shape as plain integers, if a tensor can have it.

    Raises
    ------
    ModelError : for a negative extent, or a rank or size beyond the limits.
    """
    shape = tuple(d if isinstance(d, Dim) else int(d) for d in dims[: MAX_RANK + 1])
    if len(dims) > MAX_RANK:
        raise ModelError(f"{what} has rank {len(dims)}; at most {MAX_RANK} is possible")
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has a negative extent: {list(shape)}")
    # The strides of a tensor without elements must not overflow, either.
    if math.prod(max(hint_of(d), 1) for d in shape) * dtype.bytes > MAX_TENSOR_BYTES:
        raise ModelError(
            f"{what} of shape {list(shape)} would take more than {MAX_TENSOR_BYTES >> 30} GiB"
        )
    return shape
