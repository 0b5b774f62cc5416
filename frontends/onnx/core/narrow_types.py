"""Types of few bits, in which weights are stored: 4-bit integers, and floats of 8 or 4 bits.

Programs do not compute with them.  Tensors of a model are read into a type that holds all of their
values, and operators that convert them read that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper

from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.limits import checked_shape
from frontends.onnx.core.node import Value
from frontends.onnx.core.tensors import ELEMENT_TYPES, external_bytes
from poly.errors import ModelError
from poly.ir.dtypes import FLOAT16, INT8, UINT8, DType

#: For each type the one that holds its values.
CARRIERS = {
    DType("int4", "i", 4): INT8,
    DType("uint4", "u", 4): UINT8,
    DType("float8e4m3fn", "f", 8): FLOAT16,
    DType("float8e4m3fnuz", "f", 8): FLOAT16,
    DType("float8e5m2", "f", 8): FLOAT16,
    DType("float8e5m2fnuz", "f", 8): FLOAT16,
    DType("float4e2m1", "f", 4): FLOAT16,
}
#: The types by their number in the file format, as far as the onnx package knows them.
NARROW_TYPES: dict[int, DType] = {
    TensorProto.DataType.Value(d.name.upper()): d
    for d in CARRIERS
    if d.name.upper() in {*TensorProto.DataType.keys()}
}


def carried(value: Value) -> Value:
    """A value in the type that holds its elements."""
    return replace(value, dtype=CARRIERS.get(value.dtype, value.dtype))


def load_external(tensor: TensorProto, folder: Path | None) -> None:
    """Move the bytes of a tensor of any type from its file into it.

    Raises
    ------
    ModelError : if the data does not fit the shape, or is stored outside the model's folder.
    """
    what = f"initializer '{printable(tensor.name)}'"
    dtype = (ELEMENT_TYPES | NARROW_TYPES).get(tensor.data_type)
    if dtype is None:
        raise ModelError(f"{what} has an element type that cannot be stored in another file")
    shape = checked_shape(tensor.dims, CARRIERS.get(dtype, dtype), what)
    size = -(-math.prod(shape) * dtype.bits // 8)
    tensor.raw_data = external_bytes(tensor, what, folder, size).tobytes()
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def narrow_array(tensor: TensorProto, what: str, folder: Path | None) -> np.ndarray:
    """The elements of a tensor of a type of `NARROW_TYPES`, in the type that holds them.

    Raises
    ------
    ModelError : if the data does not fit the shape, or is stored outside the model's folder.
    """
    dtype = NARROW_TYPES[tensor.data_type]
    shape = checked_shape(tensor.dims, CARRIERS[dtype], what)
    size = -(-math.prod(shape) * dtype.bits // 8)
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = external_bytes(tensor, what, folder, size).tobytes()
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        values = np.array(tensor.int32_data, np.int64)
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < 256:
            raise ModelError(f"{what} holds a number that is not 8 bits wide")
        raw = values.astype(np.uint8).tobytes()
    if len(raw) != size:
        raise ModelError(f"{what} of shape {list(shape)} needs {size} bytes, but has {len(raw)}")
    plain = TensorProto(data_type=tensor.data_type, dims=shape, raw_data=raw)
    found: np.ndarray = numpy_helper.to_array(plain).astype(CARRIERS[dtype].numpy)
    return found
