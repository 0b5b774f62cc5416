"""Bodies of branches and loops whose names, results or sizes are unusual."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper as nh

import farkas as fk
from tests.farkas.networks.test_stages import B, F, L, agree, build, floats

node = onnx.helper.make_node
info = onnx.helper.make_tensor_value_info

X = {"x": (F, [2])}


def body(
    nodes: Sequence[onnx.NodeProto], inputs: dict[str, int], outputs: dict[str, int]
) -> onnx.GraphProto:
    """A body whose operands and results have element types; floats have any shape."""
    ends = (
        [info(n, t, None if t == F else []) for n, t in part]
        for part in (inputs.items(), outputs.items())
    )
    return onnx.helper.make_graph(list(nodes), "body", *ends)


def looped(
    nodes: Sequence[onnx.NodeProto], results: Sequence[str], trips: int | None, row: int = F
) -> onnx.ModelProto:
    """A loop over a state 's' that collects rows; `trips` are an input if None."""
    graph = body(nodes, {"number": L, "go": B, "s": F}, {})
    kinds = (B, F, row)
    shapes = ([], None, None)
    graph.output.extend(info(*r) for r in zip(results, kinds, shapes, strict=True))
    made = node("Loop", ["m", "", "x"], ["last", "rows"], body=graph)
    count = {} if trips is None else {"m": np.array(trips)}
    return build([made], X | ({"m": (L, [])} if trips is None else {}), {"last": F, "rows": row},
                 count)  # fmt: skip


def given(trips: int | None) -> dict[str, np.ndarray]:
    return {"x": floats(2)} | ({"m": np.array(3)} if trips is None else {})


@pytest.mark.parametrize("row", ["out0", "out1", "out2", "trip", "in0", "place0", "row0", "0"])
@pytest.mark.parametrize("trips", [3, 60, None])
def test_any_name_of_a_row(row: str, trips: int | None) -> None:
    """Neither what is made beside a body nor what other steps define is called so."""
    nodes = [
        node("Identity", ["go"], ["on"]),
        node("Add", ["s", "s"], ["t"]),
        node("Neg", ["t"], [row]),
        node("Abs", [row], ["next"]),
    ]
    model = looped(nodes, ["on", "next", row], trips)
    agree(model, fk.compile_onnx(model), given(trips) | {"x": np.array([1e-9, 2e-9], np.float32)})


@pytest.mark.parametrize("names", [("sum_out", "out0"), ("in0", "place0"), ("out1", "trip")])
def test_any_name_in_a_scan(names: tuple[str, str]) -> None:
    total, row = names
    nodes = [node("Add", ["s", "e"], [total]), node("Mul", [total, "two"], [row])]
    graph = body(nodes, {"s": F, "e": F}, {total: F, row: F})
    made = node("Scan", ["x", "y"], ["last", "rows"], body=graph, num_scan_inputs=1)
    model = build([made], X | {"y": (F, [4, 2])}, {"last": F, "rows": F},
                  {"two": np.array(2, np.float32)})  # fmt: skip
    agree(model, fk.compile_onnx(model), {"x": floats(2), "y": floats(4, 2)})


@pytest.mark.parametrize("trips", [3, 40, None])
def test_a_result_that_is_state_and_row(trips: int | None) -> None:
    nodes = [node("Identity", ["go"], ["on"]), node("Neg", ["s"], ["a"]), node("Neg", ["a"], ["b"])]
    model = looped(nodes, ["on", "b", "b"], trips)
    agree(model, fk.compile_onnx(model), given(trips))


@pytest.mark.parametrize("trips", [3, 100_000, None])
def test_a_body_without_nodes(trips: int | None) -> None:
    """ONNX Runtime returns rows that are all the last number."""
    arrays = given(trips)
    found = fk.compile_onnx(looped([], ["go", "s", "number"], trips, L)).run(arrays)
    np.testing.assert_array_equal(found["last"], arrays["x"])
    np.testing.assert_array_equal(found["rows"], np.arange(trips or 3))


@pytest.mark.parametrize("other", ["y", "t", "later"])
def test_names_in_branches_that_are_those_of_other_values(other: str) -> None:
    """What a branch defines cannot be seen outside."""

    def branch(operator: str) -> onnx.GraphProto:
        return body([node(operator, ["x"], [other])], {}, {other: F})

    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Less", ["sum", "zero"], ["c"]),
        node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg")),
        node("Neg", ["y"], ["later"]),
    ]
    model = build(nodes, X, {"y": F, "later": F}, {"zero": np.array(0, np.float32)})
    compiled = fk.compile_onnx(model)
    for sign in (1, -1):
        x = sign * np.array([1, 2], np.float32)
        found = compiled.run({"x": x})
        expected = -x if sign > 0 else np.maximum(x, 0)
        np.testing.assert_array_equal(found["y"], expected)
        np.testing.assert_array_equal(found["later"], -expected)


def test_a_condition_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = looped([node("Neg", ["s"], ["next"]), node("Abs", ["s"], ["row"])],
                   ["on", "next", "row"], 3)  # fmt: skip
    model.graph.node[0].attribute[0].g.initializer.append(nh.from_array(np.array([True]), "on"))
    expected = fk.compile_onnx(model).run(arrays := given(3))
    (tmp_path / "there").mkdir()
    file = tmp_path / "there" / "m.onnx"
    onnx.save(model, file, save_as_external_data=True, location="m.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path)
    found = fk.compile_onnx(file).run(arrays)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
