"""Networks in float16: every value has the type, and the results are near those in float32."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import farkas as fk
from benchmarks import models
from benchmarks.gpu.networks import TINY
from benchmarks.kernel import Array
from benchmarks.models import bare_model
from benchmarks.sixteen_bits import halved_model
from benchmarks.worker import difference
from frontends.onnx.model.light_models import randomised


def outputs(model: ModelProto, array: Array) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return list(session.run(None, {session.get_inputs()[0].name: array}))


def types_of(model: ModelProto) -> set[int]:
    """Of all values; ONNX says whether operators take and give them."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, check_type=True).graph
    infos = (*inferred.input, *inferred.output, *inferred.value_info)
    return {i.type.tensor_type.elem_type for i in infos}


@pytest.mark.parametrize("name", [*TINY, "squeezenet"])
def test_results_are_near(name: str) -> None:
    model = TINY[name]() if name in TINY else randomised(bare_model(name), seed=0)
    stored = {t.name for t in model.graph.initializer}
    (given,) = (i for i in model.graph.input if i.name not in stored)
    shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
    array = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    expected = outputs(model, array)
    half = halved_model(model)
    assert TensorProto.FLOAT not in types_of(half)
    assert all(t.data_type != TensorProto.FLOAT for t in half.graph.initializer)
    found = outputs(half, array.astype(np.float16))
    assert {a.dtype for a in found} == {np.dtype(np.float16)}
    assert 0 < difference(found, expected) < 5e-3
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT  # as it was
    if name in TINY:
        own = fk.compile_onnx(half).run({given.name: array.astype(np.float16)})
        assert 0 < difference(list(own.values()), expected) < 5e-3


def test_constants_and_casts() -> None:
    """Numbers in attributes, those too large for the type, integers, and what a cast gives."""
    big = numpy_helper.from_array(np.array([1e6], np.float32))
    nodes = [
        helper.make_node("Constant", [], ["one"], value_float=1.0),
        helper.make_node("Constant", [], ["pair"], value_floats=[0.5, 2.0]),
        helper.make_node("Constant", [], ["n"], value_ints=[2]),
        helper.make_node("ConstantOfShape", ["n"], ["zeros"]),
        helper.make_node("ConstantOfShape", ["n"], ["bigs"], value=big),
        helper.make_node("Cast", ["I"], ["i"], to=TensorProto.FLOAT),
        helper.make_node("Sum", ["one", "pair", "zeros", "i"], ["s"]),
        helper.make_node("Min", ["s", "bigs"], ["Y"]),
    ]
    graph = helper.make_graph(
        nodes, "constants",
        [helper.make_tensor_value_info("I", TensorProto.INT32, [2])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    half = halved_model(model)
    onnx.checker.check_model(half, full_check=True)
    assert types_of(half) == {TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT16}
    (found,) = outputs(half, np.array([3, 4], np.int32))
    assert found.dtype == np.float16 and found.tolist() == [4.5, 7.0]


def test_what_is_refused() -> None:
    for op, words in (("Resize", "its factors in float32"), ("If", "has subgraphs")):
        body = helper.make_graph([], "body", [], [])
        extra = {"then_branch": body, "else_branch": body} if op == "If" else {}
        graph = helper.make_graph([helper.make_node(op, ["X"], ["Y"], **extra)], "g", [], [])
        with pytest.raises(ValueError, match=words):
            halved_model(helper.make_model(graph))


def test_all_networks_can_be_halved() -> None:
    """Without computing them."""
    for name in models.names():
        if name != "bert_base":
            halved_model(bare_model(name))
