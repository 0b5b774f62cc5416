"""Whole networks on a CUDA device; more of `cuda_scenarios`, and where all of them are started."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

import farkas as fk
from benchmarks.gpu.clock import COPIES, COPY_SAMPLES, HostClock, copy_bandwidth
from farkas.targets.find_target import device_target
from runtime.common.cache import Cache
from runtime.cuda.device import CudaDevice
from runtime.gpu.device import DeviceArray
from tests.gpu.networks import NETWORKS, Network
from tests.runtime.cuda import cuda_arrays  # noqa: F401  its scenarios are started here, too
from tests.runtime.cuda.cuda_scenarios import (
    FOLDER,
    PACKAGE,
    Interface,
    calls,
    device,
    driver,
    forget,
    main,
    matrices,
    product,
    scenario,
    setting,
)


def network(on: CudaDevice, name: str = "image") -> tuple[Any, Network, Any]:
    """A model on the device, what it was made of, and what it gives for the arrays."""
    made = NETWORKS[name]()
    model = fk.compile_onnx(made.model, target=device_target(on, Cache(FOLDER / "cache")))
    expected = fk.compile_onnx(made.model, cache=FOLDER / "cache").run(made.arrays[0])
    return model, made, expected["y"]


@scenario
def networks_are_recorded_and_started_at_once() -> None:
    model, made, expected = network(device())
    count = model.report.calls
    for turn in range(4):
        forget()
        found = model.run(made.arrays[0])
        np.testing.assert_allclose(found["y"], expected, rtol=1e-4)
        if PACKAGE == "pycuda":  # which knows no graphs
            assert len(calls("launch")) == count and not calls("start")
            continue
        # One by one first, which loads the kernels; then they are recorded.
        assert len(calls("launch")) == (count if turn < 2 else 0)
        assert calls("record") == (["record"] if turn == 1 else [])
        assert calls("start") == ([f"start {count} launches stream 0"] if turn else [])
        assert len(calls("write")) == 1 and len(calls("read")) == 1


@scenario
def what_a_driver_does_not_record_still_runs() -> None:
    model, made, expected = network(device())
    with setting(records=0):
        for _ in range(3):
            forget()
            found = model.run(made.arrays[0])
            np.testing.assert_allclose(found["y"], expected, rtol=1e-4)
            assert len(calls("launch")) == model.report.calls and not calls("start")


@scenario
def others_go_on_while_launches_are_recorded() -> None:
    if PACKAGE == "pycuda":
        return
    here = device()
    run = product(here)
    a, b = matrices()
    x, y = here.put(a), here.put(b)
    run(x, y)
    given_back = [here.put(a)]
    given_back[0].handle  # noqa: B018
    found: list[Any] = []

    def meanwhile() -> None:
        other = threading.Thread(target=lambda: found.append(run(x, y).numpy()))
        other.start()
        other.join()
        given_back.clear()  # as the garbage collector may on this thread
        assert not calls("free") and not calls("wait all")

    model, made, expected = network(here)
    model.run(made.arrays[0])
    forget()
    with while_recording(here, meanwhile):
        again = model.run(made.arrays[0])["y"]
    np.testing.assert_allclose(found[0], a @ b, rtol=1e-5)
    np.testing.assert_allclose(again, expected, rtol=1e-4)
    assert calls("record") and calls("start") and len(calls("free")) == 1


@scenario
def what_cannot_be_freed_now_is_freed_later() -> None:
    """Others may record, too, and the driver waits for nothing meanwhile."""
    if PACKAGE == "pycuda":
        return
    here = device()
    here.pool._limit = 1024
    kept = [here.put(np.zeros(128, np.float32)) for _ in range(4)]
    lent = here.put(np.zeros(4096, np.float32))
    lent.handle  # noqa: B018
    before = driver().stand_in_memory()

    def give_back() -> None:
        nonlocal lent
        del lent
        kept.clear()
        assert driver().stand_in_memory() == before

    here.launcher.record(lambda stream: give_back())
    assert driver().stand_in_memory() == before - 2 * 512 - 4 * 4096
    taken = [here.pool.take(512, here.default_stream) for _ in range(3)]
    assert len({buffer.handle for buffer in taken}) == 3  # and none of them twice


@scenario
def a_recording_that_was_disturbed_is_made_again() -> None:
    if PACKAGE == "pycuda":
        return
    here = device()
    model, made, expected = network(here)

    def disturb() -> None:
        with suppress(fk.ToolchainError), here.launcher._current():  # type: ignore[attr-defined]
            here.launcher._call("cuCtxSynchronize")  # type: ignore[attr-defined]

    model.run(made.arrays[0])
    for turn in range(3):
        forget()
        with while_recording(here, disturb if turn == 0 else lambda: None):
            found = model.run(made.arrays[0])["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        assert calls("record") == ([] if turn == 2 else ["record"])
        assert bool(calls("start")) == (turn > 0)


@contextmanager
def while_recording(here: CudaDevice, also: Callable[[], None]) -> Iterator[None]:
    """With something that is done whenever launches are recorded."""
    launcher: Any = here.launcher
    record = launcher.record

    def work_and(work: Callable[[Any], None]) -> Any:
        def both(stream: Any) -> None:
            work(stream)
            also()

        return record(both)

    launcher.record = work_and
    try:
        yield
    finally:
        del launcher.record


@scenario
def networks_on_streams() -> None:
    here = device()
    model, made, expected = network(here)
    x = here.put(made.arrays[0]["x"])
    forget()
    first = model.run({"x": x})["y"]
    assert isinstance(first, DeviceArray) and not calls("wait") and not calls("read")
    again = model.run({"x": x}, stream=0x1234)["y"]
    waited = calls("wait")
    third = model.run({"x": x}, stream=0x1234)["y"]
    if PACKAGE != "pycuda":  # which waits around streams of others
        assert waited == calls("wait") == ["wait 0"]  # for what uses the same memory
    for found in (first, again, third):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    wide = here.put(np.zeros_like(expected))
    assert model.run({"x": x}, out={"y": wide})["y"] is wide
    np.testing.assert_allclose(wide.numpy(), expected, rtol=1e-4)


@scenario
def networks_on_streams_that_end() -> None:
    here = device()
    model, made, expected = network(here)
    x = here.put(made.arrays[0]["x"])
    found = model.run({"x": Interface(x, stream=0x99)})["y"]
    forget()
    again = model.run({"x": x})["y"]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(again.numpy(), expected, rtol=1e-4)
    assert not any("153" in c for c in calls())


@scenario
def kernels_without_types_wait_for_nothing() -> None:
    here = device()
    target = device_target(here, Cache(FOLDER / "cache"))
    run = fk.compile("C[i,j] +=! A[i,k] * B[k,j]", target=target)
    a, b = matrices(4, 16, 16, 16)
    x, y = here.put(a), here.put(b)
    once = run(x, y, stream=0x1234)
    forget()
    twice = run(once, y, stream=0x1234)
    if PACKAGE != "pycuda":  # which waits around streams of others
        assert not calls("wait")
    assert not calls("free")
    np.testing.assert_allclose(twice.numpy(), a @ b @ b, rtol=1e-4)
    foreign = Interface(x, stream=0x99)
    forget()
    np.testing.assert_allclose(run(foreign, y).numpy(), a @ b, rtol=1e-4)
    if PACKAGE != "pycuda":
        assert calls("wait 153") == ["wait 153"]  # at the end, since that stream may, too


@scenario
def networks_give_back_what_they_had() -> None:
    here = device()
    before = driver().stand_in_memory(), driver().stand_in_graphs()
    model, made, _ = network(here)
    for _ in range(3):
        model.run(made.arrays[0])
    assert driver().stand_in_memory() > before[0]
    del model
    gc.collect()
    here.pool.clear()
    assert (driver().stand_in_memory(), driver().stand_in_graphs()) == before


@scenario
def networks_of_open_sizes() -> None:
    model, made, _ = network(device(), "open batch")
    plain = fk.compile_onnx(made.model, cache=FOLDER / "cache")
    for _ in range(3):
        for arrays in made.arrays:
            found, expected = model.run(arrays)["y"], plain.run(arrays)["y"]
            np.testing.assert_allclose(found, expected, rtol=1e-4)


@scenario
def kernels_that_round_take_the_arrays_of_those_that_do_not() -> None:
    here = device()
    rounding = here.variant("cuda:0,tf32", replace(here.machine, rounded_float32=True))
    run = product(rounding)
    a, b = matrices()
    one, other = here.put(a), rounding.put(b)
    forget()
    found = run(one, other)
    assert found.device.name == "cuda:0,tf32" and not calls("write") and not calls("copy")
    ones = np.ones((37, 3), np.float32)
    again = product(here)(found, here.put(ones)).numpy()
    np.testing.assert_allclose(again, a @ b @ ones, rtol=1e-5)


@scenario
def copies_on_the_device_are_timed() -> None:
    forget()
    assert copy_bandwidth(device(), HostClock(), 4096) > 0
    # Each sample is handed over twice.
    assert calls("copy") == ["copy 4096 stream 0"] * (2 * COPIES * COPY_SAMPLES)


if __name__ == "__main__":
    main()
