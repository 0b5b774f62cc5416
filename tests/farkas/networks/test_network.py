"""What compiled networks can do because they know where they come from."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import farkas as fk

F = TensorProto.FLOAT
Arrays = dict[str, np.ndarray]


def attention() -> onnx.ModelProto:
    """Rows of x against rows of y: dimensions batch, rows and others; y's last one has no name."""
    nodes = [
        helper.make_node("Transpose", ["y"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["p"]),
        helper.make_node("Softmax", ["p"], ["s"]),
    ]
    graph = helper.make_graph(
        nodes,
        "attention",
        [
            helper.make_tensor_value_info("x", F, ["batch", "rows", 4]),
            helper.make_tensor_value_info("y", F, ["batch", "others", None]),
        ],
        [helper.make_tensor_value_info("s", F, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def arrays_of(batch: int, rows: int, others: int) -> Arrays:
    rng = np.random.default_rng(batch)
    return {
        "x": rng.standard_normal((batch, rows, 4)).astype(np.float32),
        "y": rng.standard_normal((batch, others, 4)).astype(np.float32),
    }


def agree(proto: onnx.ModelProto, model: fk.Network, arrays: Arrays) -> None:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for found, wanted in zip(model.run(arrays).values(), session.run(None, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_dimensions_are_fixed_one_after_the_other() -> None:
    proto = attention()
    model = fk.compile_onnx(proto, threads=1)
    one = model.specialize(batch=2)
    assert [str(p) for p in one.inputs] == ["float32 x[2,rows,4]", "float32 y[2,others,?]"]
    two = one.specialize(rows=np.int64(3), others=5)
    assert [str(p) for p in two.inputs] == ["float32 x[2,3,4]", "float32 y[2,5,?]"]
    for compiled in (model, one, two):
        agree(proto, compiled, arrays_of(2, 3, 5))
    agree(proto, one, arrays_of(2, 4, 6))
    agree(proto, model, arrays_of(3, 4, 6))  # which is as it was
    with pytest.raises(fk.ArgumentError, match=r"x has shape \(3, 3, 4\), not float32 x\[2,rows"):
        one.run(arrays_of(3, 3, 5))


def test_all_dimensions_fixed_make_one_model(tmp_path: Path) -> None:
    proto = attention()
    proto.graph.input[1].type.tensor_type.shape.dim[2].dim_value = 4
    onnx.save(proto, tmp_path / "attention.onnx")
    model = fk.compile_onnx(tmp_path / "attention.onnx", shapes={"rows": 3})
    fixed = model.specialize(batch=2, others=6)
    assert fixed.is_whole
    agree(proto, fixed, arrays_of(2, 3, 6))
    with pytest.raises(fk.ArgumentError, match="'rows' is fixed already; no named dimension is"):
        fixed.specialize(rows=3)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"bath": 1}, "'bath' is not a dimension of the inputs; the dynamic dimensions are"),
        ({"x": 1}, "'x' is not a dimension of the inputs"),
        ({"rows": 3}, "'rows' is fixed already; the dynamic dimensions are 'batch', 'others'"),
        ({"batch": 0}, "'batch' must be a positive integer, not 0"),
        ({"batch": -1}, "'batch' must be a positive integer, not -1"),
        ({"batch": True}, "'batch' must be a positive integer, not True"),
        ({"batch": 2.0}, "'batch' must be a positive integer, not 2.0"),
        ({"batch": "2"}, "'batch' must be a positive integer, not '2'"),
    ],
)
def test_sizes_that_do_not_fit(sizes: dict[str, int], message: str) -> None:
    model = fk.compile_onnx(attention(), shapes={"rows": 3})
    with pytest.raises(fk.ArgumentError, match=message):
        model.specialize(**sizes)


@pytest.mark.parametrize("sizes", [None, {"batch": 2, "rows": 3, "others": 5}])
def test_one_class_serves_fixed_and_open_sizes(sizes: dict[str, int] | None) -> None:
    proto, arrays = attention(), arrays_of(2, 3, 5)
    if sizes is not None:
        proto.graph.input[1].type.tensor_type.shape.dim[2].dim_value = 4
    model = fk.compile_onnx(proto, shapes=sizes, threads=1)
    assert type(model) is fk.Network and model.is_whole == (sizes is not None)
    expected = model.run(arrays)["s"]
    out = np.full((2, 3, 5), np.nan, np.float32)
    assert model.run(arrays, out={"s": out})["s"] is out  # written where it is, not copied
    np.testing.assert_array_equal(out, expected)
    assert model.run(arrays, out={"s": None})["s"] is not out
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(fk.ArgumentError, match="stream= is not supported on a CPU"):
        model.run(arrays, stream=1)
    with pytest.raises(fk.ArgumentError, match="has no device"):
        model.device  # noqa: B018
    (graph,) = model.graphs
    assert {n.program.name for n in graph.nodes if hasattr(n, "program")} and model.schedules
    assert list(model.source) == list(model.compiled[0].source)
    assert model.report.calls == len(model.compiled[0].calls)


def test_files_of_stages_are_told_apart() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=F),
        helper.make_node("Exp", ["f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "staged",
        [helper.make_tensor_value_info("x", F, [4, 5])],
        [helper.make_tensor_value_info("y", F, None)],
    )
    opset = [helper.make_opsetid("", 17)]
    model = fk.compile_onnx(helper.make_model(graph, opset_imports=opset, ir_version=9), threads=1)
    model.run({"x": np.ones((4, 5), np.float32)})
    assert len(model.graphs) == 2 and model.opaque_operators == ("NonZero",)
    assert {n.split("/")[0] for n in model.source} == {"stage0", "stage1"}
    assert {n.split()[0] for n in model.schedules} == {"stage0", "stage1"}


@pytest.mark.parametrize("name", ["?", "", "-1", " ? "])
def test_dimensions_without_names_are_not_equal(name: str) -> None:
    """Exporters write these for sizes of which they know nothing."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["y"], ["b"])],
        "two",
        [info("x", F, [name, name]), info("y", F, [3, name])],
        [info("a", F, [name, name]), info("b", F, [name, name])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = fk.compile_onnx(proto, threads=1)
    assert [str(p) for p in model.inputs] == ["float32 x[?,?]", "float32 y[3,?]"]
    agree(proto, model, {"x": np.float32(np.eye(2, 5)), "y": np.float32(np.eye(3, 4))})
    with pytest.raises(fk.ArgumentError, match="shapes names"):
        fk.compile_onnx(proto, shapes={name: 3})


@pytest.mark.parametrize("open_size", [False, True])
def test_initializers_that_are_inputs_may_be_given(open_size: bool, tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    w, b = np.arange(4, dtype=np.float32), np.ones((2, 4), np.float32)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["y"])],
        "defaults",
        [info("x", F, ["n" if open_size else 2, 4]), info("w", F, [4]), info("b", F, [2, 4])],
        [info("y", F, None)],
        [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(b, "b")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (path := tmp_path / "defaults.onnx").write_bytes(proto.SerializeToString())
    x = np.float32(np.eye(2, 4))
    for _ in range(2):  # the second one is found in the cache
        model = fk.compile_onnx(path, threads=1, cache=tmp_path / "cache")
        assert [p.name for p in model.inputs] == ["x"]
        for more in ({}, {"w": 2 * w}, {"b": -b, "w": w + 1}, {"b": 3 * b}, {}):
            agree(proto, model, {"x": x, **more})
    with pytest.raises(fk.ArgumentError, match="there is no input 'p'"):
        model.run({"x": x, "p": x})
    with pytest.raises(fk.ArgumentError, match="w has dtype float64, expected float32"):
        model.run({"x": x, "w": w.astype(np.float64)})
    with pytest.raises(fk.ArgumentError, match="3"):
        model.run({"x": x, 3: w})  # type: ignore[dict-item]
    path.write_bytes(b"another")
    with pytest.raises(fk.ArgumentError, match=r"no input 'more', unless .* has changed since"):
        model.run({"x": x, "more": w})


def test_a_shape_that_may_be_given_inside_a_loop() -> None:
    """The body of the loop, a model of its own, has it as a stored tensor."""
    info, node = helper.make_tensor_value_info, helper.make_node
    body = helper.make_graph(
        [node("Reshape", ["s", "shape"], ["part"]),
         node("ReduceSum", ["part"], ["sum"], keepdims=0),
         node("Less", ["sum", "limit"], ["on"]), node("Add", ["s", "s"], ["twice"])],
        "body",
        [info("step", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("s", F, None)],
        [info("on", TensorProto.BOOL, []), info("twice", F, None)],
    )  # fmt: skip
    graph = helper.make_graph(
        [node("Reshape", ["x", "shape"], ["first"]),
         node("Loop", ["", "yes", "first"], ["y"], body=body)],
        "g", [info("x", F, [2, 6]), info("shape", TensorProto.INT64, ["rank"])],
        [info("y", F, None)],
        [onnx.numpy_helper.from_array(np.array(a), n)
         for n, a in (("shape", [3, 4]), ("yes", True), ("limit", np.float32(50)))],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model, x = fk.compile_onnx(proto, threads=1), np.ones((2, 6), np.float32)
    for more in ({}, {"shape": np.array([4, 3])}, {"shape": np.array([12])}, {}):
        agree(proto, model, {"x": x, **more})


def test_an_output_listed_twice_is_one() -> None:
    proto = attention()
    proto.graph.output.append(proto.graph.output[0])
    model, arrays = fk.compile_onnx(proto, threads=1), arrays_of(2, 3, 5)
    assert [p.name for p in model.outputs] == ["s"]
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    np.testing.assert_allclose(model.run(arrays)["s"], session.run(["s"], arrays)[0], 1e-5, 1e-6)


def open_network(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """From x[n,4] and y[m,4] to z."""
    info = helper.make_tensor_value_info
    inputs = [info("x", F, ["n", 4]), info("y", F, ["m", 4])]
    graph = helper.make_graph(list(nodes), "g", inputs, [info("z", F, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_open_networks_are_refused_when_they_are_loaded() -> None:
    """With all reasons; what some sizes allow is not refused."""
    node = helper.make_node
    proto = open_network(
        node("Celu", ["x"], ["a"], name="one"),
        node("Multinomial", ["a"], ["b"], name="two"),
        node("Cast", ["x"], ["c"], to=TensorProto.COMPLEX64, name="three"),
        node("Cast", ["y"], ["d"], to=TensorProto.COMPLEX64, name="four"),
        node("Identity", ["d"], ["z"]),
    )
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in ("b", "c"))
    with pytest.raises(fk.UnsupportedModelError) as caught:
        fk.compile_onnx(proto)
    assert [n.name for n in caught.value.nodes] == ["two", "three", "four"]
    wrong = open_network(node("Cast", ["x"], ["i"], to=7), node("Add", ["i", "y"], ["z"], name="s"))
    with pytest.raises(fk.ModelError, match=r"Add 's' \(opset 17\): input 'B' is float32, but ano"):
        fk.compile_onnx(wrong)
    weights = onnx.numpy_helper.from_array(np.ones((5, 3), np.float32), "w")
    never = open_network(node("MatMul", ["x", "w"], ["z"], name="m"))
    never.graph.initializer.append(weights)
    with pytest.raises(fk.ModelError, match=r"MatMul 'm' \(opset 17\): .*\[n, 4\] and \[5, 3\]"):
        fk.compile_onnx(never)
    never.graph.node.append(node("Multinomial", ["x"], ["b"], name="two"))
    never.graph.output.append(onnx.ValueInfoProto(name="b"))
    with pytest.raises(fk.UnsupportedModelError) as caught:
        fk.compile_onnx(never)
    assert {n.name for n in caught.value.nodes} == {"m", "two"}
    five = open_network(
        node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["t", "w"], ["z"])
    )
    five.graph.initializer.append(weights)
    model = fk.compile_onnx(five, threads=1)
    agree(five, model, {"x": np.ones((5, 4), np.float32), "y": np.ones((2, 4), np.float32)})
    equal = open_network(node("Add", ["x", "y"], ["z"]))
    model = fk.compile_onnx(equal, threads=1)
    agree(equal, model, {"x": np.ones((5, 4), np.float32), "y": np.ones((5, 4), np.float32)})
    with pytest.raises(fk.ModelError, match=r"do not broadcast|cannot be broadcast"):
        model.run({"x": np.ones((5, 4), np.float32), "y": np.ones((3, 4), np.float32)})


def test_what_a_model_says_of_a_value_is_no_condition() -> None:
    """It may be what the exporter's example had."""
    node = helper.make_node
    proto = open_network(node("Relu", ["x"], ["t"]), node("Add", ["t", "t"], ["z"]))
    proto.graph.value_info.append(helper.make_tensor_value_info("t", F, [8, 4]))
    model = fk.compile_onnx(proto, threads=1)
    for rows in (8, 9):
        given = {"x": np.ones((rows, 4), np.float32), "y": np.ones((3, 4), np.float32)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fk.ModelWarning)
            agree(proto, model, given)
    assert len(model.conditions) == 1 and "8" not in model.conditions[0]


@pytest.mark.parametrize("operator", ["AveragePool", "Pad"])
def test_windows_larger_than_the_sizes_tried_are_not_refused(operator: str) -> None:
    """They fit into the arrays that will arrive."""
    if operator == "Pad":
        nodes = [helper.make_node("Pad", ["x", "pads"], ["z"], mode="reflect")]
    else:
        nodes = [helper.make_node("AveragePool", ["x"], ["z"], kernel_shape=[70, 70])]
    info = helper.make_tensor_value_info
    pads = onnx.numpy_helper.from_array(np.array([0, 0, 64, 0, 0, 0, 0, 64]), "pads")
    graph = helper.make_graph(
        nodes, "g", [info("x", F, ["n", 1, "h", "w"])], [info("z", F, None)], [pads]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = fk.compile_onnx(proto, threads=1)
    for shape in ((2, 1, 75, 90), (2, 1, 80, 71)):
        agree(proto, model, {"x": np.random.default_rng(0).random(shape, np.float32)})
    with pytest.raises(fk.ModelError, match=r"does not fit|reflection by more"):
        model.run({"x": np.ones((2, 1, 40, 40), np.float32)})
