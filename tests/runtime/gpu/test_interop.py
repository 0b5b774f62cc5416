"""Arrays of other libraries: what is read of DLPack and the CUDA array interface, and written."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.ir.dtypes import DTYPES
from runtime.gpu import interop as gpu_exchange
from runtime.gpu.interop import HOST, borrow, cuda_interface, dlpack_capsule


class Producer:
    def __init__(self, array: Any, place: tuple[int, int] = (HOST, 0)) -> None:
        self.array, self.place = array, place

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **_: Any) -> Any:
        a = self.array
        return dlpack_capsule(a.ctypes.data, a.shape, a.dtype, self.place, a)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
def test_there_and_back(name: str, shape: tuple[int, ...]) -> None:
    a = np.arange(int(np.prod(shape))).astype(DTYPES[name].numpy).reshape(shape)
    lent = borrow("A", Producer(a), 0)
    assert lent is not None
    assert (lent.address, lent.shape, lent.dtype) == (a.ctypes.data, a.shape, a.dtype)
    assert lent.contiguous and lent.device == (HOST, 0)
    if name != "bfloat16":  # which numpy's importer does not know
        np.testing.assert_array_equal(np.from_dlpack(Producer(a)), a)


def test_what_numpy_lends() -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for view, contiguous in (
        (a, True), (a[1:], True), (a[:, :, 1:], False), (a.T, False), (a[:, :1, :1], False),
        (a[:1, :, :][:, :1], True), (a[:0, :, 1], True),
    ):  # fmt: skip
        lent = borrow("A", view, 0)
        assert lent is not None and lent.shape == view.shape
        assert lent.contiguous == contiguous == view.flags.c_contiguous
        assert lent.address == view.ctypes.data or view.size == 0


def test_memory_is_kept_and_given_back() -> None:
    gc.collect()
    before = len(gpu_exchange._LENT)
    view = np.from_dlpack(Producer(np.arange(3.0)))
    untaken = Producer(np.arange(3.0)).__dlpack__()
    lent = borrow("A", Producer(np.arange(3.0)), 0)
    gc.collect()
    assert len(gpu_exchange._LENT) == before + 3
    assert view.tolist() == [0, 1, 2] and lent is not None
    seen = ctypes.cast(lent.address, ctypes.POINTER(ctypes.c_double))
    assert seen[:3] == [0, 1, 2]
    del view, untaken, lent
    gc.collect()
    assert len(gpu_exchange._LENT) == before


def test_elements_that_are_no_numbers() -> None:
    with pytest.raises(BufferError, match="DLPack has no element type datetime64"):
        dlpack_capsule(0, (), np.dtype("M8[s]"), (HOST, 0), None)
    with pytest.raises(fk.ArgumentError, match=r"A is a ndarray that cannot be .*kind 5, 64 bits"):
        borrow("A", np.zeros(3, np.complex64), 0)


def test_what_others_call_python_by_stays() -> None:
    """Types of arguments of ctypes.pythonapi are those of the whole process."""
    assert gpu_exchange._new_capsule is not ctypes.pythonapi.PyCapsule_New
    with pytest.raises(AttributeError, match="has no bfloat16; use DLPack"):
        cuda_interface(64, (2,), DTYPES["bfloat16"].numpy, 0)


def test_the_array_interface() -> None:
    value = SimpleNamespace(
        __cuda_array_interface__=cuda_interface(64, (2, 3), np.dtype(np.int16), 0)
    )
    assert value.__cuda_array_interface__ == {
        "shape": (2, 3), "typestr": "<i2", "data": (64, False), "version": 3, "strides": None,
        "stream": 1,
    }  # fmt: skip
    lent = borrow("A", value, 0)
    assert lent is not None and lent.contiguous and lent.writeable
    assert (lent.address, lent.shape, lent.dtype, lent.stream) == (64, (2, 3), np.int16, 1)
    value.__cuda_array_interface__ |= {"strides": (2, 4), "data": (64, True), "stream": None}
    lent = borrow("A", value, 0)
    assert lent is not None and not lent.contiguous and not lent.writeable and lent.stream is None
    assert lent.strides == (1, 2)
    value.__cuda_array_interface__["strides"] = (3, 1)
    with pytest.raises(fk.ArgumentError, match="its strides are not multiples of its element size"):
        borrow("A", value, 0)
    assert borrow("A", [1.0], 0) is None
