"""The wheel, installed alone into an empty environment, compiles and runs a kernel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("farkas", "frontends", "poly", "codegen", "runtime")

SCRIPT = """
import sys
import numpy as np
import farkas as fk

kernel = fk.compile("C[i,j] +=! A[i,k] * B[k,j]")
a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
assert (kernel(a, b) == 4).all()
assert kernel.verify().close(1e-5)
from runtime.cpu.fast_call import never
assert all(loaded.quick is not never for loaded in kernel._loaded)
from frontends.onnx.model.light_models import light_models
import codegen, frontends, poly, runtime
for package in (fk, codegen, frontends, poly, runtime):
    print(package.__file__)
print(fk.__version__)
"""


def run(
    words: Sequence[str | Path], folder: Path, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command without this project on the import path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    return subprocess.run(
        [str(w) for w in words],
        cwd=folder,
        env={**environment, **(more or {})},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of what is part of the project."""
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", work, "."]
    if can_build_here():
        words.append("--no-build-isolation")
    done = run(words, source)
    if done.returncode != 0 and "--no-build-isolation" not in words and "onnection" in done.stderr:
        pytest.skip("setuptools is not installed here and cannot be fetched")
    assert done.returncode == 0, done.stderr
    (built,) = work.glob("*.whl")
    return built


def can_build_here() -> bool:
    """Whether this environment's setuptools can make wheels, without fetching another."""
    if importlib.util.find_spec("setuptools") is None:
        return False
    import setuptools

    version = tuple(map(int, setuptools.__version__.split(".")[:2]))
    return version >= (70, 1) or importlib.util.find_spec("wheel") is not None


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies are those of this one."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "install", "--no-deps"]
    done = run([*pip, "--no-index", wheel], folder.parent)
    assert done.returncode == 0, done.stderr
    (site,) = folder.glob("lib/python*/site-packages")
    # Behind the environment's own packages, and without what an editable install adds there.
    paths = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder


def test_what_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == set(PACKAGES)
    expected = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert expected <= set(names)
    assert any(name.endswith("LICENSE") for name in names)


def test_a_kernel_runs_outside_the_checkout(environment: Path, tmp_path: Path) -> None:
    python = environment / "bin" / "python"
    done = run([python, "-c", SCRIPT], tmp_path, {"FARKAS_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    *files, version = done.stdout.splitlines()
    assert len(files) == len(PACKAGES)
    for file in files:
        assert Path(file).is_relative_to(environment)
    assert version[0].isdigit()


def test_the_command_is_installed(environment: Path, tmp_path: Path) -> None:
    command = environment / "bin" / "farkas"
    cache = {"FARKAS_CACHE_DIR": str(tmp_path / "cache")}
    done = run([command, "compile", "-e", "C[i] = A[i]", "--dtype", "int8"], tmp_path, cache)
    assert done.returncode == 0, done.stderr
    assert "Generated by Farkas" in done.stdout
    wrong = run([command, "compile", "-e", "C[i] = A[", "--dtype", "int8"], tmp_path, cache)
    assert wrong.returncode == 1 and wrong.stderr.startswith("error: ")
    (tmp_path / "runtime.py").touch()
    shadowed = run([command, "cache", "info"], tmp_path, {**cache, "PYTHONPATH": str(tmp_path)})
    assert shadowed.returncode == 1
    assert shadowed.stderr.startswith("error: ") and "runtime.py" in shadowed.stderr
