"""Exchange arrays with other libraries without a copy: DLPack and the CUDA array interface.

For DLPack, this is the structure before version 1, which producers return to consumers that do not
ask for a version, and which all consumers accept.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from poly.errors import ArgumentError
from poly.ir.dtypes import BFLOAT16
from runtime.common.arguments import Shape

#: Kinds of devices in DLPack.
HOST, CUDA, CUDA_MANAGED = 1, 2, 13

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_KINDS = {"i": _INT, "u": _UINT, "f": _FLOAT, "b": _BOOL}
_NAME = b"dltensor"  # kept alive: a capsule does not copy its name


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]

# Not ctypes.pythonapi, whose argument types are shared with all libraries.
_PYTHON = ctypes.PyDLL(None)
_new_capsule = _PYTHON.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _DESTRUCTOR]
# By address, since a capsule that is being destroyed must not be referenced.
_is_valid, _pointer_of = _PYTHON.PyCapsule_IsValid, _PYTHON.PyCapsule_GetPointer
for _function in (_is_valid, _pointer_of):
    _function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_is_valid.restype, _pointer_of.restype = ctypes.c_int, ctypes.c_void_p

#: Tensors that consumers have not returned yet, by address.
_LENT: dict[int, tuple[Any, ...]] = {}


@dataclass(frozen=True)
class Lent:
    """An array of another library: its address, and what keeps it alive.

    address : of its first element; device : kind and number in DLPack, None where it does not say
    strides : in elements; None for an array that is C-contiguous
    stream : the one on which it is computed; None if it does not say
    """

    address: int
    shape: Shape
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None
    device: tuple[int, int] | None
    writeable: bool
    stream: int | None
    owner: Any

    @property
    def contiguous(self) -> bool:
        """Whether it is C-contiguous."""
        expected = 1
        if self.strides is None or 0 in self.shape:
            return True
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True


# --- to other libraries -------------------------------------------------------------------------


def _given_back(managed: Any) -> None:
    _LENT.pop(ctypes.addressof(managed.contents), None)


def _ended(capsule: int) -> None:
    if _is_valid(capsule, _NAME):  # no consumer has taken it
        _LENT.pop(_pointer_of(capsule, _NAME), None)


_delete, _destroy = _DELETER(_given_back), _DESTRUCTOR(_ended)


def dlpack_capsule(
    address: int, shape: Shape, dtype: np.dtype[Any], device: tuple[int, int], owner: Any
) -> Any:
    """A capsule for a C-contiguous array; `owner` is kept until its consumer returns it.

    Raises
    ------
    BufferError : DLPack has no such element type.
    """
    if dtype == BFLOAT16.numpy:
        code = _BFLOAT
    elif dtype.kind in _KINDS:
        code = _KINDS[dtype.kind]
    else:
        raise BufferError(f"DLPack has no element type {dtype}")
    step, strides = 1, list[int]()
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps = (ctypes.c_int64 * max(1, len(shape)))(*strides)
    tensor = _Tensor(
        address, *device, len(shape), code, dtype.itemsize * 8, 1,
        ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64)), 0,
    )  # fmt: skip
    managed = _Managed(tensor, None, _delete)
    address_of = ctypes.addressof(managed)
    _LENT[address_of] = (managed, extents, steps, owner)
    return _new_capsule(address_of, _NAME, _destroy)


def cuda_interface(address: int, shape: Shape, dtype: np.dtype[Any], stream: int) -> dict[str, Any]:
    """``__cuda_array_interface__``, version 3, of a C-contiguous array.

    Raises
    ------
    AttributeError : it has no such element type.
    """
    if dtype == BFLOAT16.numpy:
        raise AttributeError("the CUDA array interface has no bfloat16; use DLPack, which has it")
    return {
        "shape": shape,
        "typestr": dtype.str,
        "data": (0 if 0 in shape else address, False),
        "version": 3,
        "strides": None,
        "stream": stream or 1,  # 0 is not allowed, since it is ambiguous
    }


# --- from other libraries -----------------------------------------------------------------------


def borrow(name: str, value: Any, stream: int) -> Lent | None:
    """An array of another library; None if it offers neither interface.

    With DLPack, its library makes the stream wait for the work on it.

    stream : the CUDA stream on which it will be used, 0 for the default one

    Raises
    ------
    ArgumentError : it cannot be exported (for example a tensor that requires a gradient), or its
        elements are not numbers.
    """
    try:
        if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
            return _from_dlpack(value, stream)
        interface = getattr(value, "__cuda_array_interface__", None)
        return None if interface is None else _from_interface(value, interface)
    except ArgumentError:
        raise
    except Exception as error:  # other libraries raise anything
        raise ArgumentError(
            f"{name} is a {type(value).__name__} that cannot be used without a copy: {error}"
        ) from error


def _from_dlpack(value: Any, stream: int) -> Lent:
    kind, number = value.__dlpack_device__()
    on_cuda = kind in (CUDA, CUDA_MANAGED)
    capsule = value.__dlpack__(stream=stream or 1) if on_cuda else value.__dlpack__()
    # The capsule is kept and not marked as consumed: it frees the memory itself when it is deleted.
    pointer = _pointer_of(id(capsule), _NAME)
    t = _Managed.from_address(pointer).tensor
    strides = tuple(t.strides[: t.ndim]) if t.strides else None
    dtype = _dtype_of(t.code, t.bits, t.lanes)
    address = (t.data or 0) + t.byte_offset
    shape = tuple(t.shape[: t.ndim])
    return Lent(address, shape, dtype, strides, (kind, number), True, None, (capsule, value))


def _dtype_of(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if lanes == 1 and code == _BFLOAT and bits == 16:
        return BFLOAT16.numpy
    if lanes == 1 and code == _BOOL and bits == 8:
        return np.dtype(np.bool_)
    names: dict[int, str] = {_INT: "int", _UINT: "uint", _FLOAT: "float"}
    if lanes == 1 and code in names and bits in (8, 16, 32, 64) and (code, bits) != (_FLOAT, 8):
        found: np.dtype[Any] = np.dtype(f"{names[code]}{bits}")
        return found
    raise ValueError(f"its elements (DLPack: kind {code}, {bits} bits, {lanes} lanes) are unknown")


def _from_interface(value: Any, interface: dict[str, Any]) -> Lent:
    address, read_only = interface["data"]
    dtype = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        if any(s % dtype.itemsize for s in strides):
            raise ValueError("its strides are not multiples of its element size")
        strides = tuple(s // dtype.itemsize for s in strides)
    if interface.get("mask") is not None:
        raise ValueError("it has a mask")
    shape = tuple(interface["shape"])
    stream = interface.get("stream")
    return Lent(
        address or 0, shape, dtype, strides, None, not read_only,
        None if stream is None else int(stream), value,
    )  # fmt: skip
