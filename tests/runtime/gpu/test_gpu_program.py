"""Programs on a device are called as kernels are: on the emulator of CUDA, and through OpenCL.

What only CUDA has, and streams, is in `cuda_scenarios`.
"""

from __future__ import annotations

import copy
import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farkas as fk
from codegen.gpu.emit import generate_gpu
from runtime.common.cache import Cache
from runtime.find_device import find_device
from runtime.gpu.device import Device, DeviceArray
from runtime.gpu.emulator import CpuDevice
from runtime.gpu.gpu_program import GpuProgram
from runtime.reference.evaluate import evaluate
from tests.gpu.programs import CASES, HEAT, MATMUL

TILED = CASES["one point a thread"].script
TWO = """def two(float64 X[N]) -> (Y, Z) {
    Y[i] = 2 * X[i]
    Z[i] = Y[i] + 1 }"""
RANGE = "def count[N,M](int64 X[N]) -> (int64 Y[M]) { Y[i] = X[0] + i }"
TYPES = """def types(int8 A[N], uint8 B[N], int16 C[N], bool D[N], float64 E[N]) -> (Y) {
    Y[i] = float64(A[i]) + float64(B[i]) + float64(C[i]) + E[i] + select(D[i], 1.0, 0.0) }"""


@pytest.fixture(params=["cuda-emulator", "opencl"])
def device(request: pytest.FixtureRequest, cache: Cache) -> Device:
    if request.param == "opencl":
        pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    return find_device(request.param, cache)


def compiled(text: str, script: str, device: Device) -> GpuProgram:
    source = generate_gpu(fk.Schedule.of(fk.parse(text)).replay(script), device.dialect)
    return GpuProgram(source, device)


def product(device: Device) -> GpuProgram:
    return compiled(MATMUL, TILED, device)


def matrices(n: int = 9, k: int = 3, m: int = 17) -> tuple[Any, Any]:
    random = np.random.default_rng(n)
    return random.random((n, k), np.float32), random.random((k, m), np.float32)


def test_inputs_in_order_and_by_name(device: Device) -> None:
    run = product(device)
    a, b = matrices()
    expected = a @ b
    for result in (run(a, b), run(a, B=b), run(B=b, A=a), run(a, b, N=9), run(A=a, B=b, K=3)):
        assert isinstance(result, np.ndarray) and result.dtype == np.float32
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert run.quick((a, b), None, None, None) is NotImplemented
    assert run.quick_named((a,), None, None, {"B": b}) is NotImplemented


def test_sizes_that_no_shape_determines(device: Device) -> None:
    run = compiled(RANGE, "split S0: i by 4\nmap_blocks S0: i_o\nmap_threads S0: i_i", device)
    x = np.array([7, 8], np.int64)
    assert run(x, M=9).tolist() == list(range(7, 16))
    assert run(x, M=0).shape == (0,)
    assert run(device.put(x), M=3).numpy().tolist() == [7, 8, 9]
    with pytest.raises(fk.ArgumentError, match="no input's shape determines M: pass M=…"):
        run(x)


def test_several_outputs(device: Device) -> None:
    run = compiled(TWO, "", device)
    x = np.arange(5.0)
    y, z = run(x)
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(z, 2 * x + 1)
    there = device.put(np.zeros(5))
    z0 = np.zeros(5)
    first, second = run(x, out=(there, z0))
    assert first is there and second is z0
    np.testing.assert_array_equal(there.numpy(), 2 * x)
    for convert in (np.asarray, np.array):
        with pytest.raises(TypeError, match=r"not converted implicitly; use \.numpy"):
            convert(there)
    np.testing.assert_array_equal(z0, 2 * x + 1)
    first, second = run(device.put(x), out={"Z": z0})
    assert isinstance(first, DeviceArray) and second is z0
    np.testing.assert_array_equal(first.numpy(), 2 * x)
    with pytest.raises(fk.ArgumentError, match="out= has 1 arrays, but two has 2 outputs"):
        run(x, out=z0)
    with pytest.raises(fk.ArgumentError, match="two has no output 'W'; it has Y, Z"):
        run(x, out={"W": z0})
    with pytest.raises(fk.ArgumentError, match="out Z overlaps out Y in memory"):
        run(x, out=(there, there))


def test_a_call_like_an_earlier_one_is_quick(device: Device) -> None:
    run = product(device)
    a, b = matrices()
    x, y = device.put(a), device.put(b)
    assert run.quick((x, y), None, None, None) is NotImplemented  # nothing was checked yet
    out = run(x, y)
    again = run.quick((x, y), None, None, None)
    named = run.quick_named((), None, None, {"B": y, "A": x})
    mixed = run.quick_named((x,), None, None, {"B": y})
    for result in (again, named, mixed):
        assert isinstance(result, DeviceArray) and result is not out
        np.testing.assert_allclose(result.numpy(), a @ b, rtol=1e-5)
    x2 = device.put(2 * a)
    assert run.quick((x2, y), out, None, None) is out
    np.testing.assert_allclose(out.numpy(), 2 * a @ b, rtol=1e-5)


def test_what_is_not_like_an_earlier_call(device: Device) -> None:
    run = product(device)
    a, b = (np.eye(8, dtype=np.float32) for _ in range(2))
    x, y = device.put(a), device.put(b)
    out = run(x, y)
    odd = {
        "another shape": ((device.put(a[:4]), y), None),
        "another type": ((device.put(a.astype(np.float64)), y), None),
        "the host": ((x, b), None),
        "too few": ((x,), None),
        "no array": ((x, y), 3),
        "an input": ((x, y), x),
        "of another shape": ((x, y), device.put(a[:4])),
        "of another type": ((x, y), device.put(a.astype(np.int32))),
        "of the host": ((x, y), np.empty_like(a)),
    }
    for what, (arrays, to) in odd.items():
        assert run.quick(arrays, to, None, None) is NotImplemented, what
    assert run.quick((x, y), copy.copy(x), None, None) is NotImplemented
    assert run.quick_named((x, y), None, None, {"A": x, "B": y}) is NotImplemented
    assert run.quick((x, y), None, 1, None) is NotImplemented
    assert run.quick((x, y), None, None, {"N": 8}) is NotImplemented
    assert run.quick_named((), None, None, {"A": x, "N": 8}) is NotImplemented
    with pytest.raises(fk.ArgumentError, match="out C overlaps A in memory"):
        run(x, y, out=x)
    np.testing.assert_array_equal(out.numpy(), a)


def test_quick_calls_with_temporaries_and_several_results(device: Device) -> None:
    run = compiled(TWO, "", device)
    x = device.put(np.arange(5.0))
    run(x)
    y, z = run.quick((x,), None, None, None)
    np.testing.assert_array_equal(z.numpy(), 2 * np.arange(5.0) + 1)
    np.testing.assert_array_equal(y.numpy(), 2 * np.arange(5.0))
    assert run.quick((x,), (y, z), None, None) is NotImplemented
    text = "def f(float32 X[N]) -> (Y) { T[i] = 3 * X[i]; Y[i] = T[i] + 1 }"
    run, there = compiled(text, "", device), device.put(np.arange(7, dtype=np.float32))
    assert run.source.workspace
    run(there)
    found = run.quick((there,), None, None, None)
    np.testing.assert_array_equal(found.numpy(), 3 * np.arange(7) + 1)


def test_without_inputs_results_are_on_the_host(device: Device) -> None:
    run = compiled("def f() -> (float32 Y[4]) { Y[i] = 2 * i }", "", device)
    for _ in range(2):
        assert run.quick((), None, None, None) is NotImplemented
        assert isinstance(run(), np.ndarray)


def test_repeated_calls_name_inputs_in_any_order(device: Device) -> None:
    run = product(device)
    a, b = matrices()
    x, y, out = device.put(a), device.put(b), device.put(np.zeros((9, 17), np.float32))
    run.repeated({"B": y, "A": x}, out)(3)
    np.testing.assert_allclose(out.numpy(), a @ b, rtol=1e-5)
    with pytest.raises(fk.ArgumentError):
        run(device.put(a.T.copy()), device.put(b.T.copy()))
    with pytest.raises(fk.ArgumentError):
        run(device.put(np.ones((3, 17), np.float32)), x)


def test_what_is_updated_has_no_quick_call(device: Device) -> None:
    run = compiled("def f(float32 Y[N]) -> (Y) { Y[i] = Y[i] + 1 }", "", device)
    y = device.put(np.zeros(3, np.float32))
    assert run(y).numpy().tolist() == [1, 1, 1]
    assert run.quick((y,), None, None, None) is NotImplemented
    assert y.numpy().tolist() == [0, 0, 0]


def test_calls_are_repeated(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    record, started = type(device).record, list[int]()

    def recorded(self: Any, launches: Any) -> Any:
        start = record(self, launches)

        def run(stream: Any) -> None:
            started.append(len(launches))
            start(stream)

        return run

    monkeypatch.setattr(type(device), "record", recorded)
    text = "def f(float32 X[N]) -> (Y) { T[i] = 3 * X[i]; Y[i] = T[i] + 1 }"
    run = compiled(text, "", device)
    x, out = (device.put(np.full(7, n, np.float32)) for n in (2, 0))
    repeated = run.repeated({"X": x}, out)
    device.write(out.handle, np.zeros(7, np.float32), device.default_stream)
    repeated(0)
    assert not started
    repeated(37)
    assert started == [16, 16, 1, 1, 1, 1, 1]
    assert out.numpy().tolist() == [7] * 7


def test_updates_are_repeated(device: Device) -> None:
    run = compiled("def f(float32 Y[N]) -> (Y) { Y[i] = Y[i] + 1 }", "", device)
    y, out = (device.put(np.zeros(3, np.float32)) for _ in range(2))
    run.repeated({"Y": y}, out)(5)
    assert out.numpy().tolist() == [1, 1, 1] and y.numpy().tolist() == [0, 0, 0]


def test_outputs_stay_where_all_inputs_are(device: Device) -> None:
    run = product(device)
    a, b = matrices()
    x, y = device.put(a), device.put(b)
    c = run(x, y)
    assert isinstance(c, DeviceArray)
    assert (c.shape, c.ndim, c.nbytes, c.dtype) == ((9, 17), 2, 612, np.float32)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)
    assert isinstance(run(a, y), np.ndarray) and isinstance(run(x, b), np.ndarray)
    np.testing.assert_array_equal(x.numpy(), a)


def test_weights_stay(device: Device) -> None:
    """An array that is put once serves many calls, and later changes of its source do nothing."""
    run = product(device)
    a, b = matrices()
    weights, kept = device.put(b), b.copy()
    b[...] = 0
    for n in range(3):
        np.testing.assert_allclose(run(a + n, weights), (a + n) @ kept, rtol=1e-5)


def test_updates_in_place_and_not(device: Device) -> None:
    run = compiled(HEAT, CASES["the host runs time"].script, device)
    a = np.random.default_rng(0).random((5, 40)).astype(np.float32)
    (expected,) = evaluate(run.program, {"A": a}).values()
    before = a.copy()
    np.testing.assert_allclose(run(a), expected, rtol=1e-5)
    run(a + 1)
    there = device.put(a)
    np.testing.assert_allclose(run(there).numpy(), expected, rtol=1e-5)
    np.testing.assert_array_equal(there.numpy(), before)
    np.testing.assert_array_equal(a, before)
    other = device.put(np.zeros_like(a))
    assert run(there, out=other) is other and run(a, out=there) is there
    for array in (other, there):
        np.testing.assert_allclose(array.numpy(), expected, rtol=1e-5)
    assert run(a, out=a) is a
    np.testing.assert_allclose(a, expected, rtol=1e-5)


def test_what_does_not_fit_is_refused(device: Device) -> None:
    run = product(device)
    a, b = matrices()
    square = np.ones((4, 4), np.float32)
    x, y, z = device.put(a), device.put(b), device.put(square)
    for arguments, named, message in (
        ((a,), {}, "mm needs B, not given"),
        ((a, b, b), {}, r"mm takes 2 arrays \(A, B\), but 3 were given"),
        ((a, b), {"Q": 1}, "mm has no input or size 'Q'; it has A, B, N, K, M"),
        ((a, b), {"N": 8}, r"A.shape\[0\] is 9 but N = 8 was given"),
        ((a, b), {"threads": 2}, f"threads= is not supported on {device.name}"),
        ((a.astype(float), b), {}, "A has dtype float64, expected float32; use .astype"),
        ((device.put(a.astype(float)), y), {}, "A has dtype float64, expected float32; use .ast"),
        ((device.put(a[0]), y), {}, r"A has rank 1 \(shape \(3,\)\), expected rank 2: float32 A"),
        ((x, x), {}, r"B.shape\[0\] is 9 but A.shape\[1\] makes K = 3"),
        ((a.tolist(), b), {}, "A is a list, expected a numpy array of float32"),
        ((a[:, ::2], b[::2]), {"copy": False}, "A is not C-contiguous and would be copied"),
        ((x, y), {"out": np.zeros((9, 16), np.float32)}, "out C has shape"),
        ((x, y), {"out": device.put(square)}, r"out C has shape \(4, 4\), expected \(9, 17\)"),
        ((z, z), {"out": z}, "out C overlaps A in memory"),
        ((square, square), {"out": square}, "out C overlaps A in memory"),
    ):
        with pytest.raises(fk.ArgumentError, match=message):
            run(*arguments, **named)
    np.testing.assert_allclose(run(a[:, ::2], b[::2]), a[:, ::2] @ b[::2], rtol=1e-5)


def test_streams_of_others_are_refused(device: Device) -> None:
    run = product(device)
    with pytest.raises(fk.ArgumentError, match="stream"):
        run(*matrices(), stream=7)


def test_arrays_of_another_device_are_refused(device: Device, cache: Cache) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    other = find_device("cuda-emulator" if device.name == "opencl" else "opencl", cache)
    run = product(device)
    a, b = matrices()
    with pytest.raises(
        fk.ArgumentError, match=f"A is on {other.name}, but the program runs on {device.name}"
    ):
        run(other.put(a), b)

    class OnGpu:
        __cuda_array_interface__ = {"shape": (3, 17), "typestr": "<f4", "data": (0, False)}  # noqa: RUF012

    with pytest.raises(fk.ArgumentError, match=f"B is a OnGpu that is not on {device.name}"):
        run(a, OnGpu())


def test_put_takes_numbers(device: Device) -> None:
    for bad in ([1.0], np.ma.array([1.0]), np.array([None]), np.array([1.0], ">f8")):
        with pytest.raises(fk.ArgumentError, match="put takes"):
            device.put(bad)
    for array in (np.float32(3), np.arange(6).reshape(2, 3).T, np.zeros((2, 0), np.int8)):
        back = device.put(array).numpy()
        assert back.dtype == array.dtype and back.shape == array.shape
        np.testing.assert_array_equal(back, array)


def test_all_types(device: Device) -> None:
    run = compiled(TYPES, "split S0: i by 4\nmap_blocks S0: i_o\nmap_threads S0: i_i", device)
    random = np.random.default_rng(0)
    inputs = {
        t.name: random.integers(0, 2 if t.dtype.name == "bool" else 100, 11).astype(t.dtype.numpy)
        for t in run.program.inputs
    }
    (expected,) = evaluate(run.program, inputs).values()
    np.testing.assert_array_equal(run(**inputs), expected)
    put = {n: device.put(a) for n, a in inputs.items()}
    np.testing.assert_array_equal(run(**put).numpy(), expected)


def test_nothing_is_there(device: Device) -> None:
    run = product(device)
    for n, k, m in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)):
        a, b = np.ones((n, k), np.float32), np.ones((k, m), np.float32)
        np.testing.assert_array_equal(run(a, b), a @ b)
        np.testing.assert_array_equal(run(device.put(a), device.put(b)).numpy(), a @ b)


def test_calls_from_several_threads(device: Device) -> None:
    run = product(device)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for n in range(6):
            a, b = matrices(5 + seed, 3 + n, 8)
            x: Any = device.put(a) if n % 2 else a
            c = run(x, device.put(b) if n % 2 else b)
            got = c.numpy() if isinstance(c, DeviceArray) else c
            if not np.allclose(got, a @ b, rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_text_that_does_not_compile(device: Device) -> None:
    source = replace(product(device).source, text="this is no code")
    with pytest.raises(fk.ToolchainError, match=r"(?s)failed:\n.*error"):
        GpuProgram(source, device)


def test_the_emulator_needs_a_compiler(tmp_path: Path) -> None:
    with pytest.raises(fk.ToolchainError, match=r"cuda-emulator needs .*no-such-compiler"):
        product(CpuDevice(tmp_path, compiler="no-such-compiler"))


def test_machine_code_is_kept(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    from runtime.gpu.opencl import OpenClDevice

    a, b = matrices()
    np.testing.assert_allclose(product(OpenClDevice("", cache))(a, b), a @ b, rtol=1e-5)
    monkeypatch.setattr(OpenClDevice, "_compile", lambda *_: pytest.fail("compiled again"))
    np.testing.assert_allclose(product(OpenClDevice("", cache))(a, b), a @ b, rtol=1e-5)


# --- pyopencl's own arrays ----------------------------------------------------------------------


def test_arrays_of_pyopencl(cache: Cache) -> None:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    import pyopencl.array as cla

    device: Any = find_device("opencl", cache)
    run = product(device)
    a, b = matrices()
    x, y = cla.to_device(device.queue, a), cla.to_device(device.queue, b)
    c = run(x, y)
    assert isinstance(c, DeviceArray) and isinstance(c.handle, cl.Buffer)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-5)
    out = cla.zeros(device.queue, (9, 17), np.float32)
    assert run(x, y, out=out) is out
    np.testing.assert_allclose(out.get(), a @ b, rtol=1e-5)
    np.testing.assert_allclose(run(x + 1, b), (a + 1) @ b, rtol=1e-5)
    queue = cl.CommandQueue(device.context)
    z = cla.to_device(queue, a)
    np.testing.assert_allclose(run(z, y).numpy(), a @ b, rtol=1e-5)
    np.testing.assert_allclose(run(x, y, stream=queue).numpy(), a @ b, rtol=1e-5)
    with pytest.raises(fk.ArgumentError, match="A has dtype float64, expected float32"):
        run(cla.to_device(queue, a.astype(float)), y)
    with pytest.raises(fk.ArgumentError, match="A is not C-contiguous, and arrays on a device"):
        run(cla.to_device(queue, np.asfortranarray(a)), y)
    other = cl.CommandQueue(cl.Context([device.device]))
    with pytest.raises(fk.ArgumentError, match="A belongs to another context of OpenCL"):
        run(cla.to_device(other, a), y)
    with pytest.raises(fk.ArgumentError, match="is not a queue of the context of opencl"):
        run(x, y, stream=other)


def test_parts_of_pyopencls_arrays(cache: Cache) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    import pyopencl.array as cla

    device: Any = find_device("opencl", cache)
    run = product(device)
    whole = np.random.default_rng(1).random((300, 16)).astype(np.float32)
    there = cla.to_device(device.queue, whole)
    b = np.random.default_rng(2).random((16, 5)).astype(np.float32)
    part = run(there[64:70], b)
    np.testing.assert_allclose(part, whole[64:70] @ b, rtol=1e-5)
    square = there[128:144]
    with pytest.raises(fk.ArgumentError, match="out C overlaps A in memory"):
        run(square, device.put(np.ones((16, 16), np.float32)), out=there[128:144])
    assert run(square, device.put(np.eye(16, dtype=np.float32)), out=there[:16]) is not None
    np.testing.assert_allclose(there[:16].get(), whole[128:144], rtol=1e-6)
    with pytest.raises(fk.ArgumentError, match="begins 64 bytes after the start of its buffer"):
        run(there[1:7], b)


# --- DLPack, with numpy as the consumer ---------------------------------------------------------


def test_numpy_takes_arrays_of_the_emulator(cache: Cache) -> None:
    device = find_device("cuda-emulator", cache)
    a = np.arange(12, dtype=np.int16).reshape(3, 4)
    there = device.put(a)
    assert there.__dlpack_device__() == (1, 0)
    view = np.from_dlpack(there)  # type: ignore[arg-type]
    np.testing.assert_array_equal(view, a)
    del there
    gc.collect()
    again = device.put(np.zeros_like(a))  # what is lent is not taken for something else
    np.testing.assert_array_equal(view, a)
    assert again.numpy().sum() == 0
    with pytest.raises(AttributeError):
        again.__cuda_array_interface__  # noqa: B018
    with pytest.raises(BufferError, match="without a copy"):
        again.__dlpack__(copy=True)


def test_arrays_of_opencl_are_not_exchanged(cache: Cache) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    there = find_device("opencl", cache).put(np.zeros(3))
    with pytest.raises(BufferError, match="arrays on opencl are not exchanged by DLPack"):
        there.__dlpack__()
    assert not hasattr(there, "__cuda_array_interface__")
