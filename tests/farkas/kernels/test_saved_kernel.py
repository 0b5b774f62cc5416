"""Kernels in files: loaded without a compiler, equal in all that can be asked."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farkas as fk
from poly.ir import instruction_tables

TEXT = "C[i,j] +=! A[i,k] * B[k,j]"
RNG = np.random.default_rng(0)
A = RNG.standard_normal((70, 90)).astype(np.float32)
B = RNG.standard_normal((90, 50)).astype(np.float32)
Away = Callable[[], None]


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Away:
    """Take the compiler away, and what is in the cache."""

    def take() -> None:
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("FARKAS_CACHE_DIR", str(tmp_path / "empty"))

    return take


def tiled(schedule: fk.Schedule) -> fk.Schedule:
    return schedule.tile("S0", ["i", "j"], [32, 32])


def loaded(kernel: fk.Kernel, path: Path, away: Away) -> fk.Kernel:
    kernel.save(path)
    away()
    made = fk.load(path)
    assert isinstance(made, fk.Kernel)
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: fk.compile(TEXT, dtypes="float32"),
        lambda: fk.compile(TEXT, dtypes="float32", threads=1, exact=True, name="product"),
        lambda: fk.compile(TEXT, dtypes="float32", sizes={"K": 90}),
        lambda: fk.compile(TEXT, dtypes="float32", schedule=tiled),
        lambda: fk.compile(TEXT, dtypes="float32", schedule="written"),
        lambda: fk.compile("ij,jk->ik", dtypes="float32"),
        lambda: fk.compile("def f(float32 A[I,K], float32 B[K,J]) -> (C) { " + TEXT + " }"),
    ],
)
def test_it_comes_back(make: Callable[[], fk.Kernel], tmp_path: Path, away: Away) -> None:
    kernel = make()
    expected = kernel(A, B)
    made = loaded(kernel, tmp_path / "k.fkm", away)
    assert (made.program, made.source, made.text) == (kernel.program, kernel.source, kernel.text)
    assert (str(made.schedule), made.dtypes) == (str(kernel.schedule), kernel.dtypes)
    assert made.tree == kernel.tree
    for threads in (None, 1, 2):
        np.testing.assert_array_equal(made(A, B, threads=threads), expected)
    out = np.empty_like(expected)
    assert made(A, B, out=out) is out
    assert made.verify(threads=1).close(1e-4)
    assert str(made.explain()) == str(kernel.explain())
    with pytest.raises(fk.ArgumentError, match="rank 1"):
        made(A[0], B)


def test_element_types_that_came_before(tmp_path: Path, away: Away) -> None:
    kernel = fk.compile(TEXT)
    results = [kernel(A.astype(t), B.astype(t)) for t in ("f4", "f8")]
    made = loaded(kernel, tmp_path / "k.fkm", away)
    assert made.dtypes == kernel.dtypes
    for t, expected in zip(("f4", "f8"), results, strict=True):
        np.testing.assert_array_equal(made(A.astype(t), B.astype(t)), expected)
    with pytest.raises(fk.ToolchainError, match="not compiled yet, and no C compiler was found"):
        made(A.astype("i4"), B.astype("i4"))
    with pytest.raises(fk.ToolchainError, match="not compiled yet, and no C compiler was found"):
        made.with_schedule("written")


def test_more_is_compiled_where_there_is_a_compiler(tmp_path: Path, away: Away) -> None:
    kernel = fk.compile(TEXT)
    kernel(A, B)
    kernel.save(tmp_path / "k.fkm")
    made = fk.load(tmp_path / "k.fkm", cache=tmp_path / "cache")
    assert isinstance(made, fk.Kernel)
    doubles = made(A.astype("f8"), B.astype("f8"))
    np.testing.assert_allclose(doubles, A.astype("f8") @ B, rtol=1e-6)
    again = loaded(made, tmp_path / "more.fkm", away)
    assert len(again.dtypes) == 2
    np.testing.assert_array_equal(again(A.astype("f8"), B.astype("f8")), doubles)


def test_an_instruction_of_the_user(tmp_path: Path, away: Away) -> None:
    fk.intrinsic(
        "def neg4(float32 x[4]) -> (float32 z[4]) { z[i] = -x[i] }",
        "for (int k = 0; k < 4; k++) {z}[k] = -{x}[k];",
    )
    kernel = fk.compile(
        "def f(float32 x[8]) -> (float32 y[8]) { y[i] = -x[i] }",
        schedule="split S0: i by 4\ntensorize S0: i_i as neg4",
    )
    x = np.arange(8, dtype=np.float32)
    steps = str(kernel.schedule)
    instruction_tables._KNOWN.pop("neg4")  # as in a new process
    made = loaded(kernel, tmp_path / "k.fkm", away)
    np.testing.assert_array_equal(made(x), -x)
    assert str(made.schedule) == steps


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(fk.UntypedError, match="call the kernel first"):
        fk.compile(TEXT, schedule=lambda s: tiled(s)).save(tmp_path / "k.fkm")
    on_gpu = fk.compile(TEXT, dtypes="float32", target="cuda-emulator")
    with pytest.raises(fk.ArgumentError, match="target 'cuda' cannot be saved"):
        on_gpu.save(tmp_path / "k.fkm")
    assert list(tmp_path.iterdir()) == []


def ran(kernel: fk.Kernel) -> Any:
    return kernel(A, B)


def test_a_loaded_kernel_is_sent_to_another_process(tmp_path: Path, away: Away) -> None:
    kernel = fk.compile(TEXT, dtypes="float32")
    made = loaded(kernel, tmp_path / "k.fkm", away)
    np.testing.assert_array_equal(ran(pickle.loads(pickle.dumps(made))), ran(kernel))
    with get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(ran, (made,)), ran(kernel))
