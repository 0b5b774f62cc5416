"""Loop and Scan as blocks of the language, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as nh

import farkas as fk

F, L, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Arrays = dict[str, np.ndarray]
RANDOM = np.random.default_rng(17)
node, info = helper.make_node, helper.make_tensor_value_info


def floats(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / 2).astype(np.float32)


def body_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    **stored: np.ndarray,
) -> onnx.GraphProto:
    initializers = [nh.from_array(a, n) for n, a in stored.items()]
    return helper.make_graph(list(nodes), "body", list(inputs), list(outputs), initializers)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Any]],
    outputs: dict[str, int],
    opset: int = 17,
    **stored: np.ndarray,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "loops",
        [info(n, t, s) for n, (t, s) in inputs.items()],
        [info(n, t, None) for n, t in outputs.items()],
        [nh.from_array(a, n) for n, a in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def agree(model: onnx.ModelProto, compiled: Any, arrays: Arrays) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found, expected = compiled.run(arrays), session.run(None, arrays)
    for (name, array), wanted in zip(found.items(), expected, strict=True):
        assert array.dtype == wanted.dtype and array.shape == wanted.shape, name
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def blocks_of(model: Any) -> list[str]:
    """The names of the programs that have blocks."""
    calls = [n for g in model.graphs for n in g.nodes if hasattr(n, "program")]
    return [n.program.name for n in calls if n.program.has_blocks]


# --- Scan ----------------------------------------------------------------------------------


def cell(units: int = 4) -> onnx.GraphProto:
    """A gated cell: h' = z * tanh(h R + e W) + (1 - z) * h, with z = sigmoid(h Q)."""
    return body_of(
        [
            node("MatMul", ["h", "R"], ["a"]), node("MatMul", ["e", "W"], ["b"]),
            node("Add", ["a", "b"], ["c"]), node("Tanh", ["c"], ["n"]),
            node("MatMul", ["h", "Q"], ["q"]), node("Sigmoid", ["q"], ["z"]),
            node("Mul", ["z", "n"], ["zn"]), node("Sub", ["one", "z"], ["y"]),
            node("Mul", ["y", "h"], ["yh"]), node("Add", ["zn", "yh"], ["next"]),
            node("Identity", ["next"], ["row"]), node("ReduceSum", ["z"], ["sum"], keepdims=0),
        ],
        [info("h", F, None), info("e", F, None)],
        [info("next", F, None), info("row", F, None), info("sum", F, None)],
        one=np.array(1, np.float32),
    )  # fmt: skip


def scanned(shape: Sequence[int | str], state: Sequence[int | str], **attributes: Any) -> Any:
    scan = node(
        "Scan", ["h0", "x"], ["last", "rows", "sums"], body=cell(), num_scan_inputs=1, **attributes
    )
    return model_of(
        [scan], {"h0": (F, state), "x": (F, shape)}, {"last": F, "rows": F, "sums": F},
        R=floats(4, 4), W=floats(3, 4), Q=floats(4, 4),
    )  # fmt: skip


@pytest.mark.parametrize("attributes", [
    {}, {"scan_input_directions": [1]}, {"scan_output_directions": [1, 0]},
    {"scan_input_axes": [1]}, {"scan_output_axes": [1, 0]}, {"scan_output_axes": [-1, -1]},
])  # fmt: skip
def test_scan(attributes: dict[str, list[int]]) -> None:
    shape = [2, 40, 3] if "scan_input_axes" in attributes else [40, 2, 3]
    model = scanned(shape, [2, 4], **attributes)
    compiled = fk.compile_onnx(model)
    assert blocks_of(compiled) == ["scan"]
    agree(model, compiled, {"h0": floats(2, 4), "x": floats(*shape)})


def test_scan_of_open_sizes() -> None:
    model = scanned(["steps", "batch", 3], ["batch", 4])
    compiled = fk.compile_onnx(model)
    for steps, batch in ((5, 2), (40, 3), (17, 9), (300, 2)):
        agree(model, compiled, {"h0": floats(batch, 4), "x": floats(steps, batch, 3)})
    assert blocks_of(compiled) == ["scan"] and not compiled.opaque_operators
    agree(model, compiled, {"h0": floats(1, 4), "x": floats(1, 1, 3)})


def test_scan_of_two_sequences_and_two_states_that_change_places() -> None:
    body = body_of(
        [
            node("Add", ["a", "u"], ["sum"]), node("Mul", ["sum", "v"], ["b2"]),
            node("Identity", ["b"], ["a2"]), node("Sub", ["b", "v"], ["row"]),
        ],
        [info(n, F, [3]) for n in ("a", "b", "u", "v")],
        [info(n, F, [3]) for n in ("b2", "a2", "row")],
    )  # fmt: skip
    scan = node(
        "Scan", ["a0", "b0", "x", "y"], ["p", "q", "rows"], body=body, num_scan_inputs=2,
        scan_input_directions=[0, 1],
    )  # fmt: skip
    inputs: dict[str, tuple[int, Any]] = {n: (F, [3]) for n in ("a0", "b0")}
    inputs |= {n: (F, [50, 3]) for n in ("x", "y")}
    model = model_of([scan], inputs, {"p": F, "q": F, "rows": F})
    compiled = fk.compile_onnx(model)
    assert blocks_of(compiled) == ["scan"]
    agree(model, compiled, {n: floats(*s) for n, (_, s) in inputs.items()})


def test_scan_without_states_and_with_views() -> None:
    body = body_of(
        [
            node("Unsqueeze", ["e", "zero"], ["u"]), node("Reshape", ["e", "flat"], ["f"]),
            node("Reshape", ["f", "turned"], ["g"]), node("MatMul", ["e", "g"], ["row"]),
            node("Squeeze", ["u", "zero"], ["same"]), node("Identity", ["constant"], ["known"]),
        ],
        [info("e", F, [2, 3])], [info(n, F, None) for n in ("row", "same", "known")],
        zero=np.array([0]), flat=np.array([6]), turned=np.array([3, 2]), constant=floats(2),
    )  # fmt: skip
    scan = node("Scan", ["x"], ["p", "q", "r"], body=body, num_scan_inputs=1)
    model = model_of([scan], {"x": (F, [30, 2, 3])}, {"p": F, "q": F, "r": F})
    compiled = fk.compile_onnx(model)
    assert compiled.is_whole and not blocks_of(compiled)  # all steps at once
    agree(model, compiled, {"x": floats(30, 2, 3)})


@pytest.mark.parametrize("batch", [2, "batch"])
def test_scan_of_batches(batch: int | str) -> None:
    """Opset 8: every operand and result has a batch in front."""
    scan = node(
        "Scan", ["", "h0", "x"], ["last", "rows", "sums"], body=cell(), num_scan_inputs=1,
        directions=[1],
    )  # fmt: skip
    steps = 40 if batch == 2 else "steps"
    inputs: dict[str, tuple[int, Any]] = {"h0": (F, [batch, 2, 4]), "x": (F, [batch, steps, 2, 3])}
    model = model_of(
        [scan], inputs, {"last": F, "rows": F, "sums": F}, 8,
        R=floats(4, 4), W=floats(3, 4), Q=floats(4, 4),
    )  # fmt: skip
    compiled = fk.compile_onnx(model)
    for size, count in ((2, 40),) if batch == 2 else ((2, 40), (3, 9)):
        agree(model, compiled, {"h0": floats(size, 2, 4), "x": floats(size, count, 2, 3)})
    assert blocks_of(compiled) == ["scan"]


# --- Loop ----------------------------------------------------------------------------------


def counted(more: Sequence[onnx.NodeProto] = ()) -> onnx.GraphProto:
    """a' = a / 2 + x[trip], rows a' * trip."""
    return body_of(
        [
            node("Gather", ["x", "trip"], ["e"]), node("Mul", ["a", "half"], ["h"]),
            node("Add", ["h", "e"], ["c"]), node("Cast", ["trip"], ["n"], to=F),
            node("Mul", ["c", "n"], ["row"]), *more, node("Identity", ["go"], ["on"]),
        ],
        [info("trip", L, []), info("go", B, []), info("a", F, [3])],
        [info("on", B, []), info("c", F, [3]), info("row", F, [3])],
        half=np.array(0.5, np.float32),
    )  # fmt: skip


@pytest.mark.parametrize("trips", [20, 50])
def test_loop_of_known_trips(trips: int) -> None:
    loop = node("Loop", ["m", "", "a0"], ["last", "rows"], body=counted())
    inputs: dict[str, tuple[int, Any]] = {"a0": (F, [3]), "x": (F, [50, 3])}
    model = model_of([loop], inputs, {"last": F, "rows": F}, m=np.array(trips))
    compiled = fk.compile_onnx(model)
    assert blocks_of(compiled) == ["loop"]
    agree(model, compiled, {"a0": floats(3), "x": floats(50, 3)})


def test_loop_over_an_open_size() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["m"]),
        node("Loop", ["m", "true", "a0"], ["last", "rows"], body=counted()),
        node("Exp", ["rows"], ["y"]),
    ]  # fmt: skip
    inputs: dict[str, tuple[int, Any]] = {"a0": (F, [3]), "x": (F, ["steps", 3])}
    stored = {"zero": np.array(0), "true": np.array(True)}
    model = model_of(nodes, inputs, {"last": F, "y": F}, **stored)
    compiled = fk.compile_onnx(model)
    for steps in (7, 30, 4):
        agree(model, compiled, {"a0": floats(3), "x": floats(steps, 3)})
    assert blocks_of(compiled) == ["loop"] and not compiled.opaque_operators


# --- what is no block ----------------------------------------------------------------------


def test_a_state_that_grows_is_no_block() -> None:
    body = body_of(
        [node("Concat", ["a", "x"], ["b"], axis=0), node("Identity", ["go"], ["on"])],
        [info("trip", L, []), info("go", B, []), info("a", F, None)],
        [info("on", B, []), info("b", F, None)],
    )
    loop = node("Loop", ["m", "", "a0"], ["last"], body=body)
    inputs: dict[str, tuple[int, Any]] = {"a0": (F, [2]), "x": (F, [1])}
    model = model_of([loop], inputs, {"last": F}, m=np.array(70))
    compiled = fk.compile_onnx(model)
    assert not blocks_of(compiled)
    agree(model, compiled, {"a0": floats(2), "x": floats(1)})


def test_an_opaque_operator_is_no_block() -> None:
    more = [node("NonZero", ["c"], ["unused"])]
    body = counted(more)
    body.output.append(info("unused", L, None))
    loop = node("Loop", ["m", "", "a0"], ["last", "rows", "nonzero"], body=body)
    inputs: dict[str, tuple[int, Any]] = {"a0": (F, [3]), "x": (F, [200, 3])}
    model = model_of([loop], inputs, {"last": F, "rows": F, "nonzero": L}, m=np.array(90))
    compiled = fk.compile_onnx(model)
    agree(model, compiled, {"a0": floats(3), "x": np.abs(floats(200, 3)) + 1})
    assert "Loop" in compiled.opaque_operators and not blocks_of(compiled)


def test_an_opaque_operator_lets_a_scan_run_step_by_step() -> None:
    body = body_of(
        [
            node("Add", ["a", "e"], ["b"]), node("NonZero", ["b"], ["places"]),
            node("Neg", ["e"], ["row"]),
        ],
        [info("a", F, [3]), info("e", F, [3])],
        [info("b", F, [3]), info("places", L, None), info("row", F, [3])],
    )  # fmt: skip
    scan = node(
        "Scan", ["a0", "x"], ["last", "nonzero", "rows"], body=body, num_scan_inputs=1,
        scan_input_axes=[1], scan_input_directions=[1],
        scan_output_axes=[0, -1], scan_output_directions=[0, 1],
    )  # fmt: skip
    inputs: dict[str, tuple[int, Any]] = {"a0": (F, [3]), "x": (F, [3, 200])}
    model = model_of([scan], inputs, {"last": F, "nonzero": L, "rows": F})
    compiled = fk.compile_onnx(model)
    agree(model, compiled, {"a0": np.abs(floats(3)) + 1, "x": np.abs(floats(3, 200))})
    assert "Scan" in compiled.opaque_operators and not blocks_of(compiled)


@pytest.mark.parametrize("declared", [[3], None])
def test_a_scan_of_no_steps_collects_nothing(declared: list[int] | None) -> None:
    """ONNX Runtime refuses it."""
    body = body_of(
        [
            node("Add", ["a", "e"], ["b"]), node("NonZero", ["b"], ["places"]),
            node("Neg", ["e"], ["row"]),
        ],
        [info("a", F, [3]), info("e", F, [3])],
        [info("b", F, [3]), info("places", L, None), info("row", F, declared)],
    )  # fmt: skip
    scan = node(
        "Scan", ["a0", "x"], ["last", "nonzero", "rows"], body=body, num_scan_inputs=1,
        scan_output_axes=[0, 1],
    )  # fmt: skip
    inputs: dict[str, tuple[int, Any]] = {"a0": (F, [3]), "x": (F, [0, 3])}
    outputs = {"last": F, "nonzero": L, "rows": F}
    a0, x = floats(3), floats(0, 3)
    found = fk.compile_onnx(model_of([scan], inputs, outputs)).run({"a0": a0, "x": x})
    np.testing.assert_array_equal(found["last"], a0)
    assert found["nonzero"].shape == (0, 1, 0) and found["rows"].shape == (3, 0)
    assert found["nonzero"].dtype == np.int64 and found["rows"].dtype == np.float32


def test_a_loop_that_its_condition_ends_is_no_block() -> None:
    body = body_of(
        [
            node("Add", ["a", "x"], ["b"]), node("ReduceMax", ["b"], ["top"], keepdims=0),
            node("Less", ["top", "limit"], ["on"]),
        ],
        [info("trip", L, []), info("go", B, []), info("a", F, [3])],
        [info("on", B, []), info("b", F, [3])],
        limit=np.array(20, np.float32),
    )  # fmt: skip
    loop = node("Loop", ["m", "", "a0"], ["last"], body=body)
    inputs: dict[str, tuple[int, Any]] = {"a0": (F, [3]), "x": (F, [3])}
    model = model_of([loop], inputs, {"last": F}, m=np.array(90))
    compiled = fk.compile_onnx(model)
    agree(model, compiled, {"a0": floats(3), "x": np.abs(floats(3))})
    assert compiled.opaque_operators == ("Loop",)
