"""Models whose shapes come with the arrays: stages, branches, loops, functions, the backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as nh

import farkas as fk
import farkas.backend
from farkas.networks.stages import Stages

F, L, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Arrays = dict[str, np.ndarray]
RANDOM = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Any]],
    outputs: Mapping[str, int],
    constants: Mapping[str, np.ndarray] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    """A model with inputs of (element type, shape) and outputs of an element type."""
    graph = helper.make_graph(
        list(nodes),
        "staged",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
        [nh.from_array(a, n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    if functions:
        imports.append(helper.make_opsetid("local", 1))
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=9)


def agree(model: onnx.ModelProto, compiled: Any, arrays: Arrays) -> dict[str, np.ndarray]:
    """Run both, and compare with ONNX Runtime."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, arrays)
    found = compiled.run(arrays)
    assert list(found) == [o.name for o in model.graph.output]
    for (name, array), wanted in zip(found.items(), expected, strict=True):
        assert array.dtype == wanted.dtype and array.shape == wanted.shape, name
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5, err_msg=name)
    return found


# --- dynamic dimensions --------------------------------------------------------------------


def test_dimensions_that_come_with_the_arrays() -> None:
    model = build(
        [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        {"x": (F, ["rows", 5])},
        {"y": F},
        {"w": floats(5, 3)},
    )
    compiled = fk.compile_onnx(model, threads=1)
    assert not compiled.is_whole
    assert [str(p) for p in compiled.inputs] == ["float32 x[rows,5]"]
    for rows in (1, 4, 7, 4):
        agree(model, compiled, {"x": floats(rows, 5)})
    assert compiled.report.kernels == 2  # one row, and all others
    assert set(compiled.conditions) == {"fixed sizes", "s_rows >= 1"}


def test_shapes_that_are_given_fix_the_model() -> None:
    model = build([helper.make_node("Neg", ["x"], ["y"])], {"x": (F, ["n", "m"])}, {"y": F})
    assert fk.compile_onnx(model, shapes={"n": 2, "m": 3}).is_whole
    half = fk.compile_onnx(model, shapes={"n": 2})
    assert not half.is_whole
    agree(model, half, {"x": floats(2, 4)})
    with pytest.raises(fk.ArgumentError, match=r"x has shape \(3, 4\), not float32 x\[2,m\]"):
        half.run({"x": floats(3, 4)})


def test_a_call_with_shapes_of_an_earlier_one_is_not_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build([helper.make_node("Add", ["x", "x"], ["y"])], {"x": (F, ["n", 3])}, {"y": F})
    compiled = fk.compile_onnx(model)
    for rows in (2, 5):
        agree(model, compiled, {"x": floats(rows, 3)})
    checked: list[tuple[int, ...]] = []
    before = Stages._checked

    def spy(self: Stages, inputs: Mapping[str, Any]) -> dict[str, Any]:
        checked.append(np.shape(inputs["x"]))
        return before(self, inputs)

    monkeypatch.setattr(Stages, "_checked", spy)
    for rows in (5, 2, 7, 5):
        agree(model, compiled, {"x": floats(rows, 3)})
    assert checked == [(7, 3)]
    for wrong in (floats(5, 4), floats(5, 3).astype(np.float64), floats(5)):
        with pytest.raises(fk.ArgumentError, match="x"):
            compiled.run({"x": wrong})
    with pytest.raises(fk.ArgumentError, match="threads"):
        compiled.run({"x": floats(5, 3)}, threads=0)


def test_arguments_are_checked() -> None:
    model = build(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        {"a": (F, ["n", 2]), "b": (F, ["n", 2])},
        {"y": F},
    )
    compiled = fk.compile_onnx(model)
    good = {"a": floats(3, 2), "b": floats(3, 2)}
    agree(model, compiled, good)
    with pytest.raises(fk.ArgumentError, match="'n' is 3 in another input"):
        compiled.run(good | {"b": floats(4, 2)})
    with pytest.raises(fk.ArgumentError, match="no input 'c'"):
        compiled.run(good | {"c": floats(1)})
    with pytest.raises(fk.ArgumentError, match="is missing"):
        compiled.run({"a": floats(3, 2)})
    with pytest.raises(fk.ArgumentError, match="float64"):
        compiled.run(good | {"a": np.zeros((3, 2))})
    with pytest.raises(fk.ArgumentError, match="shape"):
        compiled.run(good | {"a": floats(3)})
    with pytest.raises(fk.ArgumentError, match="no output 'z'"):
        compiled.run(good, out={"z": floats(3, 2)})
    place = np.empty((3, 2), np.float32)
    assert compiled.run(good, out={"y": place})["y"] is place
    np.testing.assert_array_equal(place, good["a"] + good["b"])


def test_arrays_for_outputs_lie_apart_and_all_fit() -> None:
    model = build(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Exp", ["x"], ["z"])],
        {"x": (F, ["n"])},
        {"y": F, "z": F},
    )
    compiled = fk.compile_onnx(model, threads=1)
    assert not compiled.is_whole
    x, block = floats(4), np.zeros(6, np.float32)
    kept = x.copy()
    with pytest.raises(fk.ArgumentError, match="out y overlaps x in memory"):
        compiled.run({"x": x}, out={"y": x})
    np.testing.assert_array_equal(x, kept)
    with pytest.raises(fk.ArgumentError, match="out z overlaps out y in memory"):
        compiled.run({"x": x}, out={"y": block[:4], "z": block[2:]})
    y = np.zeros(4, np.float32)
    with pytest.raises(fk.ArgumentError, match="out z has shape"):
        compiled.run({"x": x}, out={"y": y, "z": block})
    assert not y.any() and not block.any()
    found = compiled.run({"x": x}, out={"y": y, "z": block[:4]})
    assert found["y"] is y
    np.testing.assert_allclose(y, -x)
    np.testing.assert_allclose(block[:4], np.exp(x), rtol=1e-5)


def test_unknown_operators_are_found_before_any_array_comes() -> None:
    body = helper.make_graph(
        [helper.make_node("NoSuchThing", ["x"], ["r"], name="inner")],
        "b",
        [],
        [helper.make_tensor_value_info("r", F, None)],
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("StringSplit", ["x"], ["z", "n"], name="outer"),
    ]
    model = build(nodes, {"x": (F, ["n"]), "c": (B, [])}, {"y": F, "z": F}, opset=20)
    with pytest.raises(fk.UnsupportedModelError) as caught:
        fk.compile_onnx(model)
    assert {n.name for n in caught.value.nodes} == {"inner", "outer"}


# --- elements that decide shapes -----------------------------------------------------------


def test_a_shape_that_is_an_input_specialises() -> None:
    model = build(
        [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Abs", ["r"], ["y"])],
        {"x": (F, [2, 6]), "s": (L, [2])},
        {"y": F},
    )
    compiled = fk.compile_onnx(model)
    x = floats(2, 6)
    for shape in ([3, 4], [4, 3], [-1, 2], [3, 4]):
        agree(model, compiled, {"x": x, "s": np.array(shape)})
    assert compiled.report.kernels == 3
    with pytest.raises(fk.ModelError, match="cannot become"):
        compiled.run({"x": x, "s": np.array([5, 2])})


def test_arrays_that_decide_shapes_may_be_used_again() -> None:
    """What is compiled for their elements keeps none of their memory."""
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Identity", ["s"], ["same"]),
        helper.make_node("Unsqueeze", ["s", "one"], ["s2"]),
        helper.make_node("Sub", ["places", "s2"], ["product"]),
    ]
    model = build(nodes, {"x": (F, [2]), "s": (L, [2])}, {"same": L, "product": L},
                  {"one": np.array([1])})  # fmt: skip
    compiled, x, shape = fk.compile_onnx(model), floats(2), np.array([2, 1])
    compiled.run({"x": x, "s": shape})
    shape[:] = [1, 2]
    agree(model, compiled, {"x": x, "s": np.array([2, 1])})


def test_a_shape_that_is_computed_splits_the_model() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("ReduceMax", ["k"], ["top"], keepdims=0),
        helper.make_node("Range", ["zero", "top", "one"], ["r"]),
        helper.make_node("Gather", ["e", "r"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1)}
    model = build(nodes, {"x": (F, [9]), "k": (L, [4])}, {"y": F}, constants)
    compiled = fk.compile_onnx(model)
    for values in ([1, 5, 2, 3], [8, 0, 0, 0], [1, 1, 1, 5]):
        agree(model, compiled, {"x": floats(9), "k": np.array(values)})


def test_results_whose_shapes_depend_on_data() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["p"]),
        helper.make_node("NonZero", ["p"], ["i"]),
        helper.make_node("Transpose", ["i"], ["places"]),
        helper.make_node("GatherND", ["p", "places"], ["found"]),
        helper.make_node("ReduceSum", ["found"], ["sum"], keepdims=0),
    ]
    model = build(nodes, {"x": (F, [4, 5])}, {"places": L, "sum": F, "p": F})
    compiled = fk.compile_onnx(model)
    assert compiled.opaque_operators == ("NonZero",)
    for _ in range(3):
        agree(model, compiled, {"x": floats(4, 5)})


def test_what_is_given_away_belongs_to_the_caller() -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Identity", ["c"], ["constant"]),
        helper.make_node("Shape", ["x"], ["shape"]),
    ]
    outputs = {"same": F, "i": L, "constant": F, "shape": L}
    model = build(nodes, {"x": (F, [3])}, outputs, {"c": floats(2)})
    compiled = fk.compile_onnx(model)
    x = np.array([1, 0, 2], np.float32)
    first = compiled.run({"x": x})
    first["same"][:] = 9
    first["constant"][:] = 9
    first["shape"][:] = 9
    assert x[0] == 1
    agree(model, compiled, {"x": x})


# --- branches, loops, functions ------------------------------------------------------------


def branches() -> onnx.ModelProto:
    def graph(name: str, operator: str) -> onnx.GraphProto:
        nodes = [helper.make_node(operator, ["x", "c"], [f"{name}_r"])]
        stored = [nh.from_array(np.array(2, np.float32), "c")]
        result = [helper.make_tensor_value_info(f"{name}_r", F, None)]
        return helper.make_graph(nodes, name, [], result, stored)

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Less", ["s", "zero"], ["negative"]),
        helper.make_node(
            "If", ["negative"], ["t"],
            then_branch=graph("then", "Mul"), else_branch=graph("other", "Add"),
        ),
        helper.make_node("Neg", ["t"], ["y"]),
    ]  # fmt: skip
    return build(nodes, {"x": (F, [3])}, {"y": F}, {"zero": np.array(0, np.float32)})


def test_both_branches() -> None:
    model = branches()
    compiled = fk.compile_onnx(model)
    for sign in (1, -1, 1):
        agree(model, compiled, {"x": sign * np.array([1, 2, 3], np.float32)})


def loop(trips: str, steady: bool, rows: bool = True) -> onnx.GraphProto:
    """state = state * 2 + x, rows of the state; unless steady, until the state exceeds 20."""
    nodes = [
        helper.make_node("Add", ["a", "a"], ["b"]),
        helper.make_node("Add", ["b", "x"], ["c"]),
        helper.make_node("Identity", ["go"], ["on"])
        if steady
        else helper.make_node("Less", ["largest", "limit"], ["on"]),
        helper.make_node("Identity", ["c"], ["row"]),
    ]
    if not steady:
        nodes.insert(2, helper.make_node("ReduceMax", ["c"], ["largest"], keepdims=0))
    return helper.make_graph(
        nodes,
        "body",
        [
            helper.make_tensor_value_info("trip", L, []),
            helper.make_tensor_value_info("go", B, []),
            helper.make_tensor_value_info("a", F, [2]),
        ],
        [
            helper.make_tensor_value_info("on", B, []),
            helper.make_tensor_value_info("c", F, [2]),
            *([helper.make_tensor_value_info("row", F, [2])] if rows else []),
        ],
    )


def looped(known: bool, steady: bool, trips: int = 4) -> onnx.ModelProto:
    node = helper.make_node("Loop", ["m", "", "s"], ["last", "rows"], body=loop("m", steady))
    inputs: dict[str, tuple[int, Any]] = {"x": (F, [2]), "s": (F, [2])}
    constants = {"limit": np.array(20, np.float32)}
    if known:
        constants["m"] = np.array(trips)
    else:
        inputs["m"] = (L, [])
    return build([node], inputs, {"last": F, "rows": F}, constants)


@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_loops(known: bool, steady: bool) -> None:
    model = looped(known, steady)
    compiled = fk.compile_onnx(model)
    assert compiled.is_whole == (known and steady)
    for trips in (4, 1, 7):
        arrays = {"x": np.abs(floats(2)), "s": np.abs(floats(2))}
        agree(model, compiled, arrays if known else arrays | {"m": np.array(trips)})


def test_weights_of_a_body_in_another_file(tmp_path: Path) -> None:
    model = looped(known=False, steady=False)
    body = model.graph.node[0].attribute[0].g
    body.initializer.append(nh.from_array(floats(2), "offset"))
    body.node.insert(0, helper.make_node("Add", ["a", "offset"], ["moved"]))
    (reader,) = (n for n in body.node if "a" in n.input and n.output[0] != "moved")
    reader.input[:] = ["moved" if name == "a" else name for name in reader.input]
    arrays = {"x": np.abs(floats(2)), "s": np.abs(floats(2)), "m": np.array(3)}
    expected = agree(model, fk.compile_onnx(model), arrays)
    file = tmp_path / "m.onnx"
    onnx.save(model, file, save_as_external_data=True, location="m.bin", size_threshold=0)
    assert (
        onnx.load(file, load_external_data=False)
        .graph.node[0]
        .attribute[0]
        .g.initializer[0]
        .external_data
    )
    found = fk.compile_onnx(file).run(arrays)
    np.testing.assert_array_equal(found["last"], expected["last"])
    (tmp_path / "m.bin").unlink()
    with pytest.raises(fk.ModelError, match=r"'m\.bin' cannot be read"):
        fk.compile_onnx(file).run(arrays)


def test_a_loop_without_a_trip() -> None:
    model = looped(known=False, steady=False)
    compiled = fk.compile_onnx(model)
    arrays = {"x": floats(2), "s": floats(2), "m": np.array(0)}
    found = agree(model, compiled, arrays)
    assert found["rows"].shape == (0, 2)


def collecting(
    nodes: list[onnx.NodeProto], kind: int, w: list[Any], stored: Sequence[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    """A loop of m trips that collects 'row', of whose shape its body says nothing."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]),
         helper.make_node("Identity", ["s"], ["next"]), *nodes],
        "body",
        [helper.make_tensor_value_info("trip", L, []), helper.make_tensor_value_info("go", B, []),
         helper.make_tensor_value_info("s", F, None)],
        [helper.make_tensor_value_info("on", B, None),
         helper.make_tensor_value_info("next", F, None), onnx.ValueInfoProto(name="row")],
        stored,
    )  # fmt: skip
    node = helper.make_node("Loop", ["m", "", "x"], ["last", "rows"], body=body)
    inputs = {"m": (L, []), "x": (F, [2]), "w": (F, w)}
    return build([node], inputs, {"last": F, "rows": kind}, {"known": np.array([3, 1, 2])})


#: What a body may collect that gives no shape: of what it captures, and of a state.
ROWS = [
    helper.make_node("Transpose", ["w"], ["row"]),
    helper.make_node("Shape", ["w"], ["row"]),
    helper.make_node("Reshape", ["w", "known"], ["row"]),
    helper.make_node("Cast", ["s"], ["row"], to=L),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda n: n.op_type)
def test_rows_without_a_shape_of_a_loop_without_a_trip(row: onnx.NodeProto) -> None:
    """The body says nothing of a row: its shape follows from those of what the body captures."""
    kind = L if row.op_type in ("Shape", "Cast") else F
    model = collecting([row], kind, [2, 3])
    compiled = fk.compile_onnx(model)
    for trips in (0, 2):
        agree(model, compiled, {"m": np.array(trips), "x": floats(2), "w": floats(2, 3)})


def test_stored_rows_of_a_loop_without_a_trip() -> None:
    model = collecting([], F, [2, 3], [nh.from_array(floats(2, 1), "row")])
    compiled = fk.compile_onnx(model)
    for trips in (0, 2):
        arrays = {"m": np.array(trips), "x": floats(2), "w": floats(2, 3)}
        assert agree(model, compiled, arrays)["rows"].shape == (trips, 2, 1)


def test_rows_of_open_extents_of_a_loop_without_a_trip() -> None:
    """Their extents follow from what the body captures; ONNX Runtime gives 0."""
    model = collecting([helper.make_node("Neg", ["w"], ["row"])], F, [2, "N"])
    arrays = {"m": np.array(0), "x": floats(2), "w": floats(2, 3)}
    assert fk.compile_onnx(model).run(arrays)["rows"].shape == (0, 2, 3)
    (_, rows) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, arrays)
    assert rows.shape == (0, 2, 0)


@pytest.mark.parametrize("length", [1, 5, 300])
def test_scan(length: int) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["h", "w"], ["d"]),
            helper.make_node("Add", ["d", "e"], ["n"]),
            helper.make_node("Tanh", ["n"], ["row"]),
        ],
        "cell",
        [helper.make_tensor_value_info(n, F, [3]) for n in ("h", "e")],
        [helper.make_tensor_value_info(n, F, [3]) for n in ("n", "row")],
    )
    node = helper.make_node(
        "Scan", ["h0", "x"], ["last", "rows"], body=body, num_scan_inputs=1,
        scan_input_directions=[1], scan_output_axes=[1],
    )  # fmt: skip
    model = build(
        [node], {"h0": (F, [3]), "x": (F, ["t", 3])}, {"last": F, "rows": F}, {"w": floats(3) / 2}
    )
    compiled = fk.compile_onnx(model)
    agree(model, compiled, {"h0": floats(3), "x": floats(length, 3)})


def test_functions_of_the_model() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    scaled = helper.make_node("LeakyRelu", ["a"], ["b"])
    reference = scaled.attribute.add()
    reference.name, reference.ref_attr_name = "alpha", "slope"
    reference.type = onnx.AttributeProto.FLOAT
    inner = helper.make_function(
        "local", "Inner", ["a"], ["b"], [scaled], imports, attributes=["slope"]
    )
    outer = helper.make_function(
        "local",
        "Outer",
        ["x", "y"],
        ["z"],
        [
            helper.make_node("Inner", ["x"], ["t"], domain="local", slope=0.5),
            helper.make_node("Sub", ["t", "y"], ["z"]),
        ],
        imports,
    )
    nodes = [
        helper.make_node("Outer", ["x", "y"], ["t"], domain="local"),
        helper.make_node("Outer", ["t", "x"], ["z"], domain="local"),
    ]
    model = build(nodes, {"x": (F, [4]), "y": (F, [4])}, {"z": F}, functions=[inner, outer])
    compiled = fk.compile_onnx(model)
    assert compiled.is_whole
    agree(model, compiled, {"x": floats(4), "y": floats(4)})


def test_a_function_that_calls_itself_is_refused() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    body = [helper.make_node("Again", ["a"], ["b"], domain="local")]
    again = helper.make_function("local", "Again", ["a"], ["b"], body, imports)
    node = helper.make_node("Again", ["x"], ["y"], domain="local")
    model = build([node], {"x": (F, [4])}, {"y": F}, functions=[again])
    with pytest.raises(fk.ModelError, match="nested too deeply"):
        fk.compile_onnx(model)


# --- the backend ---------------------------------------------------------------------------


def test_the_backend_of_the_onnx_package() -> None:
    x = floats(2, 3)
    node = helper.make_node("Relu", ["x"], ["y"])
    (found,) = farkas.backend.run_node(node, [x])
    np.testing.assert_array_equal(found, np.maximum(x, 0))
    model = branches()
    assert farkas.backend.is_compatible(model) and not farkas.backend.supports_device("TPU")
    prepared = farkas.backend.prepare(model)
    three = np.array([1, 2, 3], np.float32)
    assert prepared.run([three]).y.tolist() == [-3, -4, -5]
    assert prepared.run({"x": three}).y.tolist() == [-3, -4, -5]
    (found,) = farkas.backend.run_model(model, [three])
    assert found.tolist() == [-3, -4, -5]
    with pytest.raises(fk.UnsupportedModelError):
        farkas.backend.run_node(helper.make_node("NoSuchThing", ["x"], ["y"]), [x])


def test_profile() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("NonZero", ["p"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=F, name="cast"),
        helper.make_node("ReduceSum", ["c"], ["y"], name="sum", keepdims=0),
    ]
    model = build(nodes, {"x": (F, ["n", 3])}, {"y": F}, {"w": floats(3, 4)})
    compiled = fk.compile_onnx(model)
    timings = compiled.profile({"x": floats(5, 3)})
    assert all(t.seconds > 0 and t.kernel.startswith("fk_") for t in timings)
    assert "product" in timings[0].origin and len(timings) >= 2
    fixed = fk.compile_onnx(build(nodes[:1], {"x": (F, [2, 3])}, {"p": F}, {"w": floats(3, 4)}))
    (timing,) = fixed.profile({"x": floats(2, 3)})
    assert "product" in timing.origin
