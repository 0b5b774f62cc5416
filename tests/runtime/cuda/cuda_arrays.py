"""Arrays of other libraries on a CUDA device; more of `cuda_scenarios`."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.ir.dtypes import BFLOAT16
from runtime.gpu.device import DeviceArray
from runtime.gpu.interop import borrow
from tests.runtime.cuda.cuda_scenarios import (
    PACKAGE,
    Interface,
    Producer,
    calls,
    device,
    forget,
    matrices,
    product,
    scenario,
    setting,
)


@scenario
def arrays_of_the_array_interface() -> None:
    here = device()
    run = product(here)
    a, b = matrices()
    x, y = Interface(here.put(a)), Interface(here.put(b), stream=0x99)
    forget()
    c = run(x, y)
    assert isinstance(c, DeviceArray) and not calls("write")
    if PACKAGE != "pycuda":  # the stream of the first array that names one; 1 is the default one
        assert calls("launch")[0].endswith("stream 0") and "wait 153" in calls("wait")
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)
    out = Interface(here.put(np.zeros((21, 37), np.float32)))
    assert run(x, y, out=out) is out
    np.testing.assert_allclose(out.array.numpy(), a @ b, rtol=1e-5)
    forget()
    for wrong, message in (
        (Interface(x.array, strides=(4, 84)), "A is not C-contiguous, and arrays on a device"),
        (Interface(x.array, typestr="<f8"), "A has dtype float64, expected float32"),
        (Interface(x.array, typestr=">f4"), "A has float32 elements in foreign byte order"),
        (Interface(x.array, shape=(399,)), r"A has rank 1 \(shape \(399,\)\), expected rank 2"),
        (Interface(x.array, shape=(19, 21)), r"B.shape\[0\] is 19 but A.shape\[1\] makes K = 21"),
        (Interface(x.array, data=(x.array.handle + 2, False)), "A is not aligned to its elements"),
        (Interface(x.array, mask=x), "A is a Interface that cannot be used without a copy: it"),
    ):
        with pytest.raises(fk.ArgumentError, match=message):
            run(wrong, y)
    assert not calls("launch")
    strided = Interface(x.array, strides=(19 * 4, 4))
    np.testing.assert_allclose(run(strided, y).numpy(), a @ b, rtol=1e-5)


@scenario
def arrays_on_streams_that_may_end() -> None:
    """Who made a stream may destroy it, and the array does not keep it."""
    here = device()
    run = product(here)
    a, b = matrices(5, 16, 16, 16)
    x, y = here.put(a), here.put(b)
    made = run(Interface(x, stream=0x99), y)
    if PACKAGE != "pycuda":
        assert calls("launch")[-1].endswith("stream 153")
    forget()
    again = run(made, y)
    np.testing.assert_allclose(again.numpy(), a @ b @ b, rtol=1e-4)
    run(x, x, out=y)  # which that stream has read
    assert not any("153" in c for c in calls())
    np.testing.assert_allclose(y.numpy(), a @ a, rtol=1e-5)


@scenario
def streams_that_may_end_are_left_by_calls_that_fail() -> None:
    here = device()
    run = product(here)
    a, b = matrices(5, 16, 16, 16)
    x, y = here.put(a), here.put(b)
    forget()
    for out, message in ((here.put(a[:3]), "shape"), (x, "out C overlaps A in memory")):
        with pytest.raises(fk.ArgumentError, match=message):
            run(Interface(x, stream=0x99), x, out=out)
    forget()
    np.testing.assert_array_equal(x.numpy(), a)
    run(y, y, out=x)
    assert not any("153" in c for c in calls())


@scenario
def arrays_of_another_card() -> None:
    """The array interface does not say where its memory is."""
    if PACKAGE == "pycuda":  # which does not ask the driver
        return
    here, other = device(), device(1)
    a, b = matrices()
    with pytest.raises(fk.ArgumentError, match="A is on cuda:1, but the program runs on cuda:0"):
        product(here)(Interface(other.put(a)), here.put(b))
    with setting(managed=1):  # which all cards have
        found = product(here)(Interface(other.put(a)), here.put(b))
    np.testing.assert_allclose(found.numpy(), a @ b, rtol=1e-5)


@scenario
def arrays_of_bfloat16() -> None:
    """The array interface has no name for them."""
    found = device().put(np.zeros(4, BFLOAT16.numpy))
    assert not hasattr(found, "__cuda_array_interface__")
    back = borrow("X", found, 0)
    assert back is not None and back.dtype == found.dtype


@scenario
def arrays_of_dlpack() -> None:
    here = device()
    run = product(here)
    a, b = matrices()
    x, y = Producer(here.put(a)), Producer(here.put(b))
    c = run(x, y, stream=0x55)
    assert x.streams == y.streams == [0x55]
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)
    run(x, y)
    assert x.streams[1:] == [1]  # 0 is not allowed, it means the default one
    with pytest.raises(fk.ArgumentError, match="A is on cuda:1, but the program runs on cuda:0"):
        run(Producer(x.array, (2, 1)), y)
    with pytest.raises(fk.ArgumentError, match="A is on a device of kind 4 in DLPack"):
        run(Producer(x.array, (4, 0)), y)
    with pytest.raises(fk.ArgumentError, match="A is a Producer, expected a numpy array"):
        run(Producer(x.array, (1, 0)), y)
    other = device(1)
    with pytest.raises(fk.ArgumentError, match="B is on cuda:1, but the program runs on cuda:0"):
        run(a, other.put(b))

    class Raises:
        def __dlpack_device__(self) -> tuple[int, int]:
            raise BufferError("it is not at hand")

        __dlpack__ = __dlpack_device__

    with pytest.raises(
        fk.ArgumentError,
        match="Raises that cannot be used without a copy: it is not at hand",
    ):
        run(Raises(), y)

    class Gradient(Producer):
        """As a tensor of torch that requires one."""

        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("it requires a gradient")

        def __dlpack__(self, stream: Any = None) -> Any:
            raise BufferError("it requires a gradient")

    with pytest.raises(fk.ArgumentError, match=r"A is a Gradient that cannot be .* a gradient"):
        run(Gradient(x.array), y)
    back = borrow("C", c, 0)
    assert back is not None and back.device == (2, 0) and back.shape == c.shape
    assert back.address == c.handle and back.contiguous


@scenario
def tensors_of_torch_are_used_on_its_stream() -> None:
    """Torch tells neither interface which stream it is at work on."""
    here = device()
    run = product(here)
    a, b = matrices()

    class Tensor(Producer):
        device = "cuda:0"

    queue = SimpleNamespace(cuda_stream=0x42)
    cuda = SimpleNamespace(current_stream=lambda device: {"cuda:0": queue}[device])
    sys.modules["torch"] = SimpleNamespace(Tensor=Tensor, cuda=cuda)  # type: ignore[assignment]
    try:
        x = Tensor(here.put(a))
        forget()
        c = run(x, here.put(b))
    finally:
        del sys.modules["torch"]
    assert x.streams == [0x42]
    if PACKAGE != "pycuda":
        assert calls("launch")[0].endswith("stream 66")
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)


@scenario
def temporaries_of_others_are_read_before_they_are_used_again() -> None:
    """Who gives an array up on one stream does not wait for another one."""
    if PACKAGE == "pycuda":  # which waits around streams of others
        return
    here = device()
    run = product(here)
    a, b = matrices()
    x, y = Interface(here.put(a), stream=0x10), here.put(b)
    run(x, y, stream=0x10)
    forget()
    run(x, y, stream=0x10)
    assert not calls("wait")
    run(x, y, stream=0x20)
    assert calls("wait")[-1] == "wait 32"
