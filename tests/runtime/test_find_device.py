"""Devices by name, and what is said of each piece that is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import farkas as fk
from runtime import find_device as devices
from runtime.common.cache import Cache
from runtime.cuda.find_launcher import ENVIRONMENT, find_launcher
from runtime.find_device import find_device
from runtime.gpu.emulator import CpuDevice

ROOT = Path(__file__).resolve().parent.parent.parent


PACKAGES = ("pycuda", "cuda", "pyopencl")


@pytest.fixture(autouse=True)
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no device be found yet, of which others have one already."""
    monkeypatch.setattr(devices, "_FOUND", {})


@pytest.fixture(autouse=True)
def modules_of_others(tmp_path: Path) -> Iterator[None]:
    """Have the modules that a test hides or plants be as before; none is imported twice."""
    before = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in PACKAGES}
    yield
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            file = getattr(module, "__file__", None)
            if file is not None and Path(file).is_relative_to(tmp_path):
                del sys.modules[name]
    sys.modules.update(before)
    importlib.invalidate_caches()


def forget(name: str) -> None:
    """Have a module and those in it not be imported yet."""
    for module in list(sys.modules):
        if module == name or module.startswith(f"{name}."):
            del sys.modules[module]


class Hidden:
    """Finds no module of some names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have modules not be installed."""
    for name in names:
        forget(name)
    monkeypatch.setattr(sys, "meta_path", [Hidden(names), *sys.meta_path])


def plant(monkeypatch: pytest.MonkeyPatch, folder: Path, files: dict[str, str]) -> None:
    """Have modules with these texts come first."""
    for name, text in files.items():
        forget(name.partition("/")[0])
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cudo", r"there is no device 'cudo'; did you mean 'cuda'\?"),
        ("OpenCL", r"there is no device 'OpenCL'; did you mean 'opencl'\?"),
        ("emulator", r"there is no device 'emulator'; did you mean 'cuda-emulator'\?"),
        ("tpu", "there is no device 'tpu'; there are cuda, opencl, cuda-emulator"),
        ("", "there is no device ''; there are cuda, opencl, cuda-emulator"),
        ("cuda:", r"there is no device 'cuda:'; did you mean 'cuda'\?"),
        ("cuda-emulator:1", "unknown machine; of sm_80, sm_90"),
        ("cuda-emulator:sm90", r"unknown machine; did you mean 'cuda-emulator:sm_90'\?"),
        ("cuda,tf33", "'cuda,tf33' has an unknown option 'tf33'; did you mean 'tf32'"),
        ("cuda:1,fast", "'cuda:1,fast' has an unknown option 'fast'; there is 'tf32'"),
        ("cuda,", "has an unknown option ''"),
        ("opencl,tf32", r"OpenCL does not reach; did you mean 'cuda,tf32'\?"),
        ("cuda-emulator,tf32", r"was named for; did you mean 'cuda-emulator:sm_90,tf32'\?"),
        ("cuda:first", "there is no device 'cuda:first'; use cuda, cuda:1, cuda:2"),
    ],
)
def test_names_of_no_device(name: str, message: str, cache: Cache) -> None:
    with pytest.raises(fk.ArgumentError, match=message):
        find_device(name, cache)


def test_a_device_is_found_once(cache: Cache, tmp_path: Path) -> None:
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(find_device("cuda-emulator", cache)))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(map(id, found))) == 1 and isinstance(found[0], CpuDevice)
    assert find_device("cuda-emulator", Cache(tmp_path)) is not found[0]


def test_two_caches_of_a_device_share_its_memory(cache: Cache, tmp_path: Path) -> None:
    elsewhere, ones = Cache(tmp_path), np.ones((4, 4), np.float32)
    for name in ("cuda-emulator", "cuda-emulator:sm_90"):
        text = "def two_caches(float32 A[N,M]) -> (B) { B[i,j] = 2 * A[i,j] }"
        one, other = (fk.compile(text, target=name, cache=c) for c in (cache, elsewhere))
        assert one.target.device.pool is other.target.device.pool
        assert other(one(one.target.device.put(ones))).numpy().sum() == 64
    assert list(tmp_path.rglob("*.so"))


def test_devices_that_round_are_others_with_the_same_memory(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("cuda-emulator", "cuda-emulator:sm_90", "cuda-emulator:sm_90,tf32")
    plain, named, rounded = (find_device(n, cache) for n in names)
    assert [d.name for d in (plain, named, rounded)] == list(names)
    assert repr(rounded) == "<CpuDevice cuda-emulator:sm_90,tf32>"
    assert [d.machine.tensor_cores for d in (plain, named, rounded)] == [False, True, True]
    assert [d.machine.rounded_float32 for d in (plain, named, rounded)] == [False, False, True]
    assert find_device(names[2], cache) is rounded and find_device(names[0], cache) is plain
    assert "round float32" in str(rounded.machine) and "tensor" not in str(plain.machine)
    ones = np.ones((16, 16), np.float32)
    kernel = fk.compile("B[i,j] = 2 * A[i,j]", target=names[2], cache=cache)
    assert kernel(plain.put(ones)).numpy().sum() == 512


def test_a_cuda_device_that_rounds(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that has tensor cores; made-up devices, whose kernels nobody runs."""
    import runtime.cuda.device
    import runtime.cuda.find_launcher

    def launcher(number: int) -> SimpleNamespace:
        architecture = ("sm_90", "sm_75")[number]
        return SimpleNamespace(
            architecture=architecture, processors=40, device="GPU", package="none"
        )

    monkeypatch.setattr(runtime.cuda.find_launcher, "find_launcher", launcher)
    monkeypatch.setattr(runtime.cuda.device, "find_cuda_compiler", lambda architecture: None)
    rounded, plain = find_device("cuda,tf32", cache), find_device("cuda:0", cache)
    assert (rounded.name, plain.name) == ("cuda:0,tf32", "cuda:0")
    assert "cuda:0,tf32" in repr(rounded) and rounded.dlpack == plain.dlpack
    assert rounded.machine == replace(plain.machine, rounded_float32=True)
    assert rounded.pool is plain.pool
    with pytest.raises(
        fk.ArgumentError, match=r"devices have from sm_80 on; did you mean 'cuda:1'"
    ):
        find_device("cuda:1,tf32", cache)


def test_nothing_is_imported_for_a_cpu() -> None:
    code = """
import sys
import numpy as np, farkas as fk
import runtime.find_device, runtime.gpu.gpu_program, runtime.cuda.device, runtime.gpu.opencl
import runtime.cuda.find_launcher
a = np.ones((3, 3))
fk.compile("C[i,j] +=! A[i,k] * B[k,j]")(a, a)
names = ("pycuda", "cuda", "pyopencl", "torch", "cupy", "jax", "nvidia")
print([m for m in sys.modules if m.split(".")[0] in names])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# --- OpenCL -------------------------------------------------------------------------------------


def test_pyopencl_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "pyopencl")
    with pytest.raises(fk.ToolchainError, match=r"needs pyopencl: pip install '\.\[opencl\]'"):
        find_device("opencl", Cache(tmp_path))


def test_pyopencl_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "raise ImportError('libOpenCL.so.1: cannot open')"
    plant(monkeypatch, tmp_path / "site", {"pyopencl/__init__.py": text})
    with pytest.raises(fk.ToolchainError, match=r"cannot be imported: libOpenCL\.so\.1: cannot"):
        find_device("opencl", Cache(tmp_path))


def test_pyopencl_lacks_something(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, tmp_path / "site", {"pyopencl/__init__.py": "import pytoools_of_nobody"})
    with pytest.raises(fk.ToolchainError, match="is installed but needs pytoools_of_nobody"):
        find_device("opencl", Cache(tmp_path))


def test_no_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")

    def none() -> None:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", none)
    advice = "no OpenCL platform; .*pip install pocl-binary-distribution"
    with pytest.raises(fk.ToolchainError, match=advice):
        find_device("opencl", Cache(tmp_path))


def test_a_platform_without_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")

    def none() -> None:
        raise cl.RuntimeError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")

    platforms = [SimpleNamespace(name="Empty", get_devices=none)]
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    with pytest.raises(
        fk.ToolchainError, match=r"no OpenCL device on any platform \(Empty\); inst"
    ):
        find_device("opencl", Cache(tmp_path))


def test_a_compiler_older_than_the_processor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    platform = SimpleNamespace(name="Portable Computing Language", version="OpenCL 3.0 PoCL 3.0 ")
    device = SimpleNamespace(
        version="OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic", platform=platform
    )
    platform.get_devices = lambda: [device]
    monkeypatch.setattr(cl, "get_platforms", lambda: [platform])
    with pytest.raises(fk.ToolchainError) as caught:
        find_device("opencl:pthread", Cache(tmp_path))
    assert "OpenCL 3.0 PoCL 3.0 does not know this processor" in str(caught.value)
    assert "apt install pocl-opencl-icd" in str(caught.value)


def test_no_such_opencl_device(cache: Cache) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    device = find_device("opencl", cache).device  # type: ignore[attr-defined]
    for which in ("99", "nobody's"):
        with pytest.raises(fk.ToolchainError) as caught:
            find_device(f"opencl:{which}", cache)
        assert f"there is no OpenCL device {which!r}; there are 0: " in str(caught.value)
        assert device.name.strip() in str(caught.value)


def test_an_opencl_device_by_number_and_by_name(cache: Cache) -> None:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    first = find_device("opencl", cache)
    platform = first.device.platform.name.strip().upper()  # type: ignore[attr-defined]
    for name in ("opencl:0", f"opencl:{platform}"):
        assert find_device(name, cache).device == first.device  # type: ignore[attr-defined]
    assert isinstance(first.default_stream, cl.CommandQueue)


# --- CUDA ---------------------------------------------------------------------------------------


def test_neither_package_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "pycuda", "cuda")
    with pytest.raises(fk.ToolchainError) as caught:
        find_device("cuda", Cache(tmp_path))
    for words in ("pycuda or cuda-bindings", "'.[cuda]'", "'.[cuda-bindings]'"):
        assert words in str(caught.value)


def test_another_package_of_the_same_name_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide(monkeypatch, "pycuda", "cuda.bindings")
    plant(monkeypatch, tmp_path / "site", {"cuda/__init__.py": ""})
    with pytest.raises(fk.ToolchainError, match="CUDA needs pycuda or cuda-bindings"):
        find_device("cuda", Cache(tmp_path))


@pytest.mark.parametrize(
    ("package", "modules"), [("pycuda", ["pycuda"]), ("cuda-bindings", ["cuda", "cuda.bindings"])]
)
def test_the_package_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, package: str, modules: list[str]
) -> None:
    monkeypatch.setenv(ENVIRONMENT, package)
    hide(monkeypatch, *modules)
    with pytest.raises(fk.ToolchainError, match=f"{package} is not installed: pip install '"):
        find_launcher(0)
    monkeypatch.setenv(ENVIRONMENT, "cudart")
    with pytest.raises(fk.ArgumentError, match="FARKAS_CUDA=cudart is not one of cuda-bindings, "):
        find_launcher(0)


def test_pycuda_finds_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "cuda")
    words = "libcuda.so.1: cannot open shared object file: No such file or directory"
    files = {"pycuda/__init__.py": "", "pycuda/driver.py": f"raise ImportError({words!r})"}
    plant(monkeypatch, tmp_path / "site", files)
    advice = r"pycuda cannot be imported: libcuda\.so\.1: .*; is NVIDIA's driver installed\?"
    with pytest.raises(fk.ToolchainError, match=advice):
        find_device("cuda", Cache(tmp_path))


def test_pycuda_lacks_something(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "cuda")
    files = {"pycuda/__init__.py": "", "pycuda/driver.py": "import pytoools_of_nobody"}
    plant(monkeypatch, tmp_path / "site", files)
    with pytest.raises(fk.ToolchainError, match="pycuda is installed but needs pytoools_of_nobody"):
        find_device("cuda", Cache(tmp_path))


def test_cuda_bindings_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "pycuda")
    files = {
        "cuda/__init__.py": "",
        "cuda/bindings/__init__.py": "",
        "cuda/bindings/driver.py": "raise ImportError('libc.so: version GLIBC_9 not found')",
    }
    plant(monkeypatch, tmp_path / "site", files)
    message = r"cuda-bindings cannot be imported: libc\.so: version GLIBC_9 not found"
    with pytest.raises(fk.ToolchainError, match=message):
        find_device("cuda", Cache(tmp_path))


def test_a_broken_package_says_more_than_one_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hide(monkeypatch, "cuda")
    files = {"pycuda/__init__.py": "", "pycuda/driver.py": "raise ImportError('broken')"}
    plant(monkeypatch, tmp_path / "site", files)
    with pytest.raises(fk.ToolchainError, match=r"pycuda cannot be imported: broken$"):
        find_launcher(0)


def test_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

    def none(flags: int) -> None:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    hide(monkeypatch, "pycuda")
    monkeypatch.setattr(driver, "cuInit", none)
    with pytest.raises(fk.ToolchainError, match=r"driver is not installed: .*libcuda\.so\.1"):
        find_launcher(0)
