"""Small graphs with the shapes of wiring that networks seldom have, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from tests.frontends.onnx.onnx_support import close, floats, model_of, ort_run

Arrays = dict[str, np.ndarray]
node = helper.make_node


def check(model: onnx.ModelProto, inputs: Arrays, rtol: float = 1e-5) -> fk.Network:
    """Compile a model and compare it with ONNX Runtime, on one and on two threads, twice."""
    compiled = fk.compile_onnx(model)
    before = {name: array.copy() for name, array in inputs.items()}
    for threads in (1, 2, 2):
        close(compiled.run(inputs, threads=threads), ort_run(model, inputs), rtol)
    for name, array in before.items():
        np.testing.assert_array_equal(inputs[name], array)
    return compiled


def test_branches_that_meet_again() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Sigmoid", ["a"], ["c"]),
        node("Add", ["b", "c"], ["d"]),
        node("Mul", ["d", "a"], ["e"]),
        node("Softmax", ["e"], ["y"], axis=-1),
        node("ReduceSum", ["e"], ["z"], keepdims=0),
    ]
    inputs = {"x": floats(5, 7)}
    check(model_of(nodes, inputs, ["y", "z", "b"], {"w": floats(7, 6)}), inputs)


def test_views_as_outputs() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Reshape", ["r", "flat"], ["y"]),
        node("Reshape", ["r", "tall"], ["z"]),
        node("Unsqueeze", ["y", "first"], ["u"]),
        node("Reshape", ["x", "flat"], ["of_input"]),
        node("Reshape", ["w", "flat"], ["of_constant"]),
        node("Add", ["z", "z"], ["used_too"]),
    ]
    inputs = {"x": floats(3, 4)}
    constants = {
        "flat": np.array([-1]), "tall": np.array([6, 2]), "first": np.array([0]),
        "w": floats(2, 5),
    }  # fmt: skip
    outputs = ["y", "z", "u", "of_input", "of_constant", "used_too", "r"]
    check(model_of(nodes, inputs, outputs, constants), inputs)


def test_inputs_and_constants_as_outputs() -> None:
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Identity", ["w"], ["constant"]),
        node("Constant", [], ["literal"], value=onnx.numpy_helper.from_array(np.arange(3))),
        node("Shape", ["x"], ["shape"]),
        node("Neg", ["x"], ["y"]),
    ]
    inputs = {"x": floats(3, 4)}
    outputs = ["same", "constant", "literal", "shape", "y"]
    check(model_of(nodes, inputs, outputs, {"w": floats(2, 2)}), inputs)


def test_an_input_and_a_constant_that_are_outputs_themselves() -> None:
    inputs = {"x": floats(3, 4)}
    model = model_of([node("Neg", ["x"], ["y"])], inputs, ["y"], {"w": floats(2)})
    model.graph.output.append(model.graph.input[0])
    model.graph.output.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [2]))
    compiled = check(model, inputs)
    results = compiled.run(inputs)
    assert list(results) == ["y", "x", "w"]
    assert not np.shares_memory(results["x"], inputs["x"])
    results["w"][:] = 0  # the caller's to change
    np.testing.assert_array_equal(compiled.run(inputs)["w"], ort_run(model, inputs)["w"])


def test_a_graph_without_calls() -> None:
    inputs = {"x": floats(3, 4)}
    model = model_of([node("Identity", ["x"], ["y"])], inputs, ["y"])
    assert check(model, inputs).report.calls == 0


def test_a_graph_without_inputs() -> None:
    nodes = [node("Neg", ["w"], ["y"]), node("MatMul", ["w", "w"], ["z"])]
    check(model_of(nodes, {}, ["y", "z"], {"w": floats(4, 4)}), {})


def test_one_value_under_several_outputs() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        *(node("Identity", ["a"], [f"y{n}"]) for n in range(3)),
        node("Neg", ["y1"], ["z"]),
    ]
    inputs = {"x": floats(9)}
    check(model_of(nodes, inputs, ["y0", "y1", "y2", "z", "a"]), inputs)


def test_one_kernel_called_often_with_different_values() -> None:
    """A chain of equal layers reuses the arena; each call must get its own arrays."""
    nodes, last = [], "x"
    weights = {}
    for n in range(9):
        weights[f"w{n}"] = floats(6, 6) / 3
        nodes += [node("MatMul", [last, f"w{n}"], [f"m{n}"]), node("Tanh", [f"m{n}"], [f"t{n}"])]
        nodes.append(node("Add", [f"t{n}", last], [f"a{n}"]))
        last = f"a{n}"
    inputs = {"x": floats(4, 6)}
    model = check(model_of(nodes, inputs, [last, "t0", "a3"], weights), inputs, 1e-4)
    assert model.report.kernels < 9 < model.report.calls


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (0, 0)])
def test_values_without_elements(shape: tuple[int, ...]) -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Add", ["r", "one"], ["y"]),
        node("ReduceSum", ["y", "axes"], ["s"], keepdims=0),
        node("Concat", ["y", "x"], ["c"], axis=0),
        node("Reshape", ["x", "flat"], ["v"], allowzero=1),
        node("Identity", ["x"], ["same"]),
    ]
    inputs = {"x": np.zeros(shape, np.float32)}
    constants = {"one": np.float32([1]), "axes": np.array([0]), "flat": np.array([0])}
    check(model_of(nodes, inputs, ["y", "s", "c", "v", "same"], constants), inputs)


def test_an_empty_sum_is_zero() -> None:
    inputs = {"a": np.zeros((3, 0), np.float32), "b": np.zeros((0, 4), np.float32)}
    check(model_of([node("MatMul", ["a", "b"], ["y"])], inputs, ["y"]), inputs)


def test_float64_and_int64() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Cast", ["m"], ["i"], to=onnx.TensorProto.INT64),
        node("Mul", ["i", "k"], ["j"]),
        node("Div", ["j", "k"], ["d"]),
        node("Greater", ["j", "i"], ["g"]),
        node("Where", ["g", "j", "i"], ["picked"]),
        node("Gather", ["w", "at"], ["rows"], axis=0),
        node("Cast", ["g"], ["h"], to=onnx.TensorProto.FLOAT16),
    ]
    inputs = {"x": floats(3, 5, dtype=np.float64), "at": np.array([[4, 0], [-1, 2]])}
    constants = {"w": floats(5, 4, dtype=np.float64), "k": np.array([3, -2, 7, 2**40])}
    outputs = ["m", "j", "d", "g", "picked", "rows", "h"]
    check(model_of(nodes, inputs, outputs, constants), inputs, 1e-12)


def test_everything_at_once() -> None:
    """Convolution, normalisation and pooling with a shape computed from the input's."""
    nodes = [
        node("Conv", ["x", "f", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "g", "b", "b", "v"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        node("GlobalAveragePool", ["r"], ["gap"]),
        node("Shape", ["p"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"], axis=0),
        node("Concat", ["batch", "rest"], ["t"], axis=0),
        node("Reshape", ["p", "t"], ["rows"]),
        node("Gemm", ["rows", "w"], ["y"], transB=1, alpha=0.5),
        node("Split", ["y", "parts"], ["y0", "y1"], axis=1),
    ]
    inputs = {"x": floats(2, 3, 9, 7)}
    constants = {
        "f": floats(8, 3, 3, 3), "b": floats(8), "g": floats(8), "v": floats(8, low=0.5),
        "zero": np.array([0]), "rest": np.array([-1]), "w": floats(6, 8 * 4 * 3),
        "parts": np.array([2, 4]),
    }  # fmt: skip
    check(model_of(nodes, inputs, ["y0", "y1", "gap", "p"], constants), inputs, 2e-5)


@pytest.mark.parametrize("length", [16, 14])  # rows of whole vectors, and others
def test_weights_of_integers_are_packed_before(length: int) -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.integers(0, 256, (1, 64, length, length)).astype(np.uint8)}
    weights = {"w": rng.integers(-128, 128, (96, 64, 1, 1)).astype(np.int8)}
    model = check(
        model_of([node("ConvInteger", ["x", "w"], ["y"])], inputs, ["y"], weights), inputs
    )
    assert all(" as W," not in str(schedule) for schedule in model.schedules.values())
