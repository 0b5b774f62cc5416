from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farkas as fk
from codegen.c.kernel_source import KernelSource
from poly.errors import ArgumentError, ToolchainError
from poly.ir.dtypes import FLOAT64
from runtime.common.arguments import default_threads
from runtime.common.cache import Cache
from runtime.cpu import shared_library as module
from runtime.cpu.loaded_kernel import LoadedKernel, load_kernel
from runtime.cpu.toolchain import Toolchain
from tests.runtime.programs import (
    N,
    add_source,
    i,
    op,
    program,
    read,
    span,
    statement,
    tensor,
)

ENTRY = "void f(int32_t threads, const int64_t *sizes, void *const *tensors)"


def source(prog: Any, body: str, **kwargs: Any) -> KernelSource:
    unused = "(void)threads; (void)sizes; (void)tensors;"
    text = f"#include <stdint.h>\n{ENTRY};\n{ENTRY}\n{{\n{unused}\n{body}\n}}\n"
    return KernelSource(prog, "f", text, **kwargs)


@pytest.fixture(scope="module")
def add(toolchain: Toolchain, cache: Cache) -> LoadedKernel:
    return load_kernel(add_source(), toolchain, cache)


def test_a_call(add: LoadedKernel) -> None:
    a, b = np.arange(5, dtype=np.float32), np.full(5, 10, np.float32)
    for result in (add(a, b), add(a, B=b), add(A=a, B=b), add(a, b, N=5), add(B=b, A=a)):
        assert isinstance(result, np.ndarray) and result.dtype == np.float32
        assert np.array_equal(result, a + b)
    assert add.path.exists() and "f (add)" in repr(add)


def test_sizes_change_between_calls(add: LoadedKernel) -> None:
    for size in [*range(40), 1000, 3, 0]:
        a = np.full(size, 2, np.float32)
        assert np.array_equal(add(a, a), a + a)


def test_sizes_are_numbers_whatever_they_print() -> None:
    class Told:
        def __init__(self, value: int) -> None:
            self.value = value

        def __index__(self) -> int:
            return self.value

        def __str__(self) -> str:
            return "a size"

    kernel = fk.compile("def f[M,N](float32 X[M]) -> (float32 Y[N]) { Y[i] = X[0] * 2 }")
    for size in (5, 7, 5):
        found = kernel(np.ones(3, np.float32), N=Told(size))
        assert isinstance(found, np.ndarray) and found.shape == (size,)
    with pytest.raises(ArgumentError, match="a number of 16610 bits"):
        kernel(np.ones(3, np.float32), N=10**5000)


def test_strided_arrays_are_copied(add: LoadedKernel) -> None:
    a = np.arange(10, dtype=np.float32)
    assert np.array_equal(add(a[::2], a[::-2]), a[::2] + a[::-2])
    with pytest.raises(ArgumentError, match="copy=False"):
        add(A=a[::2], B=a[:5], copy=False)


def test_copy_false_holds_on_every_path(add: LoadedKernel) -> None:
    a = np.arange(10, dtype=np.float32)
    with pytest.raises(ArgumentError, match="A is not C-contiguous"):
        add(a[::2], a[:5], copy=False)


@pytest.mark.parametrize("kind", ["list", "dtype", "rank", "count", "size", "order"])
def test_bad_calls(add: LoadedKernel, kind: str) -> None:
    a = np.zeros(5, np.float32)
    bad: Any = {
        "list": ([1.0] * 5, a),
        "dtype": (a, a.astype(np.float64)),
        "rank": (a, a[np.newaxis]),
        "count": (a,),
        "size": (a, a[:4]),
        "order": (a, a.astype(">f4")),
    }[kind]
    with pytest.raises(ArgumentError):
        add(*bad)


def test_out(add: LoadedKernel) -> None:
    a = np.arange(5, dtype=np.float32)
    y = np.empty(5, np.float32)
    assert add(a, a, out=y) is y and np.array_equal(y, a + a)
    assert add(a, a, out=(y,)) is y and add(a, a, out={"Y": y}) is y
    with pytest.raises(ArgumentError, match="out Y overlaps A"):
        add(a, y, out=a)
    with pytest.raises(ArgumentError, match="out Y has shape"):
        add(a, a, out=np.empty(6, np.float32))


def two_outputs() -> Any:
    s0 = statement("P", read("Y", i), "=", op("add", read("X", i), 1), span(i=N))
    s1 = statement("Q", read("Z", i), "=", op("mul", read("T", i), 2.0), span(i=N))
    s2 = statement("R", read("T", i), "=", read("X", i), span(i=N))
    temp = tensor("T", N, dtype=FLOAT64)
    return program(
        [s0, s2, s1],
        [tensor("X", N)],
        [tensor("Y", N), tensor("Z", N, dtype=FLOAT64)],
        (temp,),
        "N",
    ), temp


def outputs_by_workspace(toolchain: Toolchain, cache: Cache) -> LoadedKernel:
    """A kernel with two outputs, a temporary, and a workspace of three times as many elements."""
    prog, temp = two_outputs()
    extra = tensor("packed", op("mul", 3, N))
    body = """
    const float *x = tensors[0]; float *y = tensors[1]; double *z = tensors[2];
    double *t = tensors[3]; float *p = tensors[4];
    for (int64_t i = 0; i < sizes[0]; i++) { y[i] = x[i] + 1; t[i] = x[i]; }
    for (int64_t i = 0; i < 3 * sizes[0]; i++) p[i] = -1;
    for (int64_t i = 0; i < sizes[0]; i++) z[i] = t[i] * 2.0;
    if ((uintptr_t)t % 64 || (uintptr_t)p % 64) y[0] = -99;"""
    return load_kernel(source(prog, body, workspace=(temp, extra)), toolchain, cache)


def test_several_outputs_and_workspace(toolchain: Toolchain, cache: Cache) -> None:
    fn = outputs_by_workspace(toolchain, cache)
    for size in (5, 3, 1000, 5, 0):
        x = np.arange(size, dtype=np.float32)
        result = fn(x)
        assert isinstance(result, tuple) and len(result) == 2
        assert np.array_equal(result[0], x + 1) and np.array_equal(result[1], x * 2.0)
        assert result[1].dtype == np.float64
    z = np.empty(5)
    x = np.arange(5, dtype=np.float32)
    y, same = fn(x, out={"Z": z})
    assert same is z and np.array_equal(z, x * 2.0) and np.array_equal(y, x + 1)


def test_threads_that_share_a_kernel_do_not_share_workspace(
    toolchain: Toolchain, cache: Cache
) -> None:
    prog, temp = two_outputs()
    body = """
    const float *x = tensors[0]; float *y = tensors[1]; double *z = tensors[2];
    volatile double *t = tensors[3];
    for (int64_t i = 0; i < sizes[0]; i++) { y[i] = x[i] + 1; t[i] = x[i]; }
    for (int64_t i = 0; i < sizes[0]; i++) z[i] = t[i] * 2.0;"""
    fn = load_kernel(source(prog, body, workspace=(temp,)), toolchain, cache)
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.full(20000, seed, np.float32)
        for _ in range(50):
            if not (fn(x)[1] == 2.0 * seed).all():
                wrong.append(seed)

    running = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert wrong == []


def test_an_updated_tensor(toolchain: Toolchain, cache: Cache) -> None:
    y = tensor("Y", N)
    s0 = statement("S", read("Y", i), "+=", read("X", i), span(i=N))
    prog = program([s0], [y, tensor("X", N)], [y], sizes="N")
    body = """
    const float *x = tensors[0]; float *y = tensors[1];
    for (int64_t i = 0; i < sizes[0]; i++) y[i] += x[i];"""
    fn = load_kernel(source(prog, body), toolchain, cache)
    before, x = np.arange(5, dtype=np.float32), np.full(5, 3, np.float32)
    result = fn(before, x)
    assert np.array_equal(result, before + 3) and np.array_equal(before, np.arange(5))
    out = np.empty(5, np.float32)
    assert fn(before, x, out=out) is out and np.array_equal(out, before + 3)
    assert fn(before, x, out=before) is before  # in place
    assert np.array_equal(before, np.arange(5) + 3)


def test_sizes_by_name(toolchain: Toolchain, cache: Cache) -> None:
    s0 = statement("S", read("Y", i), "=", 7.0, span(i=N))
    prog = program([s0], [], [tensor("Y", N)], sizes="N")
    body = "float *y = tensors[0]; for (int64_t i = 0; i < sizes[0]; i++) y[i] = 7;"
    fn = load_kernel(source(prog, body), toolchain, cache)
    assert np.array_equal(fn(N=3), [7, 7, 7]) and fn(N=0).shape == (0,)  # type: ignore[union-attr]
    for bad in ({}, {"N": True}, {"N": 1.0}, {"N": -1}, {"M": 1}, {"N": 2**61}):
        with pytest.raises(ArgumentError):
            fn(**bad)
    fn(N=1)
    with pytest.raises(ArgumentError):  # True is not 1, even when 1 was seen before
        fn(N=True)


def test_the_number_of_threads_is_passed(toolchain: Toolchain, cache: Cache) -> None:
    prog = program(
        [statement("S", read("Y", i), "=", 1.0, span(i=N))], [], [tensor("Y", N)], sizes="N"
    )
    body = "*(float *)tensors[0] = (float)threads;"
    fn = load_kernel(source(prog, body), toolchain, cache, threads=3)
    many = load_kernel(source(prog, body), toolchain, cache)
    for _ in range(2):  # the careful path, and the quick one
        assert fn(N=20000)[0] == 3 and fn(N=20000, threads=2)[0] == 2
        # Less work than starting threads is left to one, unless threads are asked for.
        assert fn(N=100)[0] == 1 and fn(N=100, threads=2)[0] == 2
        assert many(N=20000)[0] == default_threads()
    with pytest.raises(ArgumentError, match="threads=0"):
        fn(N=3, threads=0)
    with pytest.raises(ArgumentError, match="threads=0"):
        load_kernel(source(prog, body), toolchain, cache, threads=0)


# --- building ------------------------------------------------------------------------------


def test_a_kernel_is_compiled_once(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Cache(tmp_path / "cache")
    a = np.ones(3, np.float32)
    load_kernel(add_source(), toolchain, store)
    monkeypatch.setattr(module, "compile_shared", None)
    fn = load_kernel(add_source(), toolchain, store)
    assert np.array_equal(fn(a, a), a + a)
    meta = json.loads(fn.entry.read("meta.json"))
    assert meta["symbol"] == "add" and toolchain.kind in meta["toolchain"]
    assert fn.entry.read("kernel.c").decode() == add_source().text


def test_keys_differ_by_text_flags_and_compiler(toolchain: Toolchain) -> None:
    text = {"kernel.c": "int x;"}
    keys = {
        module.library_key(text, (), toolchain),
        module.library_key({"kernel.c": "int y;"}, (), toolchain),
        module.library_key(text, ("-O3",), toolchain),
        module.library_key(text, (), replace(toolchain, cpu="another")),
    }
    assert len(keys) == 4


def test_a_damaged_library_is_never_loaded(toolchain: Toolchain, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    entry = module.build_library({"kernel.c": add_source().text}, (), toolchain, store)
    entry.file("kernel.so").write_bytes(b"\x7fELF" + bytes(5000))
    a = np.ones(3, np.float32)
    assert np.array_equal(load_kernel(add_source(), toolchain, store)(a, a), a + a)


def test_an_entry_evicted_before_the_load_is_built_again(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Cache(tmp_path / "cache")
    opened: list[str] = []
    real = ctypes.CDLL

    def evict_first(path: str) -> Any:
        if not opened:
            store.clear()
        opened.append(path)
        return real(path)

    monkeypatch.setattr(module.ctypes, "CDLL", evict_first)  # type: ignore[attr-defined]
    load_kernel(add_source(), toolchain, store)
    assert len(opened) == 2


def test_a_compiler_error_is_not_cached(toolchain: Toolchain, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    bad = replace(add_source(), text="not C")
    with pytest.raises(ToolchainError, match="failed with exit code"):
        load_kernel(bad, toolchain, store)
    assert not [*store.directory.rglob(module.LIBRARY)]
    assert list((store.directory / "temporary").iterdir()) == []


def test_a_missing_entry_point(toolchain: Toolchain, cache: Cache) -> None:
    with pytest.raises(ToolchainError, match="has no function nothing"):
        load_kernel(replace(add_source(), symbol="nothing"), toolchain, cache)


def test_a_library_that_cannot_be_loaded(toolchain: Toolchain, cache: Cache) -> None:
    text = add_source().text + "void nowhere(void);\nvoid g(void);\nvoid g(void) { nowhere(); }\n"
    eager = replace(add_source(), text=text, flags=("-Wl,-z,now",))
    with pytest.raises(ToolchainError, match="cannot be loaded"):
        load_kernel(eager, toolchain, cache)


CHILD = """
import sys
import numpy as np
from runtime.common.cache import Cache
from runtime.cpu.loaded_kernel import load_kernel
from runtime.cpu.toolchain import find_toolchain
from tests.runtime.programs import add_source
from dataclasses import replace
toolchain = find_toolchain()
print("ready", flush=True)
for number in range(6):
    source = add_source()
    source = replace(source, text=source.text + f"/* {number} */")
    a = np.ones(3, np.float32)
    assert (load_kernel(source, toolchain, Cache())(a, a) == 2).all()
print("done", flush=True)
"""


def test_two_processes_compile_the_same_and_one_is_killed(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    folder = tmp_path / "cache"
    environment = {**os.environ, "FARKAS_CACHE_DIR": str(folder), "PYTHONPATH": str(root)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD], env=environment, stdout=subprocess.PIPE, text=True
        )

    victim, survivor = start(), start()
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n"
    time.sleep(0.15)
    os.kill(victim.pid, signal.SIGKILL)
    output, _ = survivor.communicate(timeout=120)
    victim.communicate()
    assert survivor.returncode == 0 and output.endswith("done\n")
    after = start()
    assert after.communicate(timeout=120)[0].endswith("done\n")
    store = Cache(folder)
    # Six kernels, and what makes quick calls of them.
    assert len([*folder.rglob(module.LIBRARY)]) == 7
    for group in (folder / "v1").iterdir():
        for entry in group.iterdir():
            assert store.get(entry.name) is not None


def test_calls_are_cheap(add: LoadedKernel) -> None:
    a = np.zeros(4, np.float32)
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for _ in range(100):
            add(a, a)
        best = min(best, (time.perf_counter() - begin) / 100)
    assert best < 50e-6  # about half a microsecond on an idle machine
