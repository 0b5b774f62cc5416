"""Operators without comprehensions in exported C compute what numpy does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

from farkas.networks.export_network import exported
from tests.conformance.exported import build, run
from tests.routine_cases import CASES, Array, by_numpy, few, floats, indices, model_of, ties

ELEMENT_ERROR = 7


def checked(model: ModelProto, inputs: Mapping[str, Array], folder: Path, **options: Any) -> None:
    made = exported(model, "one", isa="generic", **options)
    library = build(made, ["gcc", "-fsanitize=undefined"], folder)
    wanted = by_numpy(model, inputs, folder / "cache").values()
    passed = {n: a for n, a in inputs.items() if n in made.inputs}
    for found, want in zip(run(made, library, passed), wanted, strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("operator", "inputs", "attributes"), CASES)
def test_it_computes_the_same(
    operator: str, inputs: Mapping[str, Array], attributes: dict[str, Any], tmp_path: Path
) -> None:
    checked(model_of(operator, inputs, 1, **attributes), inputs, tmp_path)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("x", "k", "axis"),
    [
        (floats(3, 40), 5, -1), (ties(2, 30, 3), 30, 1), (few(17, 2, dtype=np.int64), 4, 0),
        (ties(6, 9).astype(np.float16), 3, 1), (few(2, 5, dtype=np.uint8), 0, 1),
        (ties(200), 77, 0),
    ],
)  # fmt: skip
def test_the_greatest(x: Array, k: int, axis: int, largest: int, tmp_path: Path) -> None:
    inputs = {"x": x, "k": np.array([k])}
    model = model_of("TopK", inputs, 2, axis=axis, largest=largest)
    checked(model, inputs, tmp_path, values={"k": inputs["k"]})


@pytest.mark.parametrize("threads", ["none", "pthread"])
@pytest.mark.parametrize(
    ("operator", "change", "attributes"),
    [
        ("ScatterElements", {"i": np.array([[0], [4]])}, {"axis": 0}),
        ("ScatterElements", {"i": np.array([[0], [-5]])}, {"axis": 0}),
        ("ScatterND", {"i": np.array([[1], [4]]), "u": floats(2, 3)}, {}),
    ],
)
def test_indices_out_of_range(
    operator: str, change: Mapping[str, Array], attributes: dict[str, Any], threads: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    inputs = {"x": floats(4, 3), "i": indices(4, 2, 1), "u": floats(2, 1), **change}
    model = model_of(operator, inputs, 1, **attributes)
    made = exported(model, "one", isa="generic", threads=threads)
    library = build(made, ["gcc", "-fsanitize=undefined"], tmp_path)
    assert "On an error nothing was written, but for ONE_ELEMENT." in made.header
    run(made, library, inputs, code=ELEMENT_ERROR)
    run(made, library, {**inputs, "i": np.zeros_like(inputs["i"])})


def test_open_sizes(tmp_path: Path) -> None:
    """One text for all lengths; the number of elements is fixed."""
    inputs: dict[str, Any] = {"x": ("n", "m")}
    ports: Sequence[Any] = [helper.make_tensor_value_info(n, 1, s) for n, s in inputs.items()]
    k = helper.make_tensor("k", 7, [1], [3])
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"])
    results = [helper.make_empty_tensor_value_info(n) for n in ("y", "i")]
    graph = helper.make_graph([node], "one", ports, results, [k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    made = exported(model, "one", isa="generic")
    library = build(made, ["gcc"], tmp_path)
    for shape in ((2, 3), (5, 17), (1, 9)):
        x = ties(*shape)
        wanted = by_numpy(model, {"x": x}, tmp_path / "cache").values()
        for found, want in zip(run(made, library, {"x": x}), wanted, strict=True):
            np.testing.assert_array_equal(found, want)
    run(made, library, {"x": ties(2, 2)}, code=5)
