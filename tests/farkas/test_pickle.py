"""Kernels and networks are copied, pickled and sent to other processes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import farkas as fk
from farkas.targets.cpu import CpuRunner
from poly.errors import CacheError, ToolchainError
from runtime.common.cache import Cache
from runtime.cpu.toolchain import find_toolchain

TEXT = "mm: C[i,j] = A[i,j] * B[j,i]"
A, B = np.ones((4, 5), np.float32), np.full((5, 4), 2, np.float32)


def tiled(schedule: fk.Schedule) -> fk.Schedule:
    return schedule.split("mm", "i", 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fk.compile(TEXT),
        lambda: fk.compile(TEXT, dtypes="float32", threads=1, exact=True, name="product"),
        lambda: fk.compile(TEXT, dtypes="float32", sizes={"J": 5}),
        lambda: fk.compile(TEXT, dtypes="float32", schedule="split mm: i by 2"),
        lambda: fk.compile(TEXT, dtypes="float32", schedule=tiled),
        lambda: fk.compile(TEXT, dtypes="float32", schedule=lambda s: tiled(s)),
        lambda: fk.compile(TEXT, dtypes="float32").with_schedule(
            fk.compile(TEXT, dtypes="float32").schedule
        ),
        lambda: fk.compile("ij,jk->ik", dtypes=["float32", "float32"]),
        lambda: fk.compile("ij,jk->ik", dtypes=["float32", "float32"], target="cuda-emulator"),
    ],
)
def test_kernels_come_back_as_they_were(make: Callable[[], fk.Kernel]) -> None:
    kernel = make()
    expected = kernel(A, B)
    assert copy.copy(kernel) is kernel and copy.deepcopy([kernel])[0] is kernel
    again = pickle.loads(pickle.dumps(kernel))
    assert again is not kernel
    assert (again.text, again.dtypes) == (kernel.text, kernel.dtypes)
    assert (again.program, again.source) == (kernel.program, kernel.source)
    assert again.target.language == kernel.target.language
    assert again.target.runner.cache.directory == kernel.target.runner.cache.directory
    np.testing.assert_array_equal(again(A, B), expected)


def test_all_element_types_come_back() -> None:
    kernel = fk.compile(TEXT)
    kernel(A, B)
    kernel(A.astype(np.float64), B.astype(np.float64))
    again = pickle.loads(pickle.dumps(kernel))
    assert again.dtypes == kernel.dtypes and len(again.dtypes) == 2


def test_a_schedule_that_is_not_known_yet() -> None:
    kernel = fk.compile(TEXT, schedule=lambda s: tiled(s))
    with pytest.raises(fk.UntypedError, match="call the kernel first"):
        pickle.dumps(kernel)


def product(kernel: fk.Kernel) -> Any:
    return kernel(A, B)


def test_another_process() -> None:
    kernel = fk.compile(TEXT, dtypes="float32")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        np.testing.assert_array_equal(pool.submit(product, kernel).result(), A * B.T)


def test_the_default_cache_stays_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default, chosen = Cache(), Cache(tmp_path / "chosen", 1 << 20)
    pickled = pickle.dumps((default, chosen))
    monkeypatch.setenv("FARKAS_CACHE_DIR", str(tmp_path / "other"))
    found = pickle.loads(pickled)
    assert found[0].directory == tmp_path / "other"
    assert (found[1].directory, found[1].limit) == (chosen.directory, chosen.limit)
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("FARKAS_CACHE_DIR", str(blocked))
    with pytest.raises(CacheError, match="is not a directory"):
        pickle.loads(pickled)


def test_another_processor() -> None:
    here = find_toolchain()
    elsewhere = replace(here, cpu="another one", flags=("-march=another",))
    assert pickle.loads(pickle.dumps(CpuRunner(elsewhere, Cache()))).toolchain == here
    gone = replace(elsewhere, path="/none/gcc")
    with pytest.raises(ToolchainError, match="/none/gcc does not exist"):
        pickle.loads(pickle.dumps(CpuRunner(gone, Cache())))


@pytest.mark.parametrize("target", ["cpu", "cuda-emulator"])
@pytest.mark.parametrize("extent", [3, "n"])
def test_networks(extent: int | str, target: str) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [extent])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [extent])
    proto = helper.make_model(helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g",
                                                [x], [y]))  # fmt: skip
    model = fk.compile_onnx(proto, progress=lambda *a: None, target=target)
    given = {"x": np.arange(3, dtype=np.float32)}
    expected = model.run(given)["y"]
    assert copy.copy(model) is model and copy.deepcopy(model) is model
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.run(given)["y"], expected)
