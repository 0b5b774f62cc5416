"""Extents that are known without being computed: as outputs, in later stages, and folded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

import farkas as fk
from tests.farkas.networks.test_stages import B, F, L, agree, build, floats

node = onnx.helper.make_node

#: The last extent of x as a vector, `e`, and what holds it as a number.
EXTENT = [
    node("Shape", ["x"], ["shape"]),
    node("Gather", ["shape", "last"], ["number"]),
    node("Unsqueeze", ["number", "zero"], ["e"]),
]
CONSTANTS = {"last": np.array(-1), "zero": np.array([0])}


def runs(model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]]) -> None:
    compiled = fk.compile_onnx(model, threads=1)
    for shape in shapes:
        agree(model, compiled, {"x": floats(*shape)})


@pytest.mark.parametrize("outputs", [["e", "y"], ["y", "number"], ["y", "shape"]])
def test_first_read_by_a_node_that_waits(outputs: Sequence[str]) -> None:
    """The node is imported again later; the extent is an output of the stage before."""
    nodes = [
        *EXTENT,
        node("NonZero", ["x"], ["at"]),
        node("ReduceSum", ["at"], ["sum"], keepdims=0),
        node("Add", ["sum", "e"], ["more"]),
        node("Concat", ["shape", "e", "more"], ["y"], axis=0),
    ]
    model = build(nodes, {"x": (F, ["n", "m"])}, dict.fromkeys(outputs, L), CONSTANTS)
    runs(model, [(2, 3), (4, 2), (1, 3)])


def test_captured_by_a_body_that_waits() -> None:
    body = onnx.helper.make_graph(
        [node("Add", ["e", "seen"], ["sum"])], "then", [],
        [onnx.helper.make_tensor_value_info("sum", L, None)],
    )  # fmt: skip
    other = onnx.helper.make_graph(
        [node("Identity", ["e"], ["same"])], "else", [],
        [onnx.helper.make_tensor_value_info("same", L, None)],
    )  # fmt: skip
    nodes = [
        *EXTENT,
        node("NonZero", ["x"], ["at"]),
        node("ReduceSum", ["at"], ["seen"], keepdims=0),
        node("Greater", ["seen", "last"], ["more"]),
        node("If", ["more"], ["y"], then_branch=body, else_branch=other),
    ]
    model = build(nodes, {"x": (F, ["n", "m"])}, {"y": L, "e": L}, CONSTANTS)
    runs(model, [(2, 3), (3, 4)])


def test_extents_of_one_are_numbers() -> None:
    """A part of a shape that has open extents elsewhere."""
    model = build(EXTENT, {"x": (F, ["n", "m"])}, {"e": L}, CONSTANTS)
    runs(model, [(3, 1), (1, 3), (3, 3), (1, 1)])


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"])
def test_reduced_extents(operator: str) -> None:
    nodes = [node("Shape", ["x"], ["shape"]), node(operator, ["shape"], ["y"], keepdims=0)]
    runs(build(nodes, {"x": (F, ["n", "m"])}, {"y": L}), [(2, 3), (5, 4), (1, 2)])


@pytest.mark.parametrize("dtype", [onnx.TensorProto.INT8, onnx.TensorProto.UINT8, L])
def test_extents_of_few_bits_wrap(dtype: int) -> None:
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["short"], to=dtype),
        node("Cast", ["short"], ["y"], to=L),
    ]
    runs(build(nodes, {"x": (F, ["n", "m"])}, {"y": L}), [(2, 300), (200, 3)])


def test_inputs_that_nothing_reads_have_any_size() -> None:
    model = build([node("Not", ["c"], ["y"])], {"x": (F, ["n", "m"]), "c": (B, [])}, {"y": B})
    compiled = fk.compile_onnx(model, threads=1)
    for shape in ((1, 3), (2, 3), (0, 4), (5, 6)):
        agree(model, compiled, {"x": floats(*shape), "c": np.array(True)})


@pytest.mark.parametrize("operator", ["Loop", "Scan"])
def test_bodies_that_capture_what_a_later_stage_makes(operator: str) -> None:
    """The axes of the Squeeze come with the arrays; until then its result has no known rank."""
    number = [onnx.helper.make_tensor_value_info(n, L, []) for n in ("i", "state", "next")]
    going = [onnx.helper.make_tensor_value_info(n, B, []) for n in ("on", "still")]
    inside = [node("Size", ["short"], ["size"]), node("Add", ["state", "size"], ["next"])]
    if operator == "Loop":
        inside.append(node("Identity", ["on"], ["still"]))
        ports = [number[0], going[0], number[1]], [going[1], number[2]]
        made = node("Loop", ["count", "", "start"], ["y"])
    else:
        ports = [number[1], number[0]], [number[2]]
        made = node("Scan", ["start", "rows"], ["y"], num_scan_inputs=1)
    body = onnx.helper.make_graph(inside, "body", *ports)
    made.attribute.append(onnx.helper.make_attribute("body", body))
    constants = {"count": np.array(3), "start": np.array(1), "rows": np.arange(3)}
    inputs = {"x": (F, ["n", 1, "m"]), "axes": (L, [1])}
    model = build([node("Squeeze", ["x", "axes"], ["short"]), made], inputs, {"y": L}, constants)
    compiled = fk.compile_onnx(model, threads=1)
    for shape in ((2, 1, 3), (4, 1, 3)):
        agree(model, compiled, {"x": floats(*shape), "axes": np.array([1])})


def test_extents_captured_by_a_loop_that_runs_step_by_step() -> None:
    """The number of steps is data; the body needs the extent as a value."""
    ports = [onnx.helper.make_tensor_value_info(n, t, []) for n, t in (("i", L), ("on", B))]
    state, after = (onnx.helper.make_tensor_value_info(n, L, None) for n in ("state", "next"))
    inside = [
        node("Range", ["i", "number", "step"], ["range"]),
        node("ReduceSum", ["range"], ["sum"], keepdims=0),
        node("Add", ["state", "sum"], ["next"]),
        node("Identity", ["on"], ["still"]),
    ]
    still = onnx.helper.make_tensor_value_info("still", B, [])
    body = onnx.helper.make_graph(inside, "body", [*ports, state], [still, after])
    nodes = [*EXTENT, node("Loop", ["count", "", "start"], ["y"], body=body)]
    constants = {**CONSTANTS, "start": np.array(1), "step": np.array(1)}
    inputs = {"x": (F, ["n", "m"]), "count": (L, [])}
    model = build(nodes, inputs, {"y": L}, constants)
    compiled = fk.compile_onnx(model, threads=1)
    for shape in ((2, 3), (2, 5)):
        agree(model, compiled, {"x": floats(*shape), "count": np.array(2)})


def test_an_extent_that_is_one_only_for_these_arrays() -> None:
    """One less than an open extent broadcasts where it is one."""
    nodes = [
        node("Slice", ["x", "one", "end", "axis"], ["rest"]),
        node("Add", ["rest", "w"], ["y"]),
    ]
    constants = {"one": np.array([1]), "end": np.array([99]), "axis": np.array([1]), "w": floats(3)}
    model = build(nodes, {"x": (F, ["n", "m"])}, {"y": F}, constants)
    runs(model, [(2, 2), (3, 4), (5, 2)])
    with pytest.raises(fk.ModelError, match=r"\[2, 2\], \[3\] do not broadcast"):
        fk.compile_onnx(model, threads=1).run({"x": floats(2, 3)})


RANGE = [*EXTENT, node("Cast", ["number"], ["last_"], to=F)]
NUMBERS = CONSTANTS | {
    name: np.array(value, np.float32)
    for name, value in (("from", -2), ("by", 3), ("half", 0.5), ("nearly", 2.5))
}


def compiled_once(model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]]) -> fk.Network:
    """It is right for all of these shapes, and compiled for the first one only."""
    compiled = fk.compile_onnx(model, threads=1)
    kernels = 0
    for shape in shapes:
        agree(model, compiled, {"x": floats(*shape)})
        kernels = kernels or compiled.report.kernels
        assert compiled.report.kernels == kernels, f"it was compiled again for {shape}"
    return compiled


def test_a_range_of_floats_up_to_an_extent_stays_open() -> None:
    """As in a detector, whose points are ranges plus a half; its results are as long as x."""
    nodes = [
        *RANGE,
        node("Range", ["from", "last_", "by"], ["points"]),
        node("Add", ["points", "half"], ["y"]),
    ]
    model = build(nodes, {"x": (F, ["n", "m"])}, {"y": F}, NUMBERS)
    compiled_once(model, [(2, 9), (3, 4), (2, 50), (2, 2)])


def test_many_known_numbers() -> None:
    """Positions behind those of earlier steps, which are more than expressions are deep."""
    nodes = [*EXTENT, node("Add", ["number", "positions"], ["y"])]
    model = build(
        nodes, {"x": (F, ["n", "m"])}, {"y": L}, CONSTANTS | {"positions": np.arange(300)}
    )
    compiled_once(model, [(2, 9), (3, 4), (2, 50)])


def test_the_number_of_largest_elements_stays_open() -> None:
    nodes = [*EXTENT, node("TopK", ["x", "e"], ["v", "y"])]
    model = build(nodes, {"x": (F, ["n", "m"])}, {"y": L}, CONSTANTS)
    assert len(compiled_once(model, [(2, 9), (3, 4), (2, 50)]).conditions) == 1


def test_an_extent_among_floats_stays_open() -> None:
    """A mean that divides by it, and a vector of it and of numbers."""
    nodes = [
        *RANGE,
        node("Unsqueeze", ["last_", "zero"], ["one"]),
        node("Unsqueeze", ["nearly", "zero"], ["other"]),
        node("Concat", ["one", "other", "one"], ["both"], axis=0),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Div", ["sum", "both"], ["y"]),
    ]
    model = build(nodes, {"x": (F, ["n", "m"])}, {"y": F, "both": F}, NUMBERS)
    compiled_once(model, [(2, 9), (3, 4), (2, 50)])


@pytest.mark.parametrize(("operator", "other"), [("Add", "half"), ("Div", "by"), ("Max", "by")])
def test_arithmetic_on_an_extent_among_floats(operator: str, other: str) -> None:
    nodes = [
        *RANGE,
        node(operator, ["last_", other], ["bound"]),
        node("Range", ["from", "bound", "half"], ["y"]),
        node("Cast", ["last_"], ["whole"], to=L),
        node("Cast", ["last_"], ["short"], to=onnx.TensorProto.FLOAT16),
    ]
    outputs = {"y": F, "whole": L, "short": onnx.TensorProto.FLOAT16}
    runs(build(nodes, {"x": (F, ["n", "m"])}, outputs, NUMBERS), [(2, 9), (3, 4), (2, 50)])
