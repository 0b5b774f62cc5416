"""Small models and programs as files, and a runner of command lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from farkas.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent

Cli = Callable[..., Result]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line in this process, in a folder of its own; a traceback is a failure."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, input: str | None = None) -> Result:
        result = CliRunner().invoke(main, [str(w) for w in words], input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run ``python …`` in a process of its own, outside the checkout."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def save_apart(model: onnx.ModelProto, path: Path) -> None:
    """Save a model with its weights in the file ``weights`` beside it."""
    (path.parent / "weights").unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
) -> onnx.ModelProto:
    """A float32 model of opset 17."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def small_model() -> onnx.ModelProto:
    """``out/1 = relu(x @ w)`` and ``sum = x + x``, with a dynamic batch."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"]),
        helper.make_node("Relu", ["t"], ["out/1"]),
        helper.make_node("Add", ["x", "x"], ["sum"]),
    ]
    inputs: dict[str, list[int | str]] = {"x": ["batch", 4], "w": [4, 3]}
    return model_of(nodes, inputs, {"out/1": ["batch", 3], "sum": ["batch", 4]})


@pytest.fixture
def model_file(tmp_path: Path, small_model: onnx.ModelProto) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(small_model, path)
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> dict[str, np.ndarray]:
    """Inputs of the small model, also stored as x.npy and w.npy."""
    rng = np.random.default_rng(0)
    made = {
        "x": rng.standard_normal((2, 4)).astype(np.float32),
        "w": rng.standard_normal((4, 3)).astype(np.float32),
    }
    for name, array in made.items():
        np.save(tmp_path / f"{name}.npy", array)
    return made
