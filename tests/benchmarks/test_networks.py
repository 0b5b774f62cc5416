"""Suite E: operations of the networks, and that the ones of our own making compute something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import farkas as fk
from benchmarks import files, models, public, recurrent, rewritten, trained
from benchmarks.models import GIGAFLOPS, bare_model, count
from benchmarks.narrow.forms import plain_results
from benchmarks.networks import bert, mobilenetv2, swin
from benchmarks.task import UnavailableError
from benchmarks.translate.network import read_network
from benchmarks.worker import difference


@pytest.mark.parametrize("name", [n for n in models.names() if n != "bert_base"])
def test_operations(name: str) -> None:
    flops, moved = count(bare_model(name))
    assert f"{flops / 1e9:.2f}" == f"{GIGAFLOPS[name]:.2f}"
    assert moved > 4e6


def test_operations_of_bert() -> None:
    flops, moved = count(bert(layers=1))
    assert f"{12 * flops / 1e9:.2f}" == f"{GIGAFLOPS['bert_base']:.2f}"
    assert moved == 4 * (4 * 768 * 768 + 2 * 768 * 3072 + 2 * 128 * 768)


def test_a_small_encoder_agrees(tmp_path: Path) -> None:
    model = bert(layers=2, hidden=24, heads=3, inner=40, length=7)
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((1, 7, 24), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"X": x})
    assert 0.5 < float(np.std(expected)) < 2
    assert difference([fk.compile_onnx(model).run({"X": x})["Y"]], [expected]) < 1e-4


def test_windows_agree() -> None:
    model = swin()
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((1, 3, 112, 112), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"X": x})
    assert 0.3 < float(np.std(expected)) < 3
    assert difference([fk.compile_onnx(model).run({"X": x})["Y"]], [expected]) < 1e-4


def test_names_say_what_is_measured(tmp_path: Path) -> None:
    for name in recurrent.names():
        if "x1x128" in name:
            task = recurrent.task(name, recurrent.write(name, tmp_path))
            session = onnxruntime.InferenceSession(task.path)
            (y,) = session.run(list(task.outputs), task.inputs)
            assert y.shape == (100, 1, 256) and 0.05 < float(np.std(y)) < 1
    assert {n.rpartition(", ")[2] for n in trained.names()} == {"1", "100", "10000"}
    assert len(public.names()) == 3 * len(public.MODELS)


def test_networks_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are, with arrays beside them, and as ONNX Runtime quantises them."""
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "to"))
    (tmp_path / "to").mkdir()
    path = tmp_path / "small.onnx"
    onnx.save(bert(layers=1, hidden=24, heads=3, inner=40, length=7), path)
    bare = files.task("small", path)
    (x,), (expected,) = bare.inputs.values(), plain_results(path, bare.inputs)
    assert bare.reference is None and x.shape == (1, 7, 24)
    np.savez(path.with_suffix(".npz"), X=x, result0=expected)
    for way in ("qdq", "dynamic"):
        rewritten.rewrite(path, way, tmp_path / "to")
    assert files.names() == ("small dynamic", "small qdq")
    task = files.task("small qdq", files.write("small qdq", tmp_path))
    assert task.reference is not None and task.tolerance >= 0.02
    y = fk.compile_onnx(task.path).run(task.inputs)[task.outputs[0]]
    assert difference([y], task.reference()) < task.tolerance
    with pytest.raises(UnavailableError, match="FARKAS_BENCH_FILES names another folder"):
        files.write("small", tmp_path)


def test_mobilenet_keeps_its_values_in_scale() -> None:
    model = mobilenetv2(size=64)
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64), np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (scores,) = session.run(None, {"X": x})
    assert scores.shape == (1, 1000) and 0.1 < float(np.std(scores)) < 10
    assert len(np.unique(scores)) > 900


def test_a_light_network_is_written_with_weights(tmp_path: Path) -> None:
    path = models.write("squeezenet", tmp_path)
    assert models.write("squeezenet", tmp_path) == path
    assert [p.name for p in tmp_path.iterdir()] == ["squeezenet.onnx"]
    task = models.task("squeezenet", path)
    assert {n: a.shape for n, a in task.inputs.items()} == {"data_0": (1, 3, 224, 224)}
    network = read_network(path)
    assert network.inputs == ("data_0",) and network.outputs == task.outputs
    assert all(s.op != "ConstantOfShape" and s.shapes for s in network.steps)
    assert {len(s.shapes[0]) for s in network.steps} == {4}


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_translations_agree(library: str, tmp_path: Path) -> None:
    """Where torch or jax are installed: the same network by their own operators."""
    pytest.importorskip(library)
    from benchmarks.peers import PEERS

    task = models.task("shufflenet", models.write("shufflenet", tmp_path))
    results = []
    for peer in ("ort", "torch" if library == "torch" else "xla"):
        PEERS[peer].load()
        prepared = PEERS[peer].prepare(task, 1)
        results.append(prepared.fetch(prepared.call()))
    assert difference(results[1], results[0]) < task.tolerance
