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
import onnx
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


# --- instructions and errors -------------------------------------------------------------------

NEGATE = "def f(float32 x[8]) -> (float32 y[8]) { y[i] = -x[i] }"
MEANING = "def neg4(float32 x[4]) -> (float32 z[4]) { z[i] = -x[i] }"
NEG4 = "for (int k = 0; k < 4; k++) {z}[k] = -{x}[k];"
SCRIPT = "split S0: i by 4\ntensorize S0: i_i as neg4"
EIGHT = np.arange(8, dtype=np.float32)


def negated(kernel: fk.Kernel) -> Any:
    return kernel(EIGHT), kernel.source


def test_instructions_of_the_user_go_with_a_kernel() -> None:
    """They are not declared in a new process."""
    fk.intrinsic(MEANING, NEG4)
    kernel = fk.compile(NEGATE, schedule=SCRIPT)
    with get_context("spawn").Pool(1) as pool:
        result, source = pool.apply(negated, (kernel,))
    np.testing.assert_array_equal(result, -EIGHT)
    assert source == kernel.source and "neg4" in source


def test_an_instruction_that_is_another_one_there() -> None:
    fk.intrinsic(MEANING, NEG4)
    pickled = pickle.dumps(fk.compile(NEGATE, schedule=SCRIPT))
    assert (pickle.loads(pickled)(EIGHT) == -EIGHT).all()
    fk.intrinsic(MEANING, NEG4.replace("k", "l"))
    with pytest.raises(fk.IntrinsicError, match="another instruction of this name"):
        pickle.loads(pickled)


def error_of(action: Callable[[], object]) -> fk.FarkasError:
    with pytest.raises(fk.FarkasError) as caught:
        action()
    return caught.value


@pytest.mark.parametrize(
    "action",
    [
        lambda: fk.Schedule.of(fk.parse("y[i] +=! x[i,k]", "float32")).parallelize("S0", "k"),
        lambda: fk.compile("y[i] = sqroot(x[i])"),
        lambda: fk.compile("y[i] = x[i]", dtypes="float32")(1),
        lambda: fk.compile_onnx(unknown()),
        lambda: fk.intrinsic(MEANING, NEG4.replace("-{x}", "{x}")),
        lambda: fk.compile("y[i] = x[i]").program,
        lambda: fk.compile_onnx("/none.onnx"),
    ],
)
def test_errors_come_back(action: Callable[[], object]) -> None:
    """Else a pool of processes waits for them forever."""
    error = error_of(action)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
    plain = {n for n, v in vars(error).items() if isinstance(v, (str, int, tuple, dict))}
    assert all(getattr(again, n) == getattr(error, n) for n in plain)
    assert vars(again).keys() == vars(error).keys()


def unknown() -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    nodes = [helper.make_node("NoSuchThing", ["x"], ["y"])]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")]))


def refused(script: str) -> Any:
    return fk.compile(TEXT, dtypes="float32", schedule=script)


def test_an_error_in_another_process() -> None:
    with get_context("spawn").Pool(1) as pool, pytest.raises(fk.ScheduleError, match="nothing"):
        pool.apply(refused, ("parallelize nothing: k",))


def test_methods_come_back() -> None:
    kernel = fk.compile(TEXT, dtypes="float32")
    call = pickle.loads(pickle.dumps(kernel.__call__))
    np.testing.assert_array_equal(call(A, B), kernel(A, B))
