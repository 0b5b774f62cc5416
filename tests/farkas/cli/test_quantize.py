"""``farkas quantize``: what is printed and written, exit codes, and bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import farkas as fk
from tests.farkas.conftest import Cli
from tests.farkas.quantize import small_networks as small

IMAGES = small.digits()[0][1:120:2][:, None]
LABELS = small.digits()[1][1:120:2]


def written(**arrays: Any) -> None:
    """The network of digits and its data, in the current folder."""
    onnx.save(small.mlp(), "m.onnx")
    np.savez("calib.npz", **{"x": IMAGES, **arrays})
    np.save("y.npy", LABELS)


def test_a_goal_that_is_reached(cli: Cli) -> None:
    written()
    result = cli(
        "quantize", "m.onnx", "--data", "calib.npz", "-o", "m8.onnx", "--metric", "top1",
        "--labels", "y.npy", "--max-drop", "5",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "error alone" in result.output and "written   m8.onnx" in result.output
    assert "accuracy" in result.output and "size" in result.output
    assert set(fk.compile_onnx("m8.onnx").run({"x": IMAGES[0]})) == {"scores"}
    again = cli("quantize", "m8.onnx", "--data", "calib.npz", "-o", "m88.onnx")
    assert again.exit_code == 1 and "quantised already" in again.output
    assert sorted(p.name for p in Path().iterdir()) == ["calib.npz", "m.onnx", "m8.onnx", "y.npy"]


def test_a_goal_that_is_missed(cli: Cli) -> None:
    written()
    words = ("quantize", "m.onnx", "--data", "calib.npz", "-o", "m8.onnx", "--max-drop", "0")
    result = cli(*words)
    assert result.exit_code == 1 and not Path("m8.onnx").exists()
    assert "that is missed" in result.output and "--keep writes" in result.output
    kept = cli(*words, "--keep")
    assert kept.exit_code == 1 and "written   m8.onnx" in kept.output
    onnx.checker.check_model("m8.onnx")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nothing.npz"], "cannot read nothing.npz: No such file"),
        (["--data", "y.npy"], "y.npy is not a .npz file"),
        (["--data", "wrong.npz"], "wrong.npz has arrays that are not inputs: 'image'"),
        (["--data", "calib.npz", "--metric", "top1", "--labels", "m.onnx"], "not a .npy file"),
        (["--data", "calib.npz", "--labels", "y.npy"], "labels are for the metric top1"),
        (["--data", "calib.npz", "-o", "m.onnx"], "is what is read, and would be lost"),
        (["--data", "calib.npz", "-o", "."], "it is a folder"),
        (["--data", "calib.npz", "-o", "no/m8.onnx"], "there is no folder no"),
    ],
)
def test_bad_input(cli: Cli, words: list[str], message: str) -> None:
    written()
    np.savez("wrong.npz", image=IMAGES)
    before = sorted(p.name for p in Path().iterdir())
    result = cli("quantize", "m.onnx", "-o", "m8.onnx", *words)
    assert result.exit_code == 1 and message in result.output, result.output
    assert sorted(p.name for p in Path().iterdir()) == before


def test_wrong_usage(cli: Cli) -> None:
    written()
    for words in (["-o", "m8.onnx"], ["--data", "calib.npz"],
                  ["--data", "calib.npz", "-o", "m8.onnx", "--metric", "mean"],
                  ["--data", "calib.npz", "-o", "m8.onnx", "--max-drop", "-1"]):  # fmt: skip
        assert cli("quantize", "m.onnx", *words).exit_code == 2
    (Path("broken.onnx")).write_bytes(b"no network")
    result = cli("quantize", "broken.onnx", "--data", "calib.npz", "-o", "m8.onnx")
    assert result.exit_code == 1 and "not an ONNX model" in result.output
