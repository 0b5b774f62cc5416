"""The importer itself: names, shapes, folding, and every kind of broken file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import farkas as fk
import frontends.onnx.core.node as registered
from frontends.onnx import import_model, open_model, unknown_operators
from frontends.onnx.core.identifiers import C_WORDS, Mangler, printable
from frontends.onnx.core.node import find_operator, operator
from poly.errors import ArgumentError, ModelError, ModelWarning, UnsupportedModelError
from poly.ir.graph import Call, View
from poly.ir.program import RESERVED
from tests.frontends.onnx.onnx_support import (
    agree,
    close,
    floats,
    model_of,
    ort_run,
    run_graph,
    single,
)

F = TensorProto.FLOAT


def build(
    nodes, inputs=(("x", F, [2, 3]),), outputs=(("y", F, None),), constants=None, opset=17
) -> onnx.ModelProto:
    """A model that nobody has checked."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [onnx.numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def relu(source="x", target="y", **kwargs) -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], **kwargs)


# --- sources ---


def test_every_kind_of_source(tmp_path: Path):
    model = build([relu()])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    for source in (model, model.SerializeToString(), path, str(path)):
        assert str(import_model(source)) == str(import_model(model))


@pytest.mark.parametrize("data", [b"", b"\x00", b"not a model", b"\xff" * 100])
def test_bytes_that_are_no_model(data):
    with pytest.raises(ModelError):
        import_model(data)


def test_every_truncation():
    data = build([relu()], constants={"w": floats(3)}).SerializeToString()
    for length in range(len(data)):
        with pytest.raises(ModelError):
            import_model(data[:length])
            # A prefix that ends between fields is a model, but an incomplete one.


def test_paths_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ModelError, match=r"is a directory$"):
        import_model(tmp_path)
    with pytest.raises(ModelError, match="No such file"):
        import_model(tmp_path / "missing.onnx")
    with pytest.raises(ModelError):
        import_model("a\0b")
    with pytest.raises(ModelError, match="a model is a path"):
        import_model(3)  # type: ignore[arg-type]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ModelError, match="not a regular file"):
            import_model(tmp_path / "pipe")


# --- names ---


def test_names_become_identifiers_and_labels_lead_back():
    evil = 'x"); system("rm -rf /"); /*'
    nodes = [relu(evil, "*/ int main"), relu("*/ int main", "日本")]
    model = build(nodes, [(evil, F, [2])], [("日本", F, [2])])
    graph = import_model(model)
    assert [graph.label(v) for v in (*graph.inputs, *graph.outputs)] == [evil, "日本"]
    for name in graph.values:
        assert name.isidentifier() and name.isascii()
    for node in graph.nodes:
        assert "*/" not in node.origin and "\n" not in node.origin and node.origin.isascii()
    x = floats(2)
    close(run_graph(graph, {evil: x}), {"日本": np.maximum(x, 0)})


def test_mangler():
    mangle = Mangler()
    hard = [*RESERVED, *C_WORDS, "a.b", "a/b", "a b", "", "0", "é", "_", "A" * 500, "A" * 501]
    made = [mangle(name) for name in hard]
    assert len(set(made)) == len(set(hard))
    assert made == [mangle(name) for name in hard]
    for name in made:
        assert name.isidentifier() and name.isascii() and len(name) <= 60
        assert name not in RESERVED and name not in C_WORDS and "__" not in name


def test_printable():
    assert printable("a\nb*/é\ud800") == r"a\nb* /\xe9\ud800"
    assert len(printable("x" * 1000)) == 80


# --- shapes ---


def test_dynamic_dimensions():
    model = build([relu()], [("x", F, ["batch", 3, None])], [("y", F, ["batch", 3, None])])
    with pytest.raises(ModelError, match=r"dimension 0 'batch' of input 'x' is dynamic.*shapes="):
        import_model(model)
    graph = import_model(model, shapes={"x": (4, 3, 5)})
    assert graph.shape(graph.outputs[0]) == (4, 3, 5)
    with pytest.raises(ModelError, match="dimension 2 of input 'x' is dynamic"):
        import_model(model, shapes={"batch": 4})
    model = build([relu()], [("x", F, ["batch", 3])], [("y", F, ["batch", 3])])
    for given in (4, [4]):
        graph = import_model(model, shapes={"batch": given})
        assert graph.shape(graph.outputs[0]) == (4, 3)
    model = build([relu()], [("x", F, [-1, 3])])
    assert import_model(model, shapes={"x": (2, 3)}).shape("x") == (2, 3)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1,)}, "names 'z'"),
        ({"x": (1,)}, "1 extents, but the input has 2"),
        ({"x": (-1, 3)}, "negative"),
        ({"x": (1, 4)}, "fixes it at 3"),
        ({"batch": (1, 2)}, "must be one size"),
        ({"batch": -2}, "must be one size"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    model = build([relu()], [("x", F, ["batch", 3])])
    with pytest.raises(ArgumentError, match=message):
        import_model(model, shapes=shapes)


def test_an_input_without_a_shape():
    model = build([relu()], [("x", F, None)])
    with pytest.raises(ModelError, match="has no shape; pass shapes"):
        import_model(model)
    assert import_model(model, shapes={"x": (2,)}).shape("x") == (2,)


@pytest.mark.parametrize(
    "dims", [[-5], [1 << 40], [1 << 62, 1 << 62], [1 << 32, 1 << 32, 0], [1] * 40]
)
def test_absurd_shapes(dims):
    with pytest.raises(ModelError):
        import_model(build([relu()], [("x", F, dims)]))
    model = build([helper.make_node("Add", ["x", "w"], ["y"])])
    tensor = model.graph.initializer.add(name="w", data_type=F)
    tensor.dims.extend(dims)
    with pytest.raises(ModelError):
        import_model(model)
    node = helper.make_node("ConstantOfShape", ["s"], ["y"])
    with pytest.raises(ModelError):
        import_model(build([node], constants={"s": np.array(dims, np.int64)}))


@pytest.mark.parametrize("name", ["t", "y"])
@pytest.mark.parametrize("shape", [[2, 4], [6], [2, 3, 1], []])
def test_wrong_shapes_are_ignored_with_a_warning(name, shape):
    """As ONNX Runtime does, in the middle and for an output."""
    outputs = [("y", F, shape if name == "y" else None)]
    model = build([relu("x", "t"), relu("t", "y")], outputs=outputs)
    if name == "t":
        model.graph.value_info.append(helper.make_tensor_value_info("t", F, shape))
    told = rf"value '{name}' has shape \[2, 3\], but the model says \[{str(shape)[1:-1]}\]; that"
    with pytest.warns(ModelWarning, match=told) as warned:
        agree(model, {"x": floats(2, 3)})
    assert len(warned) == 1


def test_claims_of_types_are_checked():
    with pytest.raises(ModelError, match="'y' is float32, but the model says int64"):
        import_model(build([relu()], outputs=[("y", TensorProto.INT64, [2, 3])]))


# --- structure ---


def cases():
    yield "no graph", onnx.ModelProto(ir_version=8), "no graph"
    yield "no output", build([relu()], outputs=()), "no output"
    yield "undefined", build([relu("z")]), "uses 'z', which is not defined"
    yield "missing output", build([relu("x", "t")]), "output 'y' is not defined"
    yield "cycle", build([relu("t", "y"), relu("y", "t")]), "depends on its own output"
    yield "self", build([relu("y", "y")]), "depends on its own output"
    yield "twice", build([relu(), relu()]), "'y' is defined twice"
    yield "shadowed", build([relu("x", "x"), relu()]), "'x' is defined twice"
    twice = build([relu()], [("x", F, [1]), ("x", F, [2])])
    yield "inputs", twice, "two inputs are named 'x'"
    yield "nameless", build([relu()], [("", F, [1])]), "an input has no name"
    yield "future", build([relu()], opset=1000), "uses opset 1000"
    none = build([relu()])
    del none.opset_import[:]
    yield "no opset", none, "imports no opset"
    conflict = build([relu()])
    conflict.opset_import.append(helper.make_opsetid("ai.onnx", 3))
    yield "two opsets", conflict, "two opsets"
    yield "element type", build([relu()], [("x", 99, [1])]), "element type number 99"
    yield "no element type", build([relu()], [("x", 0, [1])]), "no element type"
    yield "attribute", build([relu(foo=1)]), "attribute 'foo' does not exist"
    leaky = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=1)
    yield "attribute type", build([leaky]), "'alpha' has the wrong type"
    leaky = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=1.0)
    leaky.attribute.append(leaky.attribute[0])
    yield "attribute twice", build([leaky]), "'alpha' is given twice"
    yield "required", build([helper.make_node("Cast", ["x"], ["y"])]), "'to' is missing"
    yield "inputs count", build([helper.make_node("Relu", ["x", "x"], ["y"])]), "2 inputs"
    yield "no inputs", build([helper.make_node("Relu", [], ["y"])]), "0 inputs"
    omitted = build([helper.make_node("Add", ["", "x"], ["y"])])
    yield "omitted", omitted, "'A' is missing"
    yield "outputs count", build([helper.make_node("Relu", ["x"], ["y", "z"])]), "2 outputs"
    mixed = build(
        [helper.make_node("Add", ["x", "w"], ["y"])], constants={"w": np.ones(3, np.int64)}
    )
    yield "mixed types", mixed, "input 'B' is int64, but another one is float32"
    boolean = build([relu()], [("x", TensorProto.BOOL, [1])])
    yield "types", boolean, "which the operator does not accept"
    shapes = build(
        [helper.make_node("Add", ["x", "w"], ["y"])], constants={"w": np.ones(2, np.float32)}
    )
    yield "broadcast", shapes, "do not broadcast"


@pytest.mark.parametrize(("model", "message"), [pytest.param(m, t, id=i) for i, m, t in cases()])
def test_broken_models(model, message):
    with pytest.raises(ModelError, match=message):
        import_model(model)


def test_nodes_in_any_order_and_dead_ones():
    nodes = [
        relu("t", "y"),
        helper.make_node("Nonsense", ["x"], ["dead"], domain="nobody"),
        relu("x", "t"),
    ]
    graph = import_model(build(nodes))
    assert len(graph.nodes) == 2 and len(graph.values) == 3


def test_a_long_chain_backwards():
    count = 3000
    nodes = [relu(f"t{n}", f"t{n + 1}") for n in range(count)]
    nodes.reverse()
    model = build(nodes, [("t0", F, [2])], [(f"t{count}", F, [2])])
    assert len(import_model(model).nodes) == count


# --- tensors ---


def with_weight(**fields) -> onnx.ModelProto:
    model = build([helper.make_node("Add", ["x", "w"], ["y"])])
    tensor = model.graph.initializer.add(name="w", **fields)
    del tensor
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_type": F, "dims": [3], "raw_data": b"1234"}, "needs 12 bytes, but has 4"),
        ({"data_type": F, "dims": [3], "float_data": [1]}, "needs 3 elements, but has 1"),
        ({"data_type": F, "dims": [3], "int64_data": [1, 2, 3]}, "needs 3 elements"),
        ({"data_type": F, "dims": [-3]}, "negative"),
        ({"data_type": 0, "dims": [3]}, "does not exist"),
        ({"data_type": 77, "dims": [3]}, "does not exist"),
        ({"data_type": TensorProto.INT8, "dims": [1], "int32_data": [300]}, "does not fit int8"),
        ({"data_type": TensorProto.FLOAT16, "dims": [1], "int32_data": [70000]}, "16 bits"),
        (
            {"data_type": F, "dims": [1], "segment": TensorProto.Segment(begin=0, end=1)},
            "segments",
        ),
    ],
)
def test_weights_that_do_not_fit(fields, message):
    with pytest.raises(ModelError, match=message):
        import_model(with_weight(**fields))


@pytest.mark.parametrize("name", ["float16", "float64", "int8", "uint8", "int16", "uint16",
                                  "int32", "uint32", "int64", "uint64", "bool"])  # fmt: skip
@pytest.mark.parametrize("raw", [False, True])
def test_every_type_of_constant(name, raw):
    array = np.array([0, 1, 0, 1, 1], name)
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    if raw:
        tensor = onnx.numpy_helper.from_array(array, "w")
    else:
        tensor = helper.make_tensor("w", number, [5], array.tolist())
    model = build([helper.make_node("Identity", ["w"], ["y"])], (), [("y", number, [5])])
    model.graph.initializer.append(tensor)
    found = run_graph(import_model(model), {})
    close(found, {"y": array})


def external(model: onnx.ModelProto, **entries: str) -> onnx.ModelProto:
    tensor = model.graph.initializer.add(name="w", data_type=F, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model


def test_external_data(tmp_path: Path):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    secret = tmp_path / "secret.bin"
    weights = np.array([1, 2, 3, 4], np.float32)
    for file in (secret, folder / "w.bin", folder / "sub" / "w.bin"):
        file.write_bytes(weights.tobytes())
    (folder / "link.bin").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    (folder / "inside.bin").symlink_to(folder / "w.bin")
    os.mkfifo(folder / "pipe")

    def load(**entries: str):
        model = external(build([helper.make_node("Add", ["x", "w"], ["y"])]), **entries)
        path = folder / "m.onnx"
        path.write_bytes(model.SerializeToString())
        return import_model(path)

    for location in ("w.bin", "./w.bin", "sub/w.bin", "inside.bin"):
        graph = load(location=location, offset="4", length="12")
        np.testing.assert_array_equal(graph.constants["w"], weights[1:])
    for location in (
        "../secret.bin", "sub/../../secret.bin", str(secret), "link.bin", "linked/secret.bin",
        "", "..", "C:\\w.bin", "\\w.bin", "..\\secret.bin", "w\0.bin", "pipe", "sub", "none.bin",
        "~/w.bin",
    ):  # fmt: skip
        with pytest.raises(ModelError):
            load(location=location)
    for entries in (
        {"offset": "5"}, {"offset": "-1"}, {"offset": "x"}, {"offset": "9" * 30},
        {"length": "8"}, {"length": "1e3"}, {"offset": str(1 << 60)},
    ):  # fmt: skip
        with pytest.raises(ModelError):
            load(location="w.bin", **entries)
    model = external(build([helper.make_node("Add", ["x", "w"], ["y"])]), location="w.bin")
    with pytest.raises(ModelError, match="pass the path"):
        import_model(model)


# --- unsupported nodes ---


def test_all_unsupported_nodes_are_reported():
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"], name="first"),
        relu("x", "a"),
        helper.make_node("Mystery", ["a"], ["m"], name="second", domain="com.example"),
        helper.make_node("Gather", ["m", "i"], ["g"]),
        helper.make_node("Relu", ["g"], ["h"]),
        helper.make_node("RegexFullMatch", ["a"], ["r"], name="third"),
        helper.make_node("BatchNormalization", ["r"] * 5, ["b"]),
        helper.make_node("Sum", ["h", "b"], ["y"]),
    ]
    model = build(nodes, opset=20)
    model.opset_import.append(helper.make_opsetid("com.example", 3))
    with pytest.raises(UnsupportedModelError) as caught:
        import_model(model)
    found = [(n.name, n.operator, n.opset) for n in caught.value.nodes]
    assert found == [
        ("second", "com.example.Mystery", 3), ("third", "RegexFullMatch", 20),
        ("first", "NonZero", 20),
    ]  # fmt: skip
    text = str(caught.value)
    assert "3 nodes cannot be compiled" in text
    assert (
        "com.example.Mystery (opset 3) 'second': operators of domain 'com.example' are not" in text
    )


def test_reasons():
    def reason(model: onnx.ModelProto) -> str:
        with pytest.raises(UnsupportedModelError) as caught:
            import_model(model)
        (node,) = caught.value.nodes
        return node.reason

    x = {"x": floats(2, 3)}
    model = single("Reshape", x | {"s": np.array([3, 2])})
    assert "the new shape must be known at compile time" in reason(model)
    assert "no such operator" in reason(build([helper.make_node("Reluu", ["x"], ["y"])]))
    assert "withdrawn" in reason(build([helper.make_node("Upsample", ["x", "x"], ["y"])]))
    strings = build([helper.make_node("Identity", ["x"], ["y"])], [("x", 8, [2])])
    assert "'x' is a string" in reason(strings)
    assert "element type string" in reason(single("Cast", x, to=8, opset=13))


def test_an_operator_of_another_domain(monkeypatch):
    """It needs a function, a schema and an opset; the message says which of them is missing."""
    x = {"x": floats(2, 3)}

    def model(name: str) -> onnx.ModelProto:
        return single(name, x, domain="example.org")

    def refused(model: onnx.ModelProto, message: str) -> None:
        with pytest.raises(UnsupportedModelError, match=re.escape(message)):
            import_model(model)
        assert message in str(unknown_operators(open_model(model))[0])

    where = "example.org.Gelu (opset 1) 'node': "
    monkeypatch.setattr(registered, "_OPERATORS", dict(registered._OPERATORS))
    refused(model("Gelu"), f"{where}operators of domain 'example.org' are not known")
    operator("Gelu", domain="example.org")(find_operator("Gelu", 20))
    refused(model("Gelu"), f"{where}it has no schema in domain 'example.org': register one")
    parameter = onnx.defs.OpSchema.FormalParameter
    onnx.defs.register_schema(onnx.defs.OpSchema(
        "Gelu", "example.org", 1,
        inputs=[parameter("X", "tensor(float)")], outputs=[parameter("Y", "tensor(float)")],
    ))  # fmt: skip
    try:
        close(run_graph(import_model(model("Gelu")), x), ort_run(single("Gelu", x, opset=20), x))
        refused(model("Gello"), "this operator of domain 'example.org' is not known: it needs")
        without = model("Gelu")
        del without.opset_import[1]
        refused(without, "no opset of domain 'example.org' is imported: add one to opset_import")
    finally:
        onnx.defs.deregister_schema("Gelu", 1, "example.org")


# --- folding ---


def test_shape_arithmetic_folds_away():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Mul", ["n1", "two"], ["n2"]),
        helper.make_node("Cast", ["n2"], ["f"], to=1),
        helper.make_node("Div", ["f", "half"], ["g"]),
        helper.make_node("Floor", ["g"], ["h"]),
        helper.make_node("Cast", ["h"], ["i"], to=7),
        helper.make_node("Concat", ["i", "rest"], ["shape"], axis=0),
        helper.make_node("Slice", ["shape", "axes", "two"], ["shape2"]),
        helper.make_node("Reshape", ["x", "shape2"], ["t"]),
        helper.make_node("Relu", ["t"], ["y"]),
    ]
    constants = {
        "zero": np.array(0), "axes": np.array([0]), "two": np.array([2]),
        "half": np.array([0.5], np.float32), "rest": np.array([-1, 7]),
    }  # fmt: skip
    model = build(nodes, [("x", F, [2, 12])], constants=constants)
    graph = import_model(model)
    assert [type(n) for n in graph.nodes] == [View, Call]
    assert graph.shape(graph.outputs[0]) == (8, 3) and not graph.constants


def test_fixed_sizes_beside_open_ones():
    """An operand may be the extent that is fixed in a shape that is not."""
    make, inputs = helper.make_node, {"x": floats(2, 3), "n": np.array([4, 5])}
    nodes = [
        make("Shape", ["x"], ["s"]), make("Gather", ["s", "one"], ["e"]),
        make("Add", ["n", "e"], ["y"]),
    ]  # fmt: skip
    model = model_of(nodes, inputs, ["y"], {"one": np.array(1)})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    found = fk.compile_onnx(model).run(inputs)["y"]
    np.testing.assert_array_equal(found, [7, 8])


def test_large_constants_are_not_folded():
    constants = {"a": floats(100, 100), "b": floats(100, 100)}
    nodes = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    graph = import_model(build(nodes, [("x", F, [100, 100])], constants=constants))
    assert len(graph.nodes) == 2


def test_views_of_constants_are_constants():
    nodes = [
        helper.make_node("Unsqueeze", ["w", "axes"], ["v"]),
        helper.make_node("Mul", ["x", "v"], ["y"]),
    ]
    constants = {"w": floats(3), "axes": np.array([1])}
    graph = import_model(build(nodes, [("x", F, [1, 3, 4])], constants=constants))
    assert len(graph.nodes) == 1 and [c.shape for c in graph.constants.values()] == [(3, 1)]


def test_constants_and_inputs_as_outputs():
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Identity", ["w"], ["b"]),
        helper.make_node("Shape", ["x"], ["c"]),
    ]
    outputs = [("a", F, None), ("b", F, None), ("c", 7, None), ("x", F, None), ("w", F, None)]
    w = floats(3)
    graph = import_model(build(nodes, outputs=outputs, constants={"w": w}))
    x = floats(2, 3)
    found = run_graph(graph, {"x": x})
    close(found, {"a": x, "b": w, "c": np.array([2, 3]), "x": x, "w": w})


def test_inputs_with_initializers_are_constants():
    model = single("Add", {"x": floats(3)}, constants={"w": floats(3)}, opset=8)
    model.graph.input.append(helper.make_tensor_value_info("w", F, [3]))
    graph = import_model(model)
    assert [graph.label(v) for v in graph.inputs] == ["x"]


def test_constant_of_every_kind():
    for attribute, expected in (
        ({"value_float": 2.0}, np.array(2, np.float32)),
        ({"value_ints": [1, 2]}, np.array([1, 2])),
        ({"value": onnx.numpy_helper.from_array(np.eye(2))}, np.eye(2)),
    ):
        node = helper.make_node("Constant", [], ["y"], **attribute)
        close(run_graph(import_model(model_of([node], {}, ["y"])), {}), {"y": expected})
