"""Whole networks on a CUDA device; more of `cuda_scenarios`, and where all of them are started."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np

import farkas as fk
from benchmarks.gpu.clock import COPIES, COPY_SAMPLES, HostClock, copy_bandwidth
from farkas.device_target import DeviceTarget
from runtime.cache import Cache
from runtime.gpu_cuda import CudaDevice
from runtime.gpu_device import DeviceArray
from tests.gpu.networks import NETWORKS, Network
from tests.runtime.cuda_scenarios import (
    FOLDER,
    PACKAGE,
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
    model = fk.compile_onnx(made.model, target=DeviceTarget(on, Cache(FOLDER / "cache")))
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
