"""Quantised operators of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest

from codegen.pipeline import CPU
from frontends.onnx import import_model
from frontends.onnx.core.node import supported_operators
from frontends.onnx.core.schemas import added_operators, added_schema
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError
from runtime.reference.evaluate import evaluate
from tests.frontends.onnx.onnx_support import (
    PAIRS,
    agree,
    close,
    floats,
    ort_run,
    run_graph,
    single,
)

KINDS = pytest.mark.parametrize("kind", [np.uint8, np.int8])
RANDOM = np.random.default_rng(11)


def bytes_of(kind: type, *shape: int) -> np.ndarray:
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return RANDOM.integers(low, high, shape, endpoint=True).astype(kind)


def scale(value: float, rank: int = 0) -> np.ndarray:
    return np.full((1,) * rank, value, np.float32)


def zero(value: int, kind: type, rank: int = 0) -> np.ndarray:
    return np.full((1,) * rank, value, kind)


def model_of(
    operator: str,
    inputs: Mapping[str, np.ndarray],
    operands: Mapping[str, np.ndarray | None],
    **attributes: object,
) -> onnx.ModelProto:
    """A model of one node; its operands in order, None for those that are omitted."""
    constants = {n: a for n, a in operands.items() if a is not None and n not in inputs}
    order = ["" if a is None else n for n, a in operands.items()]
    return single(operator, inputs, constants=constants, order=order, domain=DOMAIN, **attributes)


def near(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], share: float = 0.03) -> None:
    """Few results differ from ONNX Runtime's, and by no more than one step, also after the passes
    over graphs."""
    graph = import_model(model)
    ((name, expected),) = ort_run(_with_zero_points(model), inputs).items()
    for g in (graph, CPU.optimise(graph, PAIRS, evaluate)):
        found = run_graph(g, inputs)[name]
        assert found.dtype == expected.dtype and found.shape == expected.shape
        apart = np.abs(found.astype(np.int32) - expected.astype(np.int32))
        assert apart.max() <= 1 and (apart > 0).sum() <= max(2, share * apart.size)


def _with_zero_points(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with zero points of 0 for those that are omitted, which ONNX Runtime refuses."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    (node,) = copy.graph.node
    kind = copy.graph.input[0].type.tensor_type.elem_type
    if node.op_type.startswith("QLinear"):
        if len(node.input) in (4, 7):
            node.input.append("")
        for n in [n for n, name in enumerate(node.input) if not name]:
            node.input[n] = f"zero{n}"
            copy.graph.initializer.append(onnx.helper.make_tensor(f"zero{n}", kind, [], [0]))
    return copy


def refused(model: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(model)
    return str(caught.value)


@pytest.mark.parametrize("domain", [DOMAIN, ""])
def test_schemas_are_those_of_onnx_runtime(domain: str) -> None:
    """Names, options and types of operands, and names and types of attributes."""
    theirs = {
        s.name: s for s in ort_state.get_all_operator_schema()
        if s.domain == domain and not onnx.defs.has(s.name, s.since_version, domain)
    }  # fmt: skip
    names = added_operators(domain)
    assert names <= {*supported_operators(domain)}
    for name in names:
        own, other = added_schema(name, domain), theirs[name]
        assert own is not None
        kinds = {c.type_param_str: set(c.allowed_type_strs) for c in own.type_constraints}
        others = {c.type_param_str: set(c.allowed_type_strs) for c in other.type_constraints}
        for mine, given in ((own.inputs, other.inputs), (own.outputs, other.outputs)):
            assert [p.name for p in mine] == [p.name for p in given], name
            for p, q in zip(mine, given, strict=True):
                assert p.option.name == q.option.name.replace("FormalParameterOption.", ""), name
                assert kinds[p.type_str] == others.get(q.typeStr, {q.typeStr}), (name, p.name)
        attributes = {n: (a.type.name, a.required) for n, a in own.attributes.items()}
        assert attributes == {n: (a.type.name, a.required) for n, a in other.attributes.items()}


# --- elementwise, and what moves ---------------------------------------------------------------


def pair(operator: str, kind: type, a: tuple[int, ...], b: tuple[int, ...], zeros: bool):
    inputs = {"a": bytes_of(kind, *a), "b": bytes_of(kind, *b)}
    shift = 128 if kind is np.uint8 else 0
    points = [zero(shift + z, kind) if zeros else None for z in (3, -7, 5)]
    operands = {
        "a": inputs["a"], "as": scale(0.0317), "az": points[0], "b": inputs["b"],
        "bs": scale(0.0523), "bz": points[1], "cs": scale(0.0951), "cz": points[2],
    }  # fmt: skip
    return model_of(operator, inputs, operands), inputs


@KINDS
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(
    "shapes", [((2, 3, 40), (2, 3, 40)), ((2, 3, 40), ()), ((3, 1), (2, 1, 40)), ((40,), (3, 40))]
)
def test_pairs_are_broadcast(operator: str, kind: type, zeros: bool, shapes) -> None:
    near(*pair(operator, kind, *shapes, zeros))


@KINDS
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize(("operator", "attributes"), [
    ("QLinearSigmoid", {}), ("QLinearLeakyRelu", {}), ("QLinearLeakyRelu", {"alpha": 0.3}),
])  # fmt: skip
def test_functions(operator: str, attributes: dict, kind: type, zeros: bool) -> None:
    inputs = {"x": np.arange(256).astype(np.uint8).view(kind).reshape(4, 64)}
    x_zero, y_zero = (zero(z, kind, 1) if zeros else None for z in (4, 10))
    operands = {"x": inputs["x"], "xs": scale(0.04), "xz": x_zero, "ys": scale(0.02), "yz": y_zero}
    near(model_of(operator, inputs, operands, **attributes), inputs)


@KINDS
@pytest.mark.parametrize("opset", [9, 12, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmax(kind: type, opset: int, axis: int | None) -> None:
    inputs = {"x": bytes_of(kind, 3, 4, 5)}
    operands = {
        "x": inputs["x"], "xs": scale(0.01), "xz": zero(5, kind), "ys": scale(1 / 256),
        "yz": zero(0, kind),
    }  # fmt: skip
    given = {} if axis is None else {"axis": axis}
    model = model_of("QLinearSoftmax", inputs, operands, **given)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", opset))
    near(model, inputs)


@KINDS
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(kind: type, axis: int) -> None:
    shapes = [[2, 3, 4] for _ in range(3)]
    shapes[1][axis] = 6
    inputs = {f"x{n}": bytes_of(kind, *s) for n, s in enumerate(shapes)}
    operands = {"ys": scale(0.05), "yz": zero(10, kind)}
    for n, (s, z) in enumerate([(0.03, 7), (0.05, 10), (0.07, 0)]):
        operands |= {f"x{n}": inputs[f"x{n}"], f"s{n}": scale(s), f"z{n}": zero(z, kind)}
    near(model_of("QLinearConcat", inputs, operands, axis=axis), inputs)


@KINDS
def test_where(kind: type) -> None:
    inputs = {
        "c": RANDOM.integers(2, size=(2, 1, 30)).astype(bool), "x": bytes_of(kind, 3, 30),
        "y": bytes_of(kind, 2, 3, 1),
    }  # fmt: skip
    operands = {
        "c": inputs["c"], "x": inputs["x"], "xs": scale(0.0317), "xz": zero(7, kind),
        "y": inputs["y"], "ys": scale(0.0523), "yz": zero(3, kind), "zs": scale(0.0411),
        "zz": zero(11, kind),
    }  # fmt: skip
    near(model_of("QLinearWhere", inputs, operands), inputs)


# --- pools and means ---------------------------------------------------------------------------


def pool(operator: str, kind: type, shape: tuple[int, ...], zeros: bool = True, **attributes):
    inputs = {"x": bytes_of(kind, *shape)}
    x_zero, y_zero = (zero(z, kind) if zeros else None for z in (7, 12))
    operands = {
        "x": inputs["x"],
        "xs": scale(0.0413),
        "xz": x_zero,
        "ys": scale(0.0237),
        "yz": y_zero,
    }
    return model_of(operator, inputs, operands, **attributes), inputs


@KINDS
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("attributes", [
    {"kernel_shape": [2, 3]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "count_include_pad": 1},
    {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
])  # fmt: skip
def test_average_pool(kind: type, last: int, attributes: dict) -> None:
    shape = (2, 7, 8, 3) if last else (2, 3, 7, 8)
    near(*pool("QLinearAveragePool", kind, shape, channels_last=last, **attributes))


@KINDS
@pytest.mark.parametrize("shape", [(2, 3, 9), (1, 2, 4, 5, 3)])
def test_average_pool_of_other_ranks_without_zero_points(kind: type, shape: tuple) -> None:
    kernel = [2] * (len(shape) - 2)
    near(*pool("QLinearAveragePool", kind, shape, zeros=False, kernel_shape=kernel))


@KINDS
@pytest.mark.parametrize(
    ("last", "shape"), [(0, (2, 3, 7, 8)), (1, (2, 7, 8, 3)), (0, (2, 3, 9)), (1, (2, 9, 3))]
)
def test_global_average_pool(kind: type, last: int, shape: tuple) -> None:
    near(*pool("QLinearGlobalAveragePool", kind, shape, channels_last=last))


@KINDS
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [0, -1], [0, 1, 2]])
def test_reduce_mean(kind: type, keepdims: int, axes: list[int]) -> None:
    """ONNX Runtime has no kernel; numpy is the judge."""
    model, inputs = pool("QLinearReduceMean", kind, (3, 5, 4), axes=axes, keepdims=keepdims)
    real = (inputs["x"].astype(np.float64) - 7) * np.float64(np.float32(0.0413))
    mean = real.mean(tuple(axes), keepdims=bool(keepdims)) / np.float64(np.float32(0.0237))
    expected = np.clip(np.round(mean) + 12, np.iinfo(kind).min, np.iinfo(kind).max)
    found = run_graph(import_model(model), inputs)["y0"]
    assert found.shape == expected.shape and np.abs(found - expected).max() <= 1


# --- quantising --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("count", [0, 3])
def test_quantise_and_dequantise(kind: type, count: int) -> None:
    x = floats(2, 3, 50, low=-9, high=9)
    scales = np.linspace(0.01, 0.03, count, dtype=np.float32) if count else scale(0.02)
    zeros = np.arange(4, 4 + count).astype(kind) if count else zero(4, kind)
    given = {"axis": 1} if count else {}
    operands = {"x": x, "s": scales, "z": zeros}
    agree(model_of("QuantizeLinear", {"x": x}, operands, **given), {"x": x})
    q = bytes_of(kind, 2, 3, 50)
    agree(model_of("DequantizeLinear", {"x": q}, operands | {"x": q}, **given), {"x": q})


def test_quantise_without_zero_points() -> None:
    x, q = floats(2, 3), bytes_of(np.int8, 2, 3)
    agree(model_of("QuantizeLinear", {"x": x}, {"x": x, "s": scale(0.01)}), {"x": x})
    agree(model_of("DequantizeLinear", {"x": q}, {"x": q, "s": scale(0.01)}), {"x": q})


# --- sums of products --------------------------------------------------------------------------


@pytest.mark.parametrize("a_kind", [np.uint8, np.int8])
@pytest.mark.parametrize("b_kind", [np.uint8, np.int8])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("a_zero", "b_zero", "bias"), [(1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 0, 1)])
@pytest.mark.parametrize("shape", [(4, 8), (2, 4, 8)])
def test_matmul_to_float(a_kind, b_kind, each: bool, a_zero, b_zero, bias, shape) -> None:
    if a_kind is np.int8 and b_kind is np.uint8:
        pytest.skip("ONNX Runtime has no kernel of these types")
    inputs = {"a": bytes_of(a_kind, *shape)}
    size = 6 if each else ()
    operands = {
        "a": inputs["a"], "b": bytes_of(b_kind, 8, 6), "as": scale(0.02),
"bs": (np.arange(6) * 0.01 + 0.01).astype(np.float32) if each else scale(0.03),
        "az": zero(9, a_kind) if a_zero else None,
        "bz": np.full(size, 3, b_kind) if b_zero else None,
        "bias": floats(6) if bias else None,
    }  # fmt: skip
    agree(model_of("MatMulIntegerToFloat", inputs, operands), inputs)


@KINDS
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8), (8,)])
def test_dynamic_matmul(kind: type, each: bool, extra: bool, shape: tuple) -> None:
    inputs = {"a": floats(*shape)}
    size = 6 if each else ()
    operands = {
        "a": inputs["a"], "b": bytes_of(kind, 8, 6),
        "bs": (np.arange(6) * 0.01 + 0.01).astype(np.float32) if each else scale(0.02),
        "bz": np.full(size, 3, kind) if extra else None, "bias": floats(6) if extra else None,
    }  # fmt: skip
    agree(model_of("DynamicQuantizeMatMul", inputs, operands), inputs)


GEMM = pytest.mark.parametrize(
    ("a_kind", "b_kind"), [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]
)


def gemm(a_kind: type, b_kind: type, c: tuple | None, rounds: bool, each: bool, turned=(0, 0)):
    inputs = {"a": bytes_of(a_kind, *((8, 4) if turned[0] else (4, 8)))}
    operands = {
        "a": inputs["a"], "as": scale(0.02), "az": zero(9, a_kind),
        "b": bytes_of(b_kind, *((6, 8) if turned[1] else (8, 6))),
        "bs": (np.arange(6) * 0.01 + 0.01).astype(np.float32) if each else scale(0.02),
        "bz": (np.arange(6) - 2).clip(0).astype(b_kind) if each else zero(3, b_kind),
        "c": None if c is None else RANDOM.integers(-5000, 5000, c).astype(np.int32),
        "ys": scale(1.5) if rounds else None, "yz": zero(20, a_kind) if rounds else None,
    }  # fmt: skip
    return inputs, operands


@GEMM
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(a_kind: type, b_kind: type, rounds: bool, each: bool, turned) -> None:
    inputs, operands = gemm(a_kind, b_kind, (6,), rounds, each, turned)
    model = model_of("QGemm", inputs, operands, transA=turned[0], transB=turned[1], alpha=0.7)
    near(model, inputs) if rounds else agree(model, inputs)


@pytest.mark.parametrize("c", [None, (), (1,), (1, 6), (4, 1), (4, 6)])
@pytest.mark.parametrize("rounds", [False, True])
def test_gemm_with_a_bias(c: tuple | None, rounds: bool) -> None:
    inputs, operands = gemm(np.uint8, np.int8, c, rounds, False)
    model = model_of("QGemm", inputs, operands)
    near(model, inputs) if rounds else agree(model, inputs)


def test_sums_are_exact() -> None:
    """A sum that float32 cannot hold, which is small after all."""
    a, b = np.full((1, 2000), 255, np.uint8), np.full((2000, 1), 255, np.uint8)
    operands = {
        "a": a, "as": scale(1), "az": zero(0, np.uint8), "b": b, "bs": scale(1),
        "bz": zero(0, np.uint8), "c": np.array([-255 * 255 * 2000 + 1], np.int32),
    }  # fmt: skip
    found = run_graph(import_model(model_of("QGemm", {"a": a}, operands)), {"a": a})
    close(found, {"y0": np.ones((1, 1), np.float32)})


# --- refusals ----------------------------------------------------------------------------------


def test_several_scales_where_there_is_one() -> None:
    x = bytes_of(np.uint8, 2, 3)
    operands = {
        "x": x, "xs": np.ones(3, np.float32), "xz": None, "ys": scale(1), "yz": zero(0, np.uint8)
    }  # fmt: skip
    told = refused(model_of("QLinearSigmoid", {"x": x}, operands))
    assert told == ("QLinearSigmoid 'node' (opset 1): input number 2 has shape [3], not one value")
    told = refused(model_of("DequantizeLinear", {"x": x}, {"x": x, "s": np.ones(3, np.float32)}))
    assert told == (
        "DequantizeLinear 'node' (opset 1): input number 2 has shape [3], not one value"
    )


@pytest.mark.parametrize(("changed", "message"), [
    ({"as": np.zeros((), np.float32)}, "input number 2 has a scale of 0"),
    ({"az": np.zeros(3, np.uint8)}, "input number 3 has shape [3], not one value"),
    ({"b": np.zeros((5, 3), np.uint8)}, "shapes [4, 6], [5, 3] do not broadcast"),
])  # fmt: skip
def test_pairs_that_do_not_fit(changed: dict, message: str) -> None:
    a = bytes_of(np.uint8, 4, 6)
    operands = {
        "a": a, "as": scale(1), "az": zero(0, np.uint8), "b": a[:1].copy(), "bs": scale(1),
        "bz": zero(0, np.uint8), "cs": scale(1), "cz": zero(0, np.uint8),
    }  # fmt: skip
    told = refused(model_of("QLinearAdd", {"a": a}, operands | changed))
    assert told == f"QLinearAdd 'node' (opset 1): {message}"


@pytest.mark.parametrize(("changed", "message"), [
    ({"b": np.zeros((7, 6), np.int8)}, "shapes [4, 8] and [7, 6] do not multiply"),
    ({"bz": np.zeros(5, np.int8)}, "[5] zero points or scales for 6 columns"),
    ({"bs": np.ones(5, np.float32)}, "[5] zero points or scales for 6 columns"),
    ({"c": np.zeros(5, np.int32)}, "shapes [5], [4, 6] do not broadcast"),
    ({"ys": None}, "y_scale and y_zero_point are only given together"),
    ({"az": np.zeros(4, np.uint8)}, "input number 3 has shape [4], not one value"),
])  # fmt: skip
def test_gemms_that_do_not_fit(changed: dict, message: str) -> None:
    inputs, operands = gemm(np.uint8, np.int8, None, True, False)
    told = refused(model_of("QGemm", inputs, operands | changed))
    assert told == f"QGemm 'node' (opset 1): {message}"


def test_products_and_parts_that_do_not_fit() -> None:
    a, b = floats(4, 8), bytes_of(np.int8, 8, 6)
    operands = {"a": a, "b": b, "s": scale(1), "z": None, "bias": floats(5)}
    assert refused(model_of("DynamicQuantizeMatMul", {"a": a}, operands)) == (
        "DynamicQuantizeMatMul 'node' (opset 1): a bias of shape [5] for B of shape [8, 6]"
    )
    q = bytes_of(np.uint8, 4, 8)
    operands = {"a": q, "b": b, "as": np.ones(8, np.float32), "bs": scale(1)}
    assert refused(model_of("MatMulIntegerToFloat", {"a": q}, operands)) == (
        "MatMulIntegerToFloat 'node' (opset 1): input number 3 has shape [8], not one value"
    )
    operands = {"ys": scale(1), "yz": zero(0, np.uint8), "a": q, "as": scale(1)}
    assert refused(model_of("QLinearConcat", {"a": q}, operands, axis=0)) == (
        "QLinearConcat 'node' (opset 1): 4 inputs, but each operand takes 3 after the first 2"
    )
