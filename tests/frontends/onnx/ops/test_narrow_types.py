"""Weights of 4 bits and of floats of 8: what is read, dequantised, cast and refused.

ONNX Runtime is the judge without its optimisations, some of which round activations to 8 bits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import farkas as fk
from frontends.onnx import import_model
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import floats

X = floats(5, 32)
INTEGERS = {"int4": (TensorProto.INT4, -8, 8), "uint4": (TensorProto.UINT4, 0, 16)}
FLOATS = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]


def tensor(name: str, number: int, array: np.ndarray) -> onnx.TensorProto:
    return helper.make_tensor(name, number, array.shape, array.ravel().tolist())


def model(
    nodes: list[onnx.NodeProto], stored: list[onnx.TensorProto], output: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """With one input, x, and one output, y."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, [5, 32])], [info("y", output, None)], stored
    )
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def product(weights: str = "w") -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", weights], ["y"])


def agree(proto: onnx.ModelProto) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    (wanted,) = session.run(None, {"x": X})
    found = fk.compile_onnx(proto, threads=1).run({"x": X})["y"]
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("block", "axis", "shape"), [(0, 1, ()), (0, 1, (7,)), (16, 0, (2, 7))])
def test_weights_of_four_bits(kind: str, zero: bool, block: int, axis: int, shape: tuple) -> None:
    number, low, high = INTEGERS[kind]
    draw = np.random.default_rng(0)
    stored = [
        tensor("w", number, draw.integers(low, high, (32, 7))),
        numpy_helper.from_array(np.float32(draw.random(shape)), "s"),
        *([tensor("z", number, draw.integers(low, high, shape))] if zero else []),
    ]
    attributes = {"axis": axis, **({"block_size": block} if block else {})}
    names = ["w", "s", "z"] if zero else ["w", "s"]
    agree(model([helper.make_node("DequantizeLinear", names, ["f"], **attributes), product("f")],
                stored))  # fmt: skip


@pytest.mark.parametrize("kind", INTEGERS)
def test_views_of_them(kind: str) -> None:
    number, low, high = INTEGERS[kind]
    weights = np.random.default_rng(1).integers(low, high, (7, 4, 8))
    nodes = [
        helper.make_node("Reshape", ["w", "shape"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["turned"], perm=[1, 0]),
        helper.make_node("Cast", ["turned"], ["f"], to=TensorProto.FLOAT),
        product("f"),
    ]
    shape = numpy_helper.from_array(np.array([7, 32]), "shape")
    stored = [tensor("w", number, weights), shape]
    found = fk.compile_onnx(model(nodes, stored), threads=1).run({"x": X})["y"]
    np.testing.assert_allclose(found, X @ weights.reshape(7, 32).T, 1e-4, 1e-4)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("operator", ["Cast", "DequantizeLinear", "Constant"])
def test_floats_of_eight_bits(name: str, operator: str) -> None:
    number = getattr(TensorProto, name)
    weights = tensor("w", number, np.random.default_rng(2).standard_normal((32, 7)))
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    cast = helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT)
    if operator == "DequantizeLinear":
        nodes = [helper.make_node(operator, ["w", "s"], ["f"])]
    elif operator == "Cast":
        nodes = [cast]
    else:
        nodes = [helper.make_node("Constant", [], ["w"], value=weights), cast]
    agree(model([*nodes, product("f")], [scale, *([] if operator == "Constant" else [weights])]))


def test_they_may_be_in_another_file(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).integers(-8, 8, (32, 7))
    proto = model(
        [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), product("f")],
        [tensor("w", TensorProto.INT4, weights)],
    )
    raw = bytes(proto.graph.initializer[0].int32_data)
    proto.graph.initializer[0].ClearField("int32_data")
    proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("length", str(len(raw)))):
        proto.graph.initializer[0].external_data.add(key=key, value=value)
    (tmp_path / "w.bin").write_bytes(raw)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    found = fk.compile_onnx(tmp_path / "m.onnx", threads=1).run({"x": X})["y"]
    np.testing.assert_allclose(found, X @ weights, 1e-4, 1e-4)


def test_what_has_their_type_already() -> None:
    weights = np.random.default_rng(4).integers(-8, 8, (32, 7)).astype(float)
    eight = TensorProto.FLOAT8E4M3FN
    nodes = [
        helper.make_node("CastLike", ["w", "z"], ["c"]),
        helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT),
        product("f"),
    ]
    proto = model(nodes, [tensor("w", eight, weights), tensor("z", eight, np.array(1.0))])
    found = fk.compile_onnx(proto, threads=1).run({"x": X})["y"]
    np.testing.assert_allclose(found, X @ weights, 1e-4, 1e-4)


def test_what_cannot_be_done_with_them() -> None:
    scale = numpy_helper.from_array(np.float32(0.1), "s")
    zero = tensor("z", TensorProto.INT4, np.array(0))
    quantise = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    with pytest.raises(UnsupportedModelError, match="cannot process tensors of int4 yet"):
        import_model(model([quantise], [scale, zero], TensorProto.INT4))
    like = [
        helper.make_node("CastLike", ["e", "z"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    other = tensor("e", TensorProto.FLOAT8E4M3FN, np.array(1.125))
    five = tensor("z", TensorProto.FLOAT8E5M2, np.array(1.0))
    with pytest.raises(UnsupportedModelError, match="element type float8e5m2"):
        import_model(model(like, [other, five]))
    passed = helper.make_node("Identity", ["z"], ["y"])
    with pytest.raises(ModelError, match="'y' is a tensor of int4, which cannot be returned"):
        import_model(model([passed], [zero], TensorProto.INT4))
    eight = tensor("z", TensorProto.FLOAT8E5M2, np.array(1.0))
    proto = model([helper.make_node("DequantizeLinear", ["z", "s", "z"], ["y"])], [scale, eight])
    with pytest.raises(ModelError, match="floats have a zero point that is not 0"):
        import_model(proto)


@pytest.mark.parametrize("raw", [b"", b"\0" * 2, b"\0" * 4])
def test_data_that_does_not_fit(raw: bytes) -> None:
    weights = onnx.TensorProto(name="w", data_type=TensorProto.INT4, dims=[5], raw_data=raw)
    cast = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    with pytest.raises(ModelError, match=r"'w' of shape \[5\] needs 3 bytes, but has"):
        import_model(model([cast], [weights]))
    wrong = onnx.TensorProto(name="w", data_type=TensorProto.INT4, dims=[2], int32_data=[256])
    with pytest.raises(ModelError, match="a number that is not 8 bits wide"):
        import_model(model([cast], [wrong]))
