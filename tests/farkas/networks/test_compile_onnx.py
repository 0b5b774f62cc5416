"""`compile_onnx` and ``farkas run``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from tests.farkas.conftest import Cli, model_of

Arrays = dict[str, np.ndarray]


def test_a_model_from_every_source(
    small_model: onnx.ModelProto, model_file: Path, arrays: Arrays
) -> None:
    for source in (small_model, small_model.SerializeToString(), model_file, str(model_file)):
        model = fk.compile_onnx(source, shapes={"batch": 2}, threads=1)
        assert model.is_whole
        results = model.run(arrays)
        assert list(results) == ["out/1", "sum"]
        product = arrays["x"] @ arrays["w"]
        np.testing.assert_allclose(results["out/1"], np.maximum(product, 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(results["sum"], arrays["x"] * 2)
    assert [p.name for p in model.inputs] == ["x", "w"]
    assert [str(p) for p in model.outputs] == ["float32 out/1[2,3]", "float32 sum[2,4]"]


@pytest.mark.parametrize("kind", ["message", "bytes"])
def test_a_model_that_changes_later(
    kind: str, small_model: onnx.ModelProto, arrays: Arrays
) -> None:
    data = bytearray(small_model.SerializeToString())
    model = fk.compile_onnx(small_model if kind == "message" else data)
    small_model.graph.ClearField("node")
    data[:] = bytes(len(data))
    for network in (model, model.specialize(batch=2)):
        np.testing.assert_array_equal(network.run(arrays)["sum"], arrays["x"] * 2)


def test_a_path_from_another_folder(
    model_file: Path, arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model_file.parent)
    model = fk.compile_onnx(model_file.name)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    np.testing.assert_array_equal(model.run(arrays)["sum"], arrays["x"] * 2)
    assert model.specialize(batch=2).is_whole


def test_sizes_that_no_memory_has(small_model: onnx.ModelProto) -> None:
    with pytest.raises(fk.ArgumentError, match="too large for memory"):
        fk.compile_onnx(small_model).prepare({"batch": 2**62})


def test_constants_are_kept_once(small_model: onnx.ModelProto) -> None:
    constant = onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    small_model.graph.initializer.append(constant)
    del small_model.graph.input[1]
    (model,) = fk.compile_onnx(small_model, shapes={"batch": 2}).compiled
    assert [a.size for a in model.graph.constants.values()] == [12]
    for array in model.graph.constants.values():
        assert array.ctypes.data % 64 == 0


def test_stages_are_reported_and_measured(small_model: onnx.ModelProto, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def progress(stage: str, done: int, total: int, what: str) -> None:
        assert isinstance(what, str)
        seen.append((stage, done, total))

    cache = tmp_path / "cache"
    model = fk.compile_onnx(small_model, shapes={"x": (2, 4)}, cache=cache, progress=progress)
    stages = [name for name, _ in model.report.stages]
    assert stages[0] == "import" and stages[-1] == "load" and "compile" in stages
    assert seen[0] == ("import", 0, 1) and seen[-1] == ("load", 1, 1)
    assert all(0 <= done <= total for _, done, total in seen)
    assert not model.report.from_cache and all(took >= 0 for _, took in model.report.stages)
    again = fk.compile_onnx(small_model, shapes={"x": (2, 4)}, cache=cache)
    assert again.report.from_cache
    assert [name for name, _ in again.report.stages] == ["import", "graph", "load"]
    assert any("void fk_network(" in text for text in model.source.values())


def test_errors(small_model: onnx.ModelProto, tmp_path: Path, arrays: Arrays) -> None:
    data = small_model.SerializeToString()
    with pytest.raises(fk.ArgumentError, match="shapes names 'z'"):
        fk.compile_onnx(small_model, shapes={"z": 1})
    for shapes, message in (
        ([3, 7], "shapes are given by name"),
        ("batch=2", "shapes are given by name"),
        ({3: 4}, r"shapes\[3\]: inputs and dimensions have names"),
        ({"batch": True}, r"shapes\['batch'\] must be an integer, not True"),
        ({"batch": "2"}, r"shapes\['batch'\] must be an integer, not '2'"),
        ({"batch": 2.0}, r"shapes\['batch'\] must be an integer, not 2.0"),
        ({"x": (None, 4)}, r"an extent of shapes\['x'\] must be an integer, not None"),
        ({"x": "24"}, r"shapes\['x'\] must be an integer, not '24'"),
    ):
        with pytest.raises(fk.ArgumentError, match=message):
            fk.compile_onnx(small_model, shapes=shapes)  # type: ignore[arg-type]
    with pytest.raises(fk.ModelError):
        fk.compile_onnx(data[: len(data) // 2])
    with pytest.raises(fk.ModelError):
        fk.compile_onnx(tmp_path / "nothing.onnx")
    with pytest.raises(fk.ArgumentError, match="threads"):
        fk.compile_onnx(small_model, shapes={"batch": 2}, threads=0)
    with pytest.raises(fk.ToolchainError):
        fk.compile_onnx(small_model, shapes={"batch": 2}, cc="/nothing/gcc")
    model = fk.compile_onnx(small_model, shapes={"batch": 2})
    for bad in ({}, {"x": arrays["x"]}, {**arrays, "z": 1}, {**arrays, "x": arrays["w"]}):
        with pytest.raises(fk.ArgumentError):
            model.run(bad)
    for wrong in (list(arrays.values()), next(iter(arrays.values())), 3):
        with pytest.raises(fk.ArgumentError, match="inputs are given by name"):
            model.run(wrong)  # type: ignore[arg-type]
        with pytest.raises(fk.ArgumentError, match="inputs are given by name"):
            model.profile(wrong)  # type: ignore[arg-type]
        with pytest.raises(fk.ArgumentError, match="outputs are given by name"):
            model.run(arrays, out=wrong)  # type: ignore[arg-type]
    again = fk.compile_onnx(small_model, shapes={"batch": np.int64(2)})
    assert again.inputs == model.inputs


def test_results_go_where_they_are_wanted(small_model: onnx.ModelProto, arrays: Arrays) -> None:
    model = fk.compile_onnx(small_model, shapes={"batch": 2})
    expected = model.run(arrays)
    given = {name: np.zeros_like(array) for name, array in expected.items()}
    found = model.run(arrays, out=given)
    for name, array in expected.items():
        assert found[name] is given[name]
        np.testing.assert_array_equal(given[name], array)
    name = next(iter(expected))
    with pytest.raises(fk.ArgumentError, match="there is no output 'nothing'"):
        model.run(arrays, out={"nothing": expected[name]})
    with pytest.raises(fk.ArgumentError, match="has rank 1"):
        model.run(arrays, out={name: expected[name].ravel()[:1]})
    block = np.zeros(1 << 16, np.uint8)
    shared, like = next(iter(arrays.values())), expected[name]
    overlapping = block[: shared.nbytes].view(shared.dtype).reshape(shared.shape)
    out = block[: like.nbytes].view(like.dtype).reshape(like.shape)
    with pytest.raises(fk.ArgumentError, match="shares memory"):
        model.run({**arrays, next(iter(arrays)): overlapping}, out={name: out})


def test_unsupported_nodes_are_all_named() -> None:
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["t"], name="first"),
        helper.make_node("NoSuchThing", ["x"], ["y"], name="second"),
        helper.make_node("Add", ["t", "y"], ["z"]),
    ]
    with pytest.raises(fk.UnsupportedModelError) as caught:
        fk.compile_onnx(model_of(nodes, {"x": [2]}, {"z": [2]}))
    assert [n.name for n in caught.value.nodes] == ["first", "second"]


# --- farkas run ----------------------------------------------------------------------------


def test_run(cli: Cli, model_file: Path, arrays: Arrays) -> None:
    words = ["run", model_file, "--input", "x=x.npy", "--input", "w=w.npy", "--shape", "batch=2"]
    result = cli(*words, "--output-dir", "a/b", "--threads", "1", "--repeat", "3")
    assert result.exit_code == 0, result.output
    assert "median of 3" in result.stdout
    assert "output    out/1 float32 [2, 3]  min 0  mean" in result.stdout
    assert sorted(p.name for p in Path("a/b").iterdir()) == ["out_1.npy", "sum.npy"]
    product = np.maximum(arrays["x"] @ arrays["w"], 0)
    np.testing.assert_allclose(np.load("a/b/out_1.npy"), product, rtol=1e-5, atol=1e-6)
    assert cli(*words, "--output-dir", "a/b").exit_code == 0  # replaces them
    result = cli(*words, "--profile", "--trace", "t.json")
    assert result.exit_code == 0 and " %  " in result.output
    assert json.loads(Path("t.json").read_text())["traceEvents"][0]["ph"] == "X"


def test_run_with_random_inputs(cli: Cli, model_file: Path, arrays: Arrays) -> None:
    words = ["run", model_file, "--random", "--shape", "x=2,4", "--output-dir", "o"]
    first = cli(*words, "--input", "w=w.npy")
    assert first.exit_code == 0, first.output
    before = np.load("o/sum.npy")
    cli(*words, "--input", "w=w.npy")
    assert np.array_equal(np.load("o/sum.npy"), before)
    cli(*words, "--input", "w=w.npy", "--seed", "1")
    assert not np.array_equal(np.load("o/sum.npy"), before)


def test_bfloat16_in_files(cli: Cli, tmp_path: Path) -> None:
    """numpy's files say float32, and of other arrays of two bytes nothing."""
    kind = onnx.TensorProto.BFLOAT16
    ports = [helper.make_tensor_value_info(n, kind, [3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [ports[0]], [ports[1]])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "b.onnx")
    values = np.array([1, 2.5, -3], np.float32)
    np.save("x.npy", values)
    np.save("v.npy", values.astype(fk.DTYPES["bfloat16"].numpy))
    for file in ("x.npy", "v.npy"):
        done = cli("run", "b.onnx", "--input", f"x={file}", "--output-dir", "out")
        assert done.exit_code == 0, done.output
        np.testing.assert_array_equal(np.load("out/y.npy"), -values)


def test_run_with_the_only_input(cli: Cli, tmp_path: Path, arrays: Arrays) -> None:
    onnx.save(
        model_of([helper.make_node("Relu", ["in=put"], ["y"])], {"in=put": [2, 4]}, {"y": [2, 4]}),
        tmp_path / "relu.onnx",
    )
    assert cli("run", "relu.onnx", "--input", "x.npy", "--output-dir", ".").exit_code == 0
    np.testing.assert_array_equal(np.load("y.npy"), np.maximum(arrays["x"], 0))
    assert cli("run", "relu.onnx", "--input", "in=put=x.npy").exit_code == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "Missing argument"),
        (["none.onnx"], 1, "none.onnx"),
        (["."], 1, "is a directory"),
        (["x.npy"], 1, "error:"),
        (["cut.onnx"], 1, "error:"),
        (["small.onnx", "--random"], 1, "open dimension 'batch'; fix it, as in --shape batch=1"),
        (["small.onnx", "--shape", "batch"], 2, "expected NAME=1,3,224,224"),
        (["small.onnx", "--shape", "batch=-1"], 2, "expected NAME=1,3,224,224"),
        (["small.onnx", "--shape", "batch=" + "9" * 30], 2, "expected NAME="),
        (["small.onnx", "--shape", "batch=1000000000000"], 1, "GiB"),
        (["small.onnx", "--shape", "z=2"], 1, "shapes names 'z'"),
        (["small.onnx", "--shape", "batch=2"], 1, "--input 'x=FILE.npy'"),
        (["small.onnx", "--shape", "batch=2", "--input", "x.npy"], 1, "inputs are x, w"),
        (["small.onnx", "--shape", "batch=2", "--input", "z=x.npy"], 1, "no input 'z'"),
        (["small.onnx", "--shape", "batch=3", "--input", "x=x.npy", "--random"], 1, "shape"),
        (["small.onnx", "--shape", "batch=2", "--input", "x=d.npy", "--random"], 1, "float64"),
        (["small.onnx", "--input", "x=none.npy"], 1, "cannot read none.npy"),
        (["small.onnx", "--input", "x=small.onnx"], 1, "not a .npy file"),
        (["small.onnx", "--input", "=x.npy"], 2, "expected NAME=FILE.npy"),
        (["small.onnx", "--input", "x=x.npy", "--input", "x=x.npy"], 1, "given twice"),
        (["small.onnx", "--output-dir", "x.npy"], 1, "cannot make the folder"),
        (["small.onnx", "--shape", "batch=2", "--cc", "none", "--random"], 1, "does not exist"),
        (["small.onnx", "--repeat", "0"], 2, "--repeat"),
    ],
)
def test_run_errors(
    cli: Cli,
    model_file: Path,
    arrays: Arrays,
    words: list[str],
    code: int,
    message: str,
) -> None:
    np.save("d.npy", arrays["x"].astype(np.float64))
    Path("cut.onnx").write_bytes(model_file.read_bytes()[:-20])
    result = cli("run", *words)
    assert result.exit_code == code, result.output
    assert "error: " in result.stderr and message in result.stderr
