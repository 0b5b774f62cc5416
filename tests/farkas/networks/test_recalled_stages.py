"""Networks of open sizes in the cache: their stages are found again, and only if they are valid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farkas as fk
from farkas.networks import network_cache
from tests.farkas.conftest import Command, save_apart
from tests.farkas.networks.test_open_sizes import NETWORKS
from tests.farkas.networks.test_stages import build
from tests.farkas.open_networks import random_inputs

F, L = TensorProto.FLOAT, TensorProto.INT64
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def matmul(weights: np.ndarray = WEIGHTS) -> onnx.ModelProto:
    """``y = x w`` for any number of rows."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return build([node], {"x": (F, ["n", 4])}, {"y": F}, {"w": weights})


def rows(n: int) -> np.ndarray:
    return np.linspace(-1, 1, 4 * n, dtype=np.float32).reshape(n, 4)


def check(model: fk.Network, n: int, weights: np.ndarray = WEIGHTS) -> None:
    np.testing.assert_allclose(model.run({"x": rows(n)})["y"], rows(n) @ weights, rtol=1e-5)


def is_recalled(model: fk.Network) -> bool:
    """Whether all that ran was loaded without being imported."""
    return model.report.from_cache and {name for name, _ in model.report.stages} == {"load"}


@pytest.fixture
def store(tmp_path: Path) -> fk.Cache:
    return fk.Cache(tmp_path / "cache")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "network.onnx"
    onnx.save(matmul(), path)
    return path


def test_variants_are_imported_once(file: Path, store: fk.Cache) -> None:
    cold = fk.compile_onnx(file, cache=store)
    check(cold, 1)
    assert not cold.report.from_cache
    warm = fk.compile_onnx(file, cache=store)
    assert warm.conditions == cold.conditions and warm.inputs == cold.inputs
    assert warm.outputs == cold.outputs and not warm.is_whole
    check(warm, 1)
    assert is_recalled(warm) and len(warm.conditions) == 1
    # A first array with one row has a variant of its own; all others share another.
    for n in (5, 2, 40):
        check(warm, n)
    assert not is_recalled(warm) and len(warm.conditions) == 2
    again = fk.compile_onnx(file, cache=store)
    assert set(again.conditions) == set(warm.conditions)
    for n in (1, 7):
        check(again, n)
    assert is_recalled(again)
    assert str(again.graphs[0]) in map(str, warm.graphs) and set(again.schedules)
    assert again.compare("onnxruntime", {"x": rows(3)}).agrees
    parts = [*store.directory.glob("v1/*/*/constants-0")]
    assert len(parts) == 1, "both variants read the same weights"


@pytest.mark.parametrize("name", NETWORKS)
def test_recalled_networks_compute_the_same(name: str, tmp_path: Path, store: fk.Cache) -> None:
    network, file = NETWORKS[name], tmp_path / "network.onnx"
    onnx.save(network.model, file)
    draw = np.random.default_rng(7)
    batches = [random_inputs(network, draw) for _ in range(4)]
    cold = fk.compile_onnx(file, cache=store)
    wanted = [cold.run(b) for b in batches]
    warm = fk.compile_onnx(file, cache=store)
    for batch, results in zip(batches, wanted, strict=True):
        found = warm.run(batch)
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in results.items()
        }
    assert is_recalled(warm) or cold.opaque_operators


def reshaped() -> onnx.ModelProto:
    """``z = softmax(reshape(exp(x), 2 s))``: a stage must wait for elements."""
    nodes = [
        helper.make_node("Add", ["s", "s"], ["t"]),
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Reshape", ["e", "t"], ["r"]),
        helper.make_node("Softmax", ["r"], ["z"]),
    ]
    return build(nodes, {"x": (F, ["n", "m"]), "s": (L, ["k"])}, {"z": F}, {})


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def test_stages_that_depend_on_elements(tmp_path: Path, store: fk.Cache) -> None:
    file = tmp_path / "network.onnx"
    onnx.save(reshaped(), file)
    x = np.random.default_rng(3).random((4, 6), np.float32)

    def run(model: fk.Network, *shape: int) -> None:
        half = np.array(shape, np.int64) // 2
        found = model.run({"x": x, "s": half})["z"]
        np.testing.assert_allclose(found, softmax(np.exp(x).reshape(shape)), rtol=1e-5)

    cold = fk.compile_onnx(file, cache=store)
    run(cold, 12, 2)
    warm = fk.compile_onnx(file, cache=store)
    run(warm, 12, 2)
    assert is_recalled(warm) and warm.conditions == cold.conditions
    run(warm, 4, 6)  # other elements: the rest is imported for them
    assert not is_recalled(warm)
    again = fk.compile_onnx(file, cache=store)
    run(again, 4, 6)
    run(again, 12, 2)
    assert is_recalled(again)


def test_operators_that_run_as_numpy_are_imported_again(tmp_path: Path, store: fk.Cache) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("NonZero", ["y"], ["i"]),
        helper.make_node("Add", ["i", "i"], ["z"]),
    ]
    file = tmp_path / "network.onnx"
    onnx.save(build(nodes, {"x": (F, ["n"])}, {"z": L}, {}), file)
    x = np.array([0, 1, 0, 2, 3], np.float32)
    for _ in range(2):
        model = fk.compile_onnx(file, cache=store)
        np.testing.assert_array_equal(model.run({"x": x})["z"], 2 * np.array(x.nonzero()))
        assert model.opaque_operators == ("NonZero",)


def test_neither_onnx_nor_isl_is_loaded(file: Path, store: fk.Cache, command: Command) -> None:
    check(fk.compile_onnx(file, cache=store), 5)
    done = command(
        "-c",
        "import sys, numpy, farkas as fk\n"
        f"model = fk.compile_onnx({str(file)!r}, cache={str(store.directory)!r})\n"
        "print(model.run({'x': numpy.ones((6, 4), 'f')})['y'].tolist()[5])\n"
        "print(sorted({'onnx', 'islpy', 'frontends.onnx.importer'} & {*sys.modules}))",
    )
    assert done.stdout == "[18.0, 22.0, 26.0]\n[]\n", done.stderr


def test_a_file_that_changed_is_not_mixed_with_what_was_compiled(
    file: Path, store: fk.Cache
) -> None:
    check(fk.compile_onnx(file, cache=store), 1)
    warm = fk.compile_onnx(file, cache=store)
    onnx.save(matmul(-WEIGHTS), file)
    check(warm, 1)
    with pytest.raises(fk.ModelError, match=r"network\.onnx has changed since it was loaded"):
        warm.run({"x": rows(5)})
    check(warm, 1)
    with pytest.raises(fk.ModelError, match=r"network\.onnx has changed since it was loaded"):
        warm.specialize(n=7)
    changed = fk.compile_onnx(file, cache=store)
    check(changed, 5, -WEIGHTS)
    assert not is_recalled(changed)


def test_a_file_that_changes_before_the_first_run_is_not_kept(file: Path, store: fk.Cache) -> None:
    before = file.read_bytes()
    model = fk.compile_onnx(file, cache=store)
    onnx.save(matmul(-WEIGHTS), file)
    check(model, 5)  # it was read before
    file.write_bytes(before)
    again = fk.compile_onnx(file, cache=store)
    check(again, 5)
    assert "import" in dict(again.report.stages)


def test_external_data_counts(tmp_path: Path, store: fk.Cache) -> None:
    file = tmp_path / "network.onnx"

    save_apart(matmul(), file)
    for _ in range(2):
        model = fk.compile_onnx(file, cache=store)
        check(model, 5)
    assert is_recalled(model)
    save_apart(matmul(-WEIGHTS), file)
    changed = fk.compile_onnx(file, cache=store)
    check(changed, 5, -WEIGHTS)
    assert not is_recalled(changed)


@pytest.mark.parametrize("name", ["constants-0", "graph.pickle", "kernel.so", "network.pickle"])
@pytest.mark.parametrize("damage", ["changed", "gone"])
@pytest.mark.parametrize("when", ["before it is found", "before it is loaded"])
def test_what_is_damaged_is_made_again(
    file: Path, store: fk.Cache, name: str, damage: str, when: str
) -> None:
    cold = fk.compile_onnx(file, cache=store)
    check(cold, 5)
    found = None if when == "before it is found" else fk.compile_onnx(file, cache=store)
    (path,) = (
        [cold.compiled[0].entry.path / name]
        if name == "kernel.so"
        else store.directory.glob(f"v1/*/*/{name}")
    )
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "changed":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    mended = found or fk.compile_onnx(file, cache=store)
    check(mended, 5)
    if found is None or name != "network.pickle":
        assert not is_recalled(mended)
        again = fk.compile_onnx(file, cache=store)
        check(again, 5)
        assert is_recalled(again)


def test_other_code_imports_again(
    file: Path, store: fk.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(fk.compile_onnx(file, cache=store), 5)
    monkeypatch.setattr(network_cache, "code_digest", lambda *packages: "another")
    other = fk.compile_onnx(file, cache=store)
    check(other, 5)
    assert not is_recalled(other)


def test_what_is_too_large_for_the_cache_is_not_kept(file: Path, tmp_path: Path) -> None:
    small = fk.Cache(tmp_path / "small", limit=128)
    for _ in range(2):
        model = fk.compile_onnx(file, cache=small)
        check(model, 5)
        assert "import" in dict(model.report.stages)


def test_what_is_prepared_is_not_compiled_again(
    file: Path, store: fk.Cache, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, str]] = []
    model = fk.compile_onnx(
        file, cache=store, progress=lambda s, d, n, what: told.append((s, what))
    )
    with caplog.at_level("INFO", "farkas"):
        model.prepare({"n": 8})
        assert caplog.messages == ["compiling for x[8, 4]; compiled before: nothing"]
        assert ("import", "for x[8, 4]") in told
        model.prepare({"x": (3, 4)})
        check(model, 5)
        assert len(caplog.messages) == 1 and len(model.conditions) == 1
        ((conditions, seconds),) = model.report.variants
        assert (conditions,) == model.conditions and seconds > 0
    again = fk.compile_onnx(file, cache=store)
    check(again, 9)
    assert is_recalled(again)


def test_shapes_that_cannot_be_prepared(file: Path, store: fk.Cache) -> None:
    model = fk.compile_onnx(file, cache=store)
    for shapes, message in (
        ({}, r"the size of dimension 0 of input float32 x\[n,4\] is not given"),
        ({"m": 3}, r"shapes names 'm'; the inputs are float32 x\[n,4\]"),
        ({"x": (3, 5)}, r"x has shape \(3, 5\), not float32 x\[n,4\]"),
        ({"x": (3,)}, r"x has shape \(3,\), not float32 x\[n,4\]"),
        ({"n": -1}, "negative size"),
        ({"n": 2.5}, r"shapes\['n'\]"),
    ):
        with pytest.raises(fk.ArgumentError, match=message):
            model.prepare(shapes)  # type: ignore[arg-type]
    whole = fk.compile_onnx(file, shapes={"n": 2}, cache=store)
    whole.prepare({})
    with pytest.raises(fk.ArgumentError, match="x has shape"):
        whole.prepare({"x": (3, 4)})


def test_stages_that_need_elements_are_left_to_the_first_run(
    tmp_path: Path, store: fk.Cache
) -> None:
    file = tmp_path / "network.onnx"
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    onnx.save(build(nodes, {"x": (F, ["n"]), "s": (L, [2])}, {"y": F}, {}), file)
    model = fk.compile_onnx(file, cache=store)
    for _ in range(2):
        model.prepare({"n": 6})
        assert model.conditions == ()
    x, s = np.arange(6, dtype=np.float32), np.array([2, 3])
    np.testing.assert_array_equal(model.run({"x": x, "s": s})["y"], x.reshape(2, 3))
