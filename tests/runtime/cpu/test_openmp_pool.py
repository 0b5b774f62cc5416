"""The threads of kernels: equal results whoever does the work, and nobody is waited for."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from poly.errors import ToolchainError
from runtime.common.cache import Cache
from runtime.cpu import openmp_pool as team
from runtime.cpu.loaded_kernel import open_library
from runtime.cpu.toolchain import OPENMP, UNKNOWN_PRAGMAS, Toolchain, find_toolchain
from tests.robustness.nets import tiny_net

ROOT = Path(__file__).resolve().parents[3]
THREADS = (1, 2, 3, 8)


@pytest.fixture(scope="module", params=["gcc", "clang"])
def compiler(request: pytest.FixtureRequest) -> Toolchain:
    """Each compiler; tests are skipped where it does not exist."""
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param}")
    return find_toolchain(request.param)


@pytest.fixture(scope="module")
def teamed(compiler: Toolchain, cache: Cache) -> Toolchain:
    """A compiler with our threads; tests are skipped where there are none."""
    found = team.with_team(compiler, cache)
    if found == compiler:
        pytest.skip("kernels use the OpenMP library of the compiler here")
    return found


def stress(
    toolchain: Toolchain, folder: Path, flags: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """The stress test built with these flags, and run."""
    source = Path(__file__).with_name("team_stress.c")
    out = folder / "stress"
    words = [*toolchain.command, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread"]
    words += toolchain.unlinked or [OPENMP]
    words += [*flags, str(source), str(team.SOURCE), *team.link_flags(toolchain.kind)]
    words += ["-o", str(out)]
    built = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if built.returncode != 0 and "sanitize" in " ".join(flags):
        pytest.skip(f"no sanitizer: {built.stderr[:200]}")
    assert built.returncode == 0, built.stderr
    return subprocess.run([out], capture_output=True, text=True, timeout=300)


def test_stress(teamed: Toolchain, tmp_path: Path) -> None:
    done = stress(teamed, tmp_path, ("-O2", "-DREGIONS=2000", "-DFORK"))
    assert done.returncode == 0, done.stderr


def test_stress_under_the_thread_sanitizer(teamed: Toolchain, tmp_path: Path) -> None:
    done = stress(teamed, tmp_path, ("-O1", "-g", "-fsanitize=thread", "-DREGIONS=300"))
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitizer does not run on this kernel")
    assert done.returncode == 0, done.stderr


def test_the_library_compiles_without_warnings(teamed: Toolchain, tmp_path: Path) -> None:
    words = [*teamed.command, "-std=gnu11", "-O2", "-fPIC", "-Wall", "-Wextra", "-Wconversion"]
    words += ["-Werror", "-shared", str(team.SOURCE), "-o", str(tmp_path / "team.so"), "-pthread"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return (
        rng.standard_normal((131, 77)).astype(np.float32),
        rng.standard_normal((77, 93)).astype(np.float32),
    )


def product(compiler: Toolchain | None = None) -> fk.Kernel:
    return fk.compile("C[i,j] +=! A[i,k] * B[k,j]", cc=compiler)


def test_kernels_do_not_need_the_compilers_library(compiler: Toolchain, teamed: Toolchain) -> None:
    kernel = product(compiler)
    kernel(*arrays())
    assert "schedule(FK_SCHEDULE)" in kernel.source
    words = ["readelf", "--dynamic", str(kernel.library)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no readelf")
    assert done.returncode == 0 and "omp" not in done.stdout.replace(str(kernel.library), "")


def test_results_do_not_depend_on_who_does_the_work(compiler: Toolchain) -> None:
    kernel, given = product(compiler), arrays()
    want = kernel(*given, threads=1)
    for _ in range(50):
        for threads in THREADS:
            assert np.array_equal(kernel(*given, threads=threads), want)


def test_many_callers_at_once(compiler: Toolchain) -> None:
    kernel, given = product(compiler), arrays()
    want = kernel(*given, threads=1)
    wrong: list[int] = []

    def call(threads: int) -> None:
        for _ in range(100):
            if not np.array_equal(kernel(*given, threads=threads), want):
                wrong.append(threads)

    callers = [threading.Thread(target=call, args=(t,)) for t in THREADS * 2]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
        assert not caller.is_alive()
    assert not wrong


def test_two_compilers_share_the_threads() -> None:
    """Kernels run on as many threads as they are told, whoever has compiled them."""
    if shutil.which("gcc") is None or shutil.which("clang") is None:
        pytest.skip("there is one compiler")
    given = arrays()
    kernels = [product(find_toolchain(name)) for name in ("gcc", "clang")]
    one, other = (kernel(*given, threads=3) for kernel in kernels)
    before = threads_now()
    assert before >= 3
    assert np.allclose(one, other, rtol=1e-5, atol=1e-5)
    for kernel in kernels:
        assert np.array_equal(kernel(*given, threads=3), kernel(*given, threads=1))
    assert threads_now() == before


def threads_now() -> int:
    """The threads of this process."""
    return len(os.listdir("/proc/self/task"))


NETWORK = '''
import os, sys
import numpy as np
import onnx.parser
import farkas as fk

model = fk.compile_onnx(onnx.parser.parse_model("""
<ir_version: 9, opset_import: ["": 17]>
g (float[96, 200] a, float[200, 96] b) => (float[96, 96] y) { c = MatMul(a, b)  y = Relu(c) }
"""), threads=2)
rng = np.random.default_rng(0)
given = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in model.inputs}
one = model.run(given, threads=1)
before = len(os.listdir("/proc/self/task"))  # those that compiled have ended
two = model.run(given, threads=2)
assert all(np.array_equal(one[n], two[n]) for n in one)
assert len(os.listdir("/proc/self/task")) == before + 1
'''


def test_a_network_runs_on_two_threads(compiler: Toolchain) -> None:
    """One more thread than before is there after a run on two."""
    done = run_python(NETWORK, compiler)
    assert done.returncode == 0, done.stderr


def run_python(text: str, compiler: Toolchain) -> subprocess.CompletedProcess[str]:
    """A process whose compiler is this one."""
    env = {**os.environ, "CC": compiler.path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env=env
    )


FORK = """
import os, sys
import numpy as np
import farkas as fk

kernel = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
a = np.ones((100, 100), np.float32)
assert (kernel(a, a, threads=4) == 100).all()
for _ in range(3):
    child = os.fork()
    if child == 0:
        for _ in range(20):
            assert (kernel(a, a, threads=3) == 100).all()
        os._exit(0)
    assert (kernel(a, a, threads=4) == 100).all()
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_has_threads_of_its_own_and_exit_does_not_hang(
    compiler: Toolchain,
) -> None:
    done = run_python(FORK, compiler)
    assert done.returncode == 0, done.stderr


# --- without it ----------------------------------------------------------------------------


def test_the_compilers_library_can_be_asked_for(
    toolchain: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arrays()
    want = product()(*given, threads=2)
    monkeypatch.setenv(team.ENVIRONMENT, "compiler")
    assert team.with_team(toolchain, cache) == toolchain
    plain = product()
    for threads in THREADS:
        assert np.array_equal(plain(*given, threads=threads), want)


def test_another_library_cannot_be_asked_for(
    toolchain: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("gcc", "Compiler", "0"):
        monkeypatch.setenv(team.ENVIRONMENT, value)
        with pytest.raises(ToolchainError, match=f"FARKAS_OPENMP is '{value}': set it to 'compil"):
            team.with_team(toolchain, cache)
        with pytest.raises(ToolchainError, match="FARKAS_OPENMP"):
            product()(*arrays())
    monkeypatch.setenv(team.ENVIRONMENT, "")
    product()(*arrays())


def test_it_needs_pragmas_and_linux(compiler: Toolchain, cache: Cache) -> None:
    flags = tuple(f for f in compiler.flags if f != OPENMP)
    for other in (
        replace(compiler, flags=flags, unlinked=()),
        replace(compiler, target="x86_64-w64-mingw32"),
    ):
        assert team.with_team(other, cache) == other


def test_threads_that_cannot_be_had_are_said_once(
    compiler: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "_warned", [])
    flags = tuple(f for f in compiler.flags if f != OPENMP)
    other = replace(compiler, flags=(*flags, UNKNOWN_PRAGMAS), unlinked=())
    given = arrays()
    assert team.threads_of(other).startswith("none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fk.compile("y[i] = x[i] + 1", dtypes="float32", cc=other, threads=1)
    with pytest.warns(fk.ThreadsWarning, match=r"run on one thread, not on 2.*OpenMP; install"):
        kernel = fk.compile("C[i,j] +=! A[i,k] * B[k,j]", dtypes="float32", cc=other, threads=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fk.compile_onnx(tiny_net(), cc=other, threads=2)
    assert np.array_equal(kernel(*given), product(compiler)(*given, threads=1))


@pytest.mark.parametrize("text", ["#error no", "int x;\nint missing(void);\nint y(void);\n"])
def test_what_cannot_be_built_or_loaded_is_done_without(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    broken = tmp_path / "openmp_pool.c"
    if "missing" in text:
        text += "int y(void) { return missing(); }\n"
    broken.write_text(text)
    monkeypatch.setattr(team, "SOURCE", broken)
    monkeypatch.setattr(team, "_loaded", [])
    monkeypatch.setattr(team, "_refused", set())
    store = Cache(tmp_path / "cache")
    for _ in range(2):
        assert team.with_team(toolchain, store) == toolchain
    kernel = fk.compile("C[i] = A[i] + A[i]", cache=store)
    a = np.ones(1000, np.float32)
    assert (kernel(a, threads=2) == 2).all()


def test_it_is_built_once(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if toolchain.kind != "gcc" or os.environ.get(team.ENVIRONMENT):
        pytest.skip("kernels use the OpenMP library of the compiler here")
    store = Cache(tmp_path / "cache")
    first = team.load_team(toolchain, store)
    monkeypatch.setattr(team, "compile_shared", None)
    again = team.load_team(toolchain, store)
    assert isinstance(first, ctypes.CDLL) and first._handle == again._handle


def test_other_loops_are_refused(teamed: Toolchain, cache: Cache) -> None:
    text = (
        "void f(int *x);\nvoid f(int *x)\n{\n#pragma omp parallel for schedule(static)\n"
        "  for (int i = 0; i < 100; i++) x[i] = i;\n}\n"
    )
    with pytest.raises(ToolchainError, match=r"omp_get|__kmpc_for_static"):
        open_library({"kernel.c": text}, (), teamed, cache)
