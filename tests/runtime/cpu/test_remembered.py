"""What was compiled before is found where the compiler is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from poly.errors import ToolchainError
from runtime.common.cache import Cache
from runtime.cpu.remembered import (
    at_hand,
    look_for,
    read_toolchain,
    remember,
    toolchain_data,
)
from runtime.cpu.toolchain import Toolchain, find_toolchain

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import os, sys
import numpy as np
import farkas as fk
from tests.robustness.nets import tiny_net
import onnx

new = sys.argv[1:] == ["new"]
a = np.ones((100, 100), np.float32)
kernel = fk.compile("C[i,j] +=! A[i,k] * B[k,j]", dtypes="float32")
assert (kernel(a, a, threads=2) == 100).all()
assert len(os.listdir("/proc/self/task")) >= 2
assert (kernel(a, a) == 100).all() and kernel._loaded[0].quick((a, a), None, 1, None) is not None
onnx.save(tiny_net(), "tiny.onnx")
for model in ("tiny.onnx", tiny_net()):
    model = fk.compile_onnx(model)
    model.run({p.name: np.ones(p.shape, np.float32) for p in model.inputs})
if new:
    try:
        fk.compile("y[i] = x[i] * 17", dtypes="float32")
    except fk.ToolchainError as error:
        print(error)
"""


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    environment["FARKAS_CACHE_DIR"] = str(folder / "cache")
    environment.pop("CC", None)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_warm_cache_needs_no_compiler(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    first = run(tmp_path)
    assert first.returncode == 0, first.stderr
    again = run(tmp_path, "new", PATH=str(tmp_path / "bin"))
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(
        "something is not compiled yet, and no C compiler was found: install gcc or clang"
    )


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """A folder without a compiler."""
    folder = tmp_path / "nowhere"
    folder.mkdir()
    return folder


def test_a_cache_remembers_a_compiler(
    toolchain: Toolchain, tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Cache(tmp_path / "cache")
    remember(toolchain, "", store)
    assert look_for("", store) == toolchain
    monkeypatch.setenv("PATH", str(nowhere))
    monkeypatch.delenv("CC", raising=False)
    found = look_for("", store)
    assert found == replace(toolchain, remembered="") and found.identity == toolchain.identity
    with pytest.raises(ToolchainError, match=r"not compiled yet, and no C compiler was found"):
        at_hand(found)
    with pytest.raises(ToolchainError, match=r"^no C compiler was found"):
        look_for("", Cache(tmp_path / "other"))
    with pytest.raises(ToolchainError, match="does not exist"):
        look_for(str(nowhere / "gcc"), store)
    monkeypatch.setattr("runtime.cpu.remembered.cpu_identity", lambda: "another processor")
    with pytest.raises(ToolchainError, match=r"^no C compiler was found"):
        look_for("", store)


def test_another_compiler_stands_in(toolchain: Toolchain) -> None:
    assert at_hand(toolchain) is toolchain
    gone = replace(toolchain, path="/none/gcc", remembered="")
    assert at_hand(gone) == find_toolchain()


def test_a_description_is_read_strictly(toolchain: Toolchain) -> None:
    data = toolchain_data(toolchain)
    assert read_toolchain(data) == replace(toolchain, remembered="")
    for other in (None, [], {}, {**data, "more": 1}, {k: v for k, v in data.items() if k != "cpu"}):
        with pytest.raises(ValueError, match="not the description"):
            read_toolchain(other)


def test_a_damaged_entry_is_none(
    toolchain: Toolchain, tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Cache(tmp_path / "cache")
    remember(toolchain, "", store)
    (file,) = (tmp_path / "cache").rglob("toolchain.json")
    file.write_text("{}")
    monkeypatch.setenv("PATH", str(nowhere))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ToolchainError, match=r"^no C compiler was found"):
        look_for("", store)
