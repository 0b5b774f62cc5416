"""``farkas doctor``: what becomes of a network's nodes, before anything is compiled."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as nh

from frontends.onnx import examine, open_model
from tests.conformance.official import Case, cases, run_case
from tests.farkas.conftest import Cli

F, L = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node


def model(nodes: list[onnx.NodeProto], shape: list[int | str], opset: int = 20) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", F, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [nh.from_array(np.array([-1], np.int64), "flat")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def hows(proto: onnx.ModelProto) -> dict[str, str]:
    return {n.name: n.how for n in examine(open_model(proto)).nodes}


def test_what_becomes_of_nodes() -> None:
    nodes = [
        node("Relu", ["x"], ["a"], "a"), node("Shape", ["a"], ["s"], "s"),
        node("Reshape", ["a", "flat"], ["r"], "r"), node("NonZero", ["r"], ["i"], "i"),
        node("Cast", ["i"], ["c"], "c", to=F), node("ReduceSum", ["c"], ["y0"], "y0"),
        node("Identity", ["y0"], ["y"], "y"),
    ]  # fmt: skip
    found = hows(model(nodes, ["n", 3]))
    assert found["a"] == "comprehension" and found["r"] == "view" and found["i"] == "opaque"
    assert found["c"] == found["y0"] == found["y"] == "when data is known"


def test_all_problems_at_once(cli: Cli) -> None:
    nodes = [
        node("StringSplit", ["x"], ["a", "n"], "first"),
        node("MatMul", ["x", "x"], ["b"], "second"),
        node("NoSuchThing", ["b"], ["c"], "third"),
        node("Sum", ["a", "b", "c"], ["y"], "last"),
    ]
    Path("m.onnx").write_bytes(model(nodes, [2, 3]).SerializeToString())
    result = cli("doctor", "m.onnx")
    assert result.exit_code == 1
    for name in ("first", "second", "third"):
        assert f"'{name}'" in result.output
    assert "do not multiply" in result.output and "3 nodes cannot be compiled" in result.output


def test_a_sound_model(cli: Cli) -> None:
    nodes = [node("Softmax", ["x"], ["s"], "s"), node("Exp", ["s"], ["y"], "e")]
    Path("m.onnx").write_bytes(model(nodes, ["batch", 8]).SerializeToString())
    result = cli("doctor", "m.onnx", "--nodes", "--shape", "batch=4")
    assert result.exit_code == 0 and "all nodes can be compiled" in result.output
    assert "input       float32 x[4,8]" in result.output
    assert "Exp 'e' (opset 20): comprehension  float32[4,8]" in result.output
    assert cli("doctor", "nothing.onnx").exit_code == 1


#: Dropout that trains only if an input says so: that is not known before.
DEPENDS_ON_DATA = "test_training_dropout"


@pytest.mark.parametrize(
    "case", [c for c in cases() if zlib.crc32(c.name.encode()) % 97 == 1], ids=lambda c: c.name
)
def test_the_forecast_is_what_happens(case: Case) -> None:
    try:
        sound = not examine(open_model(case.model)).problems
    except Exception as error:
        sound = False
        assert "cannot be passed" in str(error)
    reason = run_case(case).reason
    if not case.name.startswith(DEPENDS_ON_DATA):
        assert sound == (not reason or reason.startswith("wrong")), reason


def test_what_would_compile_it(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("m.onnx").write_bytes(model([node("Relu", ["x"], ["y"], "a")], [2, 3]).SerializeToString())
    found = cli("doctor", "m.onnx")
    assert found.exit_code == 0
    assert re.search(r"^compiler +(gcc|clang) \d+", found.output, re.MULTILINE)
    assert re.search(r"^threads +(Farkas's own|OpenMP|none)", found.output, re.MULTILINE)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    found = cli("doctor", "m.onnx")
    assert found.exit_code == 0 and "compiler    none: no C compiler was found" in found.output
