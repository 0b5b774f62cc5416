"""Compilers that are missing, fail, hang or lie, full disks, and caches that cannot be written."""

from __future__ import annotations

import functools
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import farkas as fk
import runtime.cpu.shared_library
import runtime.network.build_cpu
from runtime.common.cache import Cache
from runtime.cpu.compile_c import Compilation, compile_shared
from runtime.cpu.toolchain import Toolchain
from tests.robustness.nets import tiny_net

ROOT = Path(__file__).resolve().parents[2]
TEXT = "def f(float32 A[N]) -> (Y) { Y[i] = A[i] + 1 }"


def script(path: Path, real: str, when_compiling: str) -> Path:
    """A compiler that describes itself well, and does something else with kernels."""
    path.write_text(
        f"""#!/bin/sh
for word in "$@"; do
  case "$word" in
    kernel.c|network.c|fk_k*.c|kernels_*.c) {when_compiling} ;;
  esac
done
exec {real} "$@"
"""
    )
    path.chmod(0o755)
    return path


def everything(cc: Path | str | None, cache: Path) -> list[fk.FarkasError]:
    """The errors of a kernel and of a model."""
    errors = []
    for make in (
        lambda: fk.compile(TEXT, cc=cc, cache=cache),
        lambda: fk.compile_onnx(tiny_net(), cc=cc, cache=cache),
    ):
        with pytest.raises(fk.FarkasError) as caught:
            make()
        errors.append(caught.value)
    return errors


def leftovers(cache: Path) -> list[Path]:
    """What lies in a cache, directories of entries apart."""
    return [p for p in cache.rglob("*") if not p.is_dir()] + list((cache / "temporary").iterdir())


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    for error in everything(None, tmp_path / "cache"):
        assert isinstance(error, fk.ToolchainError) and "no C compiler was found" in str(error)


def test_a_path_without_a_compiler_at_the_command_line(tmp_path: Path) -> None:
    onnx.save(tiny_net(), tmp_path / "m.onnx")
    words = ("run", "m.onnx", "--random", "--output-dir", "out")
    done = farkas(tmp_path, *words, PATH=str(tmp_path), FARKAS_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 1 and done.stderr.startswith("error: no C compiler was found")
    assert "out" not in os.listdir(tmp_path)


def farkas(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    environment.pop("CC", None)
    return subprocess.run(
        [sys.executable, "-m", "farkas", *words], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("echo 'the licence is gone' >&2; exit 3", "exit code 3"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("kill -11 $$", "killed by SIGSEGV"),
        ("exit 0", "wrote no|exit code 1"),  # a model is linked, and that fails
        ("yes x | head -c 5000000 >&2; exit 1", "more lines"),
        ("printf '\\377\\376' >&2; exit 1", "exit code 1"),
    ],
)
def test_a_compiler_that_fails(
    action: str,
    message: str,
    toolchain: Toolchain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where failed sources are kept
    monkeypatch.setenv("FARKAS_OPENMP", "compiler")  # no other library is built
    cc = script(tmp_path / "cc", toolchain.path, action)
    for error in everything(cc, tmp_path / "cache"):
        assert isinstance(error, fk.ToolchainError), error
        assert re.search(message, str(error)) and len(str(error)) < 5000
    assert leftovers(tmp_path / "cache") == []


def test_a_compiler_that_hangs(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("FARKAS_OPENMP", "compiler")  # no other library is built
    # Its child would hold the pipe open if only the shell were ended.
    cc = script(tmp_path / "cc", toolchain.path, "sleep 1000")

    def impatient(*given: Any, timeout: float) -> str:
        return compile_shared(*given, timeout=min(timeout, 0.5))

    monkeypatch.setattr(runtime.cpu.shared_library, "compile_shared", impatient)
    hurried = functools.partial(Compilation, timeout=0.5)
    monkeypatch.setattr(runtime.network.build_cpu, "Compilation", hurried)
    start = time.monotonic()
    for error in everything(cc, tmp_path / "cache"):
        assert isinstance(error, fk.ToolchainError) and "took longer than 0.5 s" in str(error)
    assert time.monotonic() - start < 20
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("body", ["", "exit 1", "echo hello", "cat", "yes | head -c 3000000"])
def test_what_is_no_compiler(body: str, tmp_path: Path) -> None:
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\n{body}\n")
    cc.chmod(0o755)
    for error in everything(cc, tmp_path / "cache"):
        assert isinstance(error, fk.ToolchainError) and len(str(error)) < 1000
    cc.write_bytes(b"\x7fELF nonsense")
    for error in everything(cc, tmp_path / "cache"):
        assert isinstance(error, fk.ToolchainError) and "cannot be run" in str(error)


# --- disks ---------------------------------------------------------------------------------------

FULL = """
import resource, signal, sys, tempfile
import farkas as fk
from tests.robustness.nets import tiny_net
from frontends.onnx import import_model
import runtime.network.cpu_model, farkas.kernels.kernel
fk.find_toolchain()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for make in (lambda: fk.compile(TEXT), lambda: fk.compile_onnx(tiny_net())):
    try:
        make()
        print("compiled")
    except fk.FarkasError as error:
        print(type(error).__name__, str(error).splitlines()[0])
""".replace("TEXT", repr(TEXT))


@pytest.mark.parametrize("limit", [0, 100, 1000, 3000, 10_000, 15_000])
def test_files_that_cannot_grow(limit: int, tmp_path: Path) -> None:
    """As on a full disk, every file stops growing somewhere; also those of the compiler."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(limit)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FARKAS_CACHE_DIR": str(tmp_path / "cache"),
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert line.startswith(("CacheError", "ToolchainError", "compiled")), line
    if limit <= 1000:
        assert "compiled" not in done.stdout
    assert leftovers(tmp_path / "cache") == [] or limit > 1000
    store = Cache(tmp_path / "cache")
    for group in (tmp_path / "cache" / "v1").iterdir():
        assert all(store.get(entry.name) is not None for entry in group.iterdir())


def test_a_folder_for_temporary_files_that_is_full(tmp_path: Path) -> None:
    """The compiler is tried there before anything else."""
    early = FULL.replace("fk.find_toolchain()\n", "")
    done = subprocess.run(
        [sys.executable, "-c", early, "0"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "FARKAS_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("ToolchainError cannot try") for line in done.stdout.splitlines())


READ_ONLY = """
import os, sys
import numpy as np
import numpy.ma  # which numpy would look for later, as another user
import farkas as fk
from tests.robustness.nets import tiny_net
from frontends.onnx import import_model
import codegen.pipeline, farkas.kernels.kernel, farkas.networks.import_and_compile
import runtime.network.compile_cpu, runtime.network.cpu_model, poly.schedule.isl_scheduler_worker
known, other = sys.argv[1:]
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
assert (fk.compile(known)(np.ones(3, np.float32)) == 2).all()
assert (fk.compile(other)(np.ones(3, np.float32)) == 3).all()
fk.compile_onnx(tiny_net())
"""


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """What is in it can be used; anything else lies elsewhere, as a warning says once."""
    folder = tmp_path / "cache"
    fk.compile(TEXT, cache=folder)
    for path in [folder, *folder.rglob("*")]:
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode & ~0o222)
    for parent in tmp_path.parents:
        if os.stat(parent).st_uid == os.geteuid() and os.geteuid() == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, TEXT, TEXT.replace("+ 1", "+ 2")],
            env={**os.environ, "PYTHONPATH": str(ROOT), "FARKAS_CACHE_DIR": str(folder)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("CacheWarning: cannot write to the cache") == 1, done.stderr


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "cache", "/proc/farkas", "/dev/null"):
        for error in everything(None, Path(place)):
            assert isinstance(error, fk.CacheError)


def test_a_cache_that_goes_away_between_two_compilations(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "cache"
    kernel = fk.compile(TEXT, cache=folder)
    shutil.rmtree(folder)
    ones = np.ones(3, np.float32)
    assert (kernel(ones) == 2).all()
    assert (fk.compile(TEXT, cache=folder)(ones) == 2).all()
