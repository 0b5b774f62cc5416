"""Hostile files through the interface and through the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farkas as fk
from tests.robustness.nets import tiny_net

ROOT = Path(__file__).resolve().parents[2]


def _weight(model: onnx.ModelProto, **entries: str) -> onnx.ModelProto:
    """The model with its weight in another file."""
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model


def _outside(location: str) -> Callable[[Path], onnx.ModelProto]:
    def make(folder: Path) -> onnx.ModelProto:
        (folder.parent / "secret").write_bytes(bytes(48))
        if location == "link":
            (folder / "link").symlink_to(folder.parent / "secret")
        return _weight(tiny_net(), location=location.format(parent=folder.parent))

    return make


def _dims(*dims: int) -> Callable[[Path], onnx.ModelProto]:
    def make(_: Path) -> onnx.ModelProto:
        node = helper.make_node("Relu", ["x"], ["y"])
        value = helper.make_tensor_value_info
        inputs = [value("x", TensorProto.FLOAT, dims)]
        graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, None)])
        return helper.make_model(graph)

    return make


def _opset(version: int) -> Callable[[Path], onnx.ModelProto]:
    def make(_: Path) -> onnx.ModelProto:
        model = tiny_net()
        model.opset_import[0].version = version
        return model

    return make


def _filled(shape: list[int]) -> Callable[[Path], onnx.ModelProto]:
    def make(_: Path) -> onnx.ModelProto:
        nodes = [
            helper.make_node("ConstantOfShape", ["s"], ["c"]),
            helper.make_node("Add", ["c", "x"], ["y"]),
        ]
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            nodes, "g", [value("x", TensorProto.FLOAT, [1])], [value("y", TensorProto.FLOAT, None)],
            [onnx.numpy_helper.from_array(np.array(shape), "s")],
        )  # fmt: skip
        return helper.make_model(graph)

    return make


def _expanding(_: Path) -> onnx.ModelProto:
    """Thirty doublings of a small tensor."""
    nodes, last = [], "x"
    for n in range(40):
        nodes.append(helper.make_node("Concat", [last, last], [f"c{n}"], axis=0))
        last = f"c{n}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [8])], [value(last, TensorProto.FLOAT, None)]
    )
    return helper.make_model(graph)


CASES: dict[str, tuple[Callable[[Path], onnx.ModelProto], str]] = {
    "outside": (_outside("../secret"), "folder of the model"),
    "absolute": (_outside("{parent}/secret"), "folder of the model"),
    "link": (_outside("link"), "leads out of the folder"),
    "device": (_outside("/dev/zero"), "folder of the model"),
    "missing": (_outside("nothing"), "cannot be read"),
    "itself": (_outside("."), "weight|initializer"),
    "large dims": (_dims(2**31, 2**31, 2**31), "GiB"),
    "larger dims": (_dims(2**62, 4), "GiB"),
    "negative dims": (_dims(-5), "negative"),
    "many dims": (_dims(*[1] * 100), "rank"),
    "hidden dims": (_dims(0, 2**62, 2**62), "GiB"),
    "opset": (_opset(2**62), "opset"),
    "opset 0": (_opset(0), "opset"),
    "opset -1": (_opset(-1), "opset"),
    "filled": (_filled([2**20, 2**20]), "GiB"),
    "filled negative": (_filled([-1]), "negative"),
    "expanding": (_expanding, "GiB"),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_models(name: str, tmp_path: Path) -> None:
    make, message = CASES[name]
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(make(folder), folder / "m.onnx")
    with pytest.raises(fk.ModelError, match=message) as caught:
        fk.compile_onnx(folder / "m.onnx")
    assert "defect" not in str(caught.value)


def farkas(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farkas", *map(str, words)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["outside", "large dims", "opset", "expanding"])
def test_hostile_models_at_the_command_line(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(CASES[name][0](folder), folder / "m.onnx")
    before = sorted(os.listdir(folder))
    done = farkas("run", "m.onnx", "--random", "--output-dir", "a/b", folder=folder)
    assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert sorted(os.listdir(folder)) == before  # not even the folder for the outputs


def test_an_existing_folder_for_outputs_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07garbage")
    done = farkas("run", "m.onnx", "--output-dir", "out", folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_truncated_files_at_the_command_line(tmp_path: Path) -> None:
    data = tiny_net().SerializeToString()
    for length in (0, 1, len(data) // 2):
        (tmp_path / "m.onnx").write_bytes(data[:length])
        done = farkas("run", "m.onnx", "--random", folder=tmp_path)
        assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr
        assert "Traceback" not in done.stderr
