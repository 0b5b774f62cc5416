"""Tensors of a model file, checked before anything is allocated."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import numpy as np
from onnx import TensorProto

from frontends.onnx.core.identifiers import printable
from frontends.onnx.core.limits import MAX_RANK, checked_shape
from frontends.onnx.core.node import Node, Unsupported
from poly.errors import ModelError
from poly.ir.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)

#: The element types that programs compute with, by their number in the file format.
ELEMENT_TYPES: dict[int, DType] = {
    TensorProto.FLOAT: FLOAT32,
    TensorProto.UINT8: UINT8,
    TensorProto.INT8: INT8,
    TensorProto.UINT16: UINT16,
    TensorProto.INT16: INT16,
    TensorProto.INT32: INT32,
    TensorProto.INT64: INT64,
    TensorProto.BOOL: BOOL,
    TensorProto.FLOAT16: FLOAT16,
    TensorProto.DOUBLE: FLOAT64,
    TensorProto.UINT32: UINT32,
    TensorProto.UINT64: UINT64,
    TensorProto.BFLOAT16: BFLOAT16,
}

#: Names of element types in schemas that differ from numpy's.
SCHEMA_TYPES = {"float32": "float", "float64": "double"}

_FIELDS = {
    FLOAT32: "float_data",
    FLOAT64: "double_data",
    INT64: "int64_data",
    UINT32: "uint64_data",
    UINT64: "uint64_data",
}


def element_type(number: int | str, node: Node) -> DType:
    """The element type with a number (or, in old models, a name) of the file format.

    Raises
    ------
    Unsupported : for a type that exists, but that programs do not compute with.
    ModelError : for one that does not exist.
    """
    if isinstance(number, str):
        try:
            number = int(TensorProto.DataType.Value(number))
        except ValueError:
            raise node.fail(f"there is no element type {number!r}") from None
    found = ELEMENT_TYPES.get(number)
    if found is None:
        if number == 0 or number not in TensorProto.DataType.values():
            raise node.fail(f"there is no element type number {number}")
        raise Unsupported(f"element type {type_name(number)}")
    return found


def type_name(number: int) -> str:
    """The name of an element type of the file format, in lower case."""
    if number in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(number)).lower()
    return f"number {number}"


def tensor_array(tensor: TensorProto, what: str, folder: Path | None) -> np.ndarray:
    """The elements of a tensor of a numeric type, as a read-only array if they can be shared.

    Parameters
    ----------
    tensor : must have an element type of `ELEMENT_TYPES`
    what : its name in messages
    folder : of the model, for external data; None if the model did not come from a file

    Raises
    ------
    ModelError : if the data does not fit the shape, or is stored outside the model's folder.
    """
    dtype = ELEMENT_TYPES.get(tensor.data_type)
    if dtype is None:
        raise ModelError(f"{what} has element type {type_name(tensor.data_type)}")
    if tensor.HasField("segment"):
        raise ModelError(f"{what} is stored in segments, which no longer exist")
    shape = checked_shape(tensor.dims, dtype, what)
    count = math.prod(shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        raw = external_bytes(tensor, what, folder, count * dtype.bytes)
        array = raw.view(dtype.numpy) if count else np.zeros(0, dtype.numpy)
    elif tensor.HasField("raw_data"):
        raw_bytes = tensor.raw_data
        if len(raw_bytes) != count * dtype.bytes:
            raise ModelError(
                f"{what} of shape {list(shape)} needs {count * dtype.bytes} bytes, "
                f"but has {len(raw_bytes)}"
            )
        array = np.frombuffer(raw_bytes, dtype.numpy.newbyteorder("<"))
        array = array.astype(dtype.numpy, copy=False)
    else:
        values = getattr(tensor, _FIELDS.get(dtype, "int32_data"))
        if len(values) != count:
            raise ModelError(
                f"{what} of shape {list(shape)} needs {count} elements, but has {len(values)}"
            )
        array = _typed(values, dtype, what)
    shaped: np.ndarray = array.reshape(shape)
    # A file may hold any byte for a bool, but true is 1.
    return shaped.view(np.uint8).astype(np.bool_) if dtype == BOOL else shaped


def string_array(tensor: TensorProto, what: str) -> np.ndarray:
    """The elements of a tensor of strings.

    Raises
    ------
    ModelError : if their number does not match the shape.
    """
    shape = tuple(tensor.dims)
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        raise ModelError(f"{what} has the impossible shape {list(shape)[:MAX_RANK]}")
    if tensor.data_location == TensorProto.EXTERNAL or math.prod(shape) != len(tensor.string_data):
        raise ModelError(
            f"{what} of shape {list(shape)} needs {math.prod(shape)} strings, "
            f"but has {len(tensor.string_data)}"
        )
    array = np.empty(len(tensor.string_data), object)
    array[:] = [s.decode("utf-8", "replace") for s in tensor.string_data]
    return array.reshape(shape)


def _typed(values: object, dtype: DType, what: str) -> np.ndarray:
    """The elements of a typed field; 16-bit floats are stored as their bits."""
    wide = np.array(values, dtype={"f": np.float64, "u": np.uint64}.get(dtype.kind, np.int64))
    if dtype in (FLOAT16, BFLOAT16):
        wide = np.array(values, dtype=np.int64)
        if wide.size and not 0 <= int(wide.min()) <= int(wide.max()) < 1 << 16:
            raise ModelError(f"{what} holds a number that is not 16 bits wide")
        return wide.astype(np.uint16).view(dtype.numpy)
    if dtype == BOOL:
        return wide.astype(np.int32).astype(np.bool_)
    if dtype.is_integer and wide.size:
        info = np.iinfo(dtype.numpy)
        if not info.min <= int(wide.min()) <= int(wide.max()) <= info.max:
            raise ModelError(f"{what} holds a number that does not fit {dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        narrow: np.ndarray = wide.astype(dtype.numpy)
    return narrow


def external_bytes(tensor: TensorProto, what: str, folder: Path | None, size: int) -> np.ndarray:
    """The bytes of a tensor that is stored in a file of its own."""
    if folder is None:
        raise ModelError(f"{what} is stored in another file; pass the path of the model")
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    shown = printable(location)
    parts = Path(location.replace("\\", "/")).parts
    if (
        not parts
        or "\0" in location
        or ":" in parts[0]
        or ".." in parts
        or Path(location).is_absolute()
        or location.startswith(("/", "\\"))
    ):
        raise ModelError(f"{what} names '{shown}', which is not a file in the folder of the model")
    numbers = {}
    for key, default in (("offset", 0), ("length", size)):
        text = entries.get(key, str(default))
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise ModelError(f"{what}: {key} '{printable(text)}' is not a number")
        numbers[key] = int(text)
    if numbers["length"] != size:
        raise ModelError(f"{what} needs {size} bytes, but the file says {numbers['length']}")
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, location))
    if os.path.commonpath([root, path]) != root:
        raise ModelError(f"{what}: '{shown}' leads out of the folder of the model")
    try:
        with open(path, "rb", opener=_no_wait) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{what}: '{shown}' is not a regular file")
            if numbers["offset"] + size > status.st_size:
                raise ModelError(f"{what} extends past the end of '{shown}'")
            file.seek(numbers["offset"])
            data = np.fromfile(file, dtype=np.uint8, count=size)
    except OSError as error:
        raise ModelError(f"{what}: '{shown}' cannot be read: {error.strerror}") from error
    if data.size != size:
        raise ModelError(f"{what} extends past the end of '{shown}'")
    return data


def _no_wait(path: str, flags: int) -> int:
    """Open without waiting, so that a pipe that nobody writes to cannot hang the import."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
