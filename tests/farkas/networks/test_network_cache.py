"""Networks that were compiled before are loaded whole, and only if nothing has changed."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import defs, helper, numpy_helper

import farkas as fk
from farkas.networks import network_cache as recall
from frontends.onnx.core import node, schemas
from runtime.common.fingerprint import PART, data_digest, file_digest
from tests.farkas.conftest import Command, model_of, save_apart

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def network(weights: np.ndarray = WEIGHTS) -> onnx.ModelProto:
    """``y = x w``, with a weight that kernels read in a layout of their own, and one as output."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], {"x": [2, 4]}, {"y": [2, 3], "w": [4, 3]})
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    model.ir_version = 9  # which ONNX Runtime knows
    return model


OPERATORS = dict(node._OPERATORS)


def is_whole(model: fk.Network) -> bool:
    """Whether a model was loaded without being imported."""
    return [name for name, _ in model.report.stages] == ["load"]


def check(model: fk.Network, weights: np.ndarray = WEIGHTS) -> None:
    found = model.run({"x": X})
    np.testing.assert_allclose(found["y"], X @ weights, rtol=1e-5)
    np.testing.assert_array_equal(found["w"], weights)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "network.onnx"
    onnx.save(network(), path)
    return path


def test_a_file_is_imported_once(file: Path, tmp_path: Path) -> None:
    store = fk.Cache(tmp_path / "cache")
    cold = fk.compile_onnx(file, cache=store)
    assert not cold.report.from_cache and cold.report.stages[-1][0] == "store"
    again = fk.compile_onnx(file, cache=store)
    assert again.report.from_cache and is_whole(again)
    for attribute in ("kernels", "calls", "arena_bytes", "arena_bound", "constant_bytes"):
        assert getattr(again.report, attribute) == getattr(cold.report, attribute)
    assert again.is_whole and cold.is_whole
    assert str(again.graphs[0]) == str(cold.graphs[0]) and again.source == cold.source
    assert again.run({"x": X})["y"].tobytes() == cold.run({"x": X})["y"].tobytes()
    check(again)
    assert again.compare("onnxruntime", {"x": X}).agrees
    with pytest.raises(fk.ArgumentError, match="no named dimension is dynamic"):
        again.specialize(batch=1)
    # The content counts, and not where it comes from.
    assert is_whole(fk.compile_onnx(file.read_bytes(), cache=store))
    assert is_whole(fk.compile_onnx(str(file), cache=store, threads=1))
    # A message in memory has no content that could be told without copying it.
    assert not is_whole(fk.compile_onnx(network(), cache=store))


def test_a_file_that_changed_is_imported(file: Path, tmp_path: Path) -> None:
    store = fk.Cache(tmp_path / "cache")
    check(fk.compile_onnx(file, cache=store))
    onnx.save(network(-WEIGHTS), file)
    changed = fk.compile_onnx(file, cache=store)
    assert not is_whole(changed)
    check(changed, -WEIGHTS)


def test_external_data_counts(tmp_path: Path) -> None:
    store, file = fk.Cache(tmp_path / "cache"), tmp_path / "network.onnx"

    save_apart(network(), file)
    before = file.read_bytes()
    fk.compile_onnx(file, cache=store)
    assert is_whole(fk.compile_onnx(file, cache=store))
    save_apart(network(-WEIGHTS), file)
    assert file.read_bytes() == before
    changed = fk.compile_onnx(file, cache=store)
    assert not is_whole(changed)
    check(changed, -WEIGHTS)
    again = fk.compile_onnx(file, cache=store)
    assert is_whole(again)
    check(again, -WEIGHTS)
    (tmp_path / "weights").unlink()
    with pytest.raises(fk.ModelError, match="cannot be read"):
        fk.compile_onnx(file, cache=store)


@pytest.mark.parametrize("recalled", [False, True])
def test_weights_that_change_between_runs(recalled: bool, tmp_path: Path) -> None:
    """One network does not compute with two sets of weights."""
    store, file = fk.Cache(tmp_path / "cache"), tmp_path / "network.onnx"
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([node], {"x": ["n", 4]}, {"y": ["n", 3]})
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    save_apart(model, file)
    found = fk.compile_onnx(file, cache=store)
    rows = np.ones((5, 4), np.float32)
    found.run({"x": rows})
    if recalled:
        found = fk.compile_onnx(file, cache=store)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(-WEIGHTS, "w"))
    save_apart(model, file)
    np.testing.assert_allclose(found.run({"x": rows})["y"], rows @ WEIGHTS, rtol=1e-5)
    for call in (lambda: found.run({"x": rows[:0]}), lambda: found.specialize(n=2)):
        with pytest.raises(fk.ModelError, match="has changed since"):
            call()


def test_a_model_that_is_replaced(tmp_path: Path) -> None:
    """Weights inside have been read; an unpickled network is compiled of what is there."""
    file = tmp_path / "network.onnx"
    made = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_of([made], {"x": ["n", 4]}, {"y": ["n", 3]})
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    rows = np.ones((5, 4), np.float32)
    for apart in (False, True):
        store = fk.Cache(tmp_path / f"cache{apart}")
        for weights in (WEIGHTS, -WEIGHTS):
            model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights, "w"))
            save_apart(model, file) if apart else onnx.save(model, file)
            if weights is WEIGHTS:
                found = fk.compile_onnx(file, cache=store)
                data = pickle.dumps(found)
        if not apart:
            np.testing.assert_allclose(found.run({"x": rows})["y"], rows @ WEIGHTS, rtol=1e-5)
        again = pickle.loads(data).run({"x": rows})
        np.testing.assert_allclose(again["y"], -rows @ WEIGHTS, rtol=1e-5)


OWN = """
from frontends.language.parse_program import parse_program
from frontends.onnx.core.node import Compute, operator

@operator("Times", domain="example.cache")
def times(node):
    text = "def times(float32 X[2,4]) -> (Y) {{ Y[i,j] = X[i,j] * {factor} }}"
    return [Compute(parse_program(text), (node.required(0),))]
"""


def test_operators_of_ones_own_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network is compiled again where the formula of an operator has changed."""
    store, file = fk.Cache(tmp_path / "cache"), tmp_path / "network.onnx"
    domain = "example.cache"
    operand = defs.OpSchema.FormalParameter
    if schemas.added_schema("Times", domain) is None:
        schemas.add_schema(
            defs.OpSchema(
                "Times", domain, 1, inputs=[operand("X", "T")], outputs=[operand("Y", "T")],
                type_constraints=[("T", ["tensor(float)"], "")],
            )
        )  # fmt: skip
    model = model_of([helper.make_node("Times", ["x"], ["y"], domain=domain)],
                     {"x": [2, 4]}, {"y": [2, 4]})  # fmt: skip
    model.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(model, file)
    rows = np.ones((2, 4), np.float32)
    for factor, known in ((2, False), (3, False), (3, True)):
        monkeypatch.setattr(node, "_OPERATORS", {**OPERATORS})
        path = tmp_path / "own.py"
        path.write_text(OWN.format(factor=factor))
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "own"})
        found = fk.compile_onnx(file, cache=store)
        assert is_whole(found) == known
        np.testing.assert_array_equal(found.run({"x": rows})["y"], rows * factor)


def test_shapes_count(tmp_path: Path) -> None:
    store, file = fk.Cache(tmp_path / "cache"), tmp_path / "network.onnx"
    node = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(model_of([node], {"x": ["n", 4]}, {"y": ["n", 4]}), file)
    for n in (2, 3):
        first = fk.compile_onnx(file, shapes={"n": n}, cache=store)
        assert not is_whole(first)
        again = fk.compile_onnx(file, shapes={"n": n}, cache=store)
        assert is_whole(again) and again.inputs[0].shape == (n, 4)
    with pytest.raises(fk.ArgumentError, match="shapes names 'z'"):
        fk.compile_onnx(file, shapes={"z": 2}, cache=store)


def test_sizes_count_even_if_nothing_is_computed_with_them(tmp_path: Path) -> None:
    """Kernels are the same for open and fixed sizes; the pointers that they are passed are not."""
    store, file = fk.Cache(tmp_path / "cache"), tmp_path / "network.onnx"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["w"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    inputs = {"x": [2, 4], "w": [4, 3], "unread": ["n"]}
    onnx.save(model_of(nodes, inputs, {"y": [2, 3]}), file)
    arrays = {"x": X, "w": WEIGHTS, "unread": np.zeros(5, np.float32)}
    for shapes in ({}, {"n": 5}, {}):
        found = fk.compile_onnx(file, shapes=shapes, cache=store).run(arrays)
        np.testing.assert_allclose(found["y"], X @ WEIGHTS @ WEIGHTS.T @ WEIGHTS, rtol=1e-5)


@pytest.mark.parametrize("name", ["constants-0", "graph.pickle", "kernel.so"])
@pytest.mark.parametrize("damage", ["changed", "shorter", "longer", "gone"])
def test_what_is_damaged_is_built_again(file: Path, tmp_path: Path, name: str, damage: str) -> None:
    store = fk.Cache(tmp_path / "cache")
    model = fk.compile_onnx(file, cache=store)
    assert model.is_whole
    entries = (
        [model.compiled[0].entry.path] if name == "kernel.so" else store.directory.glob("v1/*/*")
    )
    (path,) = (e / name for e in entries if (e / name).exists())
    data = bytearray(path.read_bytes())
    path.unlink()  # and not in place: this process has loaded the library
    if damage != "gone":
        data[len(data) // 2] ^= 1
        path.write_bytes({"shorter": data[:-1], "longer": data + b"x"}.get(damage, data))
    mended = fk.compile_onnx(file, cache=store)
    assert not is_whole(mended)
    check(mended)
    assert is_whole(fk.compile_onnx(file, cache=store))


def test_other_code_imports_again(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fk.Cache(tmp_path / "cache")
    fk.compile_onnx(file, cache=store)
    monkeypatch.setattr(recall, "code_digest", lambda *packages: "another")
    assert not is_whole(fk.compile_onnx(file, cache=store))


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fk.Cache(tmp_path / "cache")
    contents = iter(["before", "after"])
    monkeypatch.setattr(recall, "model_digest", lambda source: next(contents))
    fk.compile_onnx(file, cache=store)
    monkeypatch.setattr(recall, "model_digest", lambda source: "before")
    assert not is_whole(fk.compile_onnx(file, cache=store))


def test_what_is_too_large_for_the_cache_is_not_kept(file: Path, tmp_path: Path) -> None:
    store = fk.Cache(tmp_path / "cache", limit=128)
    fk.compile_onnx(file, cache=store)
    assert not is_whole(fk.compile_onnx(file, cache=store))


def test_the_compiler_is_not_even_imported(file: Path, tmp_path: Path, command: Command) -> None:
    store = tmp_path / "cache"
    fk.compile_onnx(file, cache=store)
    done = command(
        "-c",
        "import sys, farkas as fk\n"
        f"model = fk.compile_onnx({str(file)!r}, cache={str(store)!r})\n"
        "print([n for n, _ in model.report.stages], sorted({'onnx', 'islpy'} & {*sys.modules}))",
    )
    assert done.stdout == "['load'] []\n", done.stderr


def test_digests_of_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    rng = np.random.default_rng(0)
    seen = set()
    for size in (0, 1, PART - 1, PART, PART + 1, 5 * PART + 7):
        data = rng.bytes(size)
        path.write_bytes(data)
        found = file_digest(path)
        assert found == data_digest(data) and found not in seen
        seen.add(found)
        if size:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            assert file_digest(path) != found
    assert file_digest(tmp_path) is None and file_digest(tmp_path / "nothing") is None
