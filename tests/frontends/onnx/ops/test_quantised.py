"""Quantised operators: what belongs together is accepted, and what cannot be is told."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from frontends.onnx import import_model
from poly.errors import ModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, model_of, run_graph, single

X = floats(2, 3, 4, 5)
Q = (np.arange(120).reshape(2, 3, 4, 5) % 251).astype(np.uint8)
W = (np.arange(72).reshape(6, 3, 2, 2) % 127).astype(np.int8)
A = (np.arange(40).reshape(2, 4, 5) * 6 % 251).astype(np.uint8)
B = (np.arange(30).reshape(5, 6) * 7 % 127).astype(np.int8)


def scalar(value: float, kind: type = np.float32, rank: int = 0) -> np.ndarray:
    return np.full((1,) * rank, value, kind)


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(("scale", "zero"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_one_zero_point_with_and_without_dimensions(
    opset: int, kind: type, scale: int, zero: int
) -> None:
    constants = {"s": scalar(0.03, rank=scale), "z": scalar(3, kind, zero)}
    agree(single("QuantizeLinear", {"x": X}, constants=constants, opset=opset), {"x": X})
    q = Q.astype(kind)
    agree(single("DequantizeLinear", {"x": q}, constants=constants, opset=opset), {"x": q})


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("operator", ["QLinearConv", "QLinearMatMul"])
def test_zero_points_of_sums_with_and_without_dimensions(operator: str, zero: int) -> None:
    inputs, model = rounded(operator, xz=scalar(7, np.uint8, zero), yz=scalar(9, np.uint8, zero))
    agree(model, inputs)


def rounded(operator: str, **changed: np.ndarray) -> tuple[dict[str, np.ndarray], onnx.ModelProto]:
    """A QLinearConv or QLinearMatMul with other constants, and its input."""
    constants = {
        "xs": scalar(0.5), "xz": scalar(1, np.uint8), "w": W if operator == "QLinearConv" else B,
        "ws": scalar(0.01), "wz": scalar(0, np.int8), "ys": scalar(0.5), "yz": scalar(0, np.uint8),
    }  # fmt: skip
    inputs = {"x": Q if operator == "QLinearConv" else A}
    return inputs, single(operator, inputs, constants=constants | changed)


@pytest.mark.parametrize("zero", [(2, 4, 1), (4,), (1, 4, 1)])
def test_a_zero_point_for_each_row(zero: tuple[int, ...]) -> None:
    """ONNX Runtime has none of several batches; numpy is the judge."""
    az = np.arange(np.prod(zero)).reshape(zero).astype(np.uint8)
    model = single("MatMulInteger", {"A": A}, constants={"B": B, "az": az})
    shown = az.reshape(-1, 1) if az.ndim == 1 else az
    expected = (A.astype(np.int32) - shown) @ B.astype(np.int32)
    close(run_graph(import_model(model), {"A": A}), {"y0": expected.astype(np.int32)})


@pytest.mark.parametrize("zero", [(2, 1, 6), (6,), (1, 6)])
def test_a_zero_point_for_each_column(zero: tuple[int, ...]) -> None:
    b = np.stack([B, B[::-1]])
    bz = np.arange(np.prod(zero)).reshape(zero).astype(np.int8)
    constants = {"B": b, "az": scalar(3, np.uint8), "bz": bz}
    model = single("MatMulInteger", {"A": A}, constants=constants)
    expected = (A.astype(np.int32) - 3) @ (b.astype(np.int32) - bz)
    close(run_graph(import_model(model), {"A": A}), {"y0": expected.astype(np.int32)})


def test_scales_and_zero_points_for_each_row_and_column() -> None:
    changed = {
        "xs": np.linspace(0.1, 0.4, 4, dtype=np.float32), "xz": np.arange(4, dtype=np.uint8),
        "ws": np.linspace(0.01, 0.02, 6, dtype=np.float32), "wz": np.arange(6, dtype=np.int8),
    }  # fmt: skip
    inputs, model = rounded("QLinearMatMul", **changed)
    x = (A - changed["xz"][:, None].astype(np.int32)) * changed["xs"][:, None].astype(np.float64)
    w = (B - changed["wz"].astype(np.int32)) * changed["ws"].astype(np.float64)
    expected = np.clip(np.round(x @ w / 0.5), 0, 255)
    found = run_graph(import_model(model), inputs)["y0"]
    assert found.dtype == np.uint8 and np.abs(found - expected).max() <= 1


def refused(model: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(model)
    return str(caught.value)


def named(operator: str, message: str, opset: int = 17) -> str:
    """The message of a node, which says operator, name and opset."""
    return f"{operator} 'node' (opset {opset}): {message}"


@pytest.mark.parametrize("value", [0.0, -0.5, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("count", [0, 3])
def test_scales_that_are_none(value: float, count: int) -> None:
    scale = np.full(count or (), 0.5, np.float32)
    scale.reshape(-1)[-1] = value
    zero = np.zeros(count or (), np.uint8)
    message = f"input number 2 has a scale of {value:g}"
    for operator, x in (("QuantizeLinear", X), ("DequantizeLinear", Q)):
        model = single(operator, {"x": x}, constants={"s": scale, "z": zero}, opset=19)
        assert refused(model) == named(operator, message, 19)
    for operator in ("QLinearConv", "QLinearMatMul"):
        for name, position in (("xs", 2), ("ws", 5), ("ys", 7)):
            _, model = rounded(operator, **{name: scalar(value)})
            told = refused(model)
            assert told == named(operator, f"input number {position} has a scale of {value:g}")


def test_a_scale_that_is_computed_is_not_judged() -> None:
    inputs = {"x": X, "s": scalar(0.5)}
    agree(single("QuantizeLinear", inputs, constants={"z": scalar(3, np.uint8)}), inputs)


@pytest.mark.parametrize(
    ("scale", "zero", "message"),
    [
        (3, 0, "zero points [] for scales [3]"), (3, 2, "zero points [2] for scales [3]"),
        (0, 3, "zero points [3] for scales []"), (2, 2, "2 scales for 3 elements on axis 1"),
    ],
)  # fmt: skip
def test_zero_points_of_another_length(scale: int, zero: int, message: str) -> None:
    constants = {"s": np.ones(scale or (), np.float32), "z": np.zeros(zero or (), np.uint8)}
    for operator, x in (("QuantizeLinear", X), ("DequantizeLinear", Q)):
        assert refused(single(operator, {"x": x}, constants=constants)) == named(operator, message)


@pytest.mark.parametrize(
    ("operator", "changed", "message"),
    [
        ("QLinearConv", {"wz": np.zeros(5, np.int8)}, "[5] zero points or scales for 6 filters"),
        ("QLinearConv", {"ws": np.ones(5)}, "[5] zero points or scales for 6 filters"),
        ("QLinearConv", {"xz": np.ones(3, np.uint8)}, "zero points of shape [3] for X"),
        ("QLinearConv", {"yz": np.ones(6, np.uint8)}, "zero points of shape [6] for Y"),
        ("QLinearConv", {"ys": np.ones(6)}, "scales of shape [6]"),
        ("QLinearMatMul", {"wz": np.zeros(5, np.int8)}, "5 zero points or scales for 6 columns"),
        ("QLinearMatMul", {"xs": np.ones(5)}, "5 zero points or scales for 4 rows"),
        ("QLinearMatMul", {"xz": np.zeros((3, 4, 1), np.uint8)},
         "one value for each row is needed, not [3, 4, 1]"),
        ("QLinearMatMul", {"yz": np.ones(6, np.uint8)}, "zero points of shape [6] for Y"),
    ],
)  # fmt: skip
def test_values_for_other_rows_columns_and_filters(
    operator: str, changed: dict[str, np.ndarray], message: str
) -> None:
    changed = {n: a.astype(np.float32) if a.dtype == float else a for n, a in changed.items()}
    assert refused(rounded(operator, **changed)[1]) == named(operator, message)


@pytest.mark.parametrize("operator", ["QLinearConv", "QLinearMatMul"])
@pytest.mark.parametrize("name", ["xz", "wz", "yz"])
def test_zero_points_of_another_type(operator: str, name: str) -> None:
    other = {"xz": np.int8, "wz": np.uint8, "yz": np.int32}[name]
    told = refused(rounded(operator, **{name: scalar(0, other)})[1])
    wanted = "which the operator does not accept" if name == "yz" else "but another one is"
    assert re.match(re.escape(named(operator, "input '")) + r"[wxyab]_zero_point' is", told)
    assert np.dtype(other).name in told and wanted in told


def test_zero_points_of_quantisation_of_another_type() -> None:
    constants = {"s": scalar(0.5), "z": scalar(3, np.int8)}
    told = refused(single("DequantizeLinear", {"x": Q}, constants=constants))
    assert told == named(
        "DequantizeLinear", "input 'x_zero_point' is int8, but another one is uint8"
    )
    constants["z"] = scalar(3, np.int64)
    told = refused(single("QuantizeLinear", {"x": X}, constants=constants))
    assert told.startswith(named("QuantizeLinear", "input 'y_zero_point' is int64"))


def test_int32_has_no_zero_point_but_0() -> None:
    x = Q.astype(np.int32)
    constants = {"s": scalar(0.5), "z": scalar(0, np.int32)}
    agree(single("DequantizeLinear", {"x": x}, constants=constants), {"x": x})
    constants["z"] = scalar(1, np.int32)
    told = refused(single("DequantizeLinear", {"x": x}, constants=constants))
    assert told == named("DequantizeLinear", "values of int32 have a zero point that is not 0")


def test_integers_without_zero_points_agree_with_the_reference() -> None:
    node = onnx.helper.make_node("ConvInteger", ["x", "w"], ["y"], pads=[0, 1, 1, 0])
    model = model_of([node], {"x": Q}, ["y"], {"w": W})
    (expected,) = ReferenceEvaluator(model).run(None, {"x": Q})
    close(run_graph(import_model(model), {"x": Q}), {"y": expected})


# --- weights of 4 bits -------------------------------------------------------------------------


def dequantised(
    kind: int, zeros: bool, packed: bool, domain: str = ""
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model that adds its input to weights of 4 bits, dequantised in blocks."""
    low = -8 if kind == onnx.TensorProto.INT4 else 0
    blocks = (2, 5) if not domain else ()
    constants = {"s": floats(*blocks, low=0.1, high=0.5)} if blocks else {"s": scalar(0.3)}
    own = {"axis": 0, "block_size": 17} if not domain else {}
    nodes = [
        onnx.helper.make_node(
            "DequantizeLinear", ["w", "s", *(["z"] if zeros else [])], ["d"], domain=domain,
            name="node", **own,
        ),
        onnx.helper.make_node("Add", ["x", "d"], ["y"]),
    ]  # fmt: skip
    inputs = {"x": floats(33, 5)}
    model = model_of(nodes, inputs, ["y"], constants, opset=21)
    draw = np.random.default_rng(6).integers
    for name, shape in (("w", (33, 5)), ("z", blocks)):
        if name == "w" or zeros:
            values = draw(low, low + 16, shape)
            flat = values.reshape(-1).tolist()
            made = onnx.helper.make_tensor(name, kind, shape, flat)
            if packed:
                bits = [v & 15 for v in flat] + [0] * (len(flat) % 2)
                raw = bytes(a | b << 4 for a, b in zip(bits[::2], bits[1::2], strict=True))
                made = onnx.helper.make_tensor(name, kind, shape, raw, raw=True)
            model.graph.initializer.append(made)
    return model, inputs


@pytest.mark.parametrize("kind", [onnx.TensorProto.INT4, onnx.TensorProto.UINT4])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_weights_of_4_bits(kind: int, zeros: bool, packed: bool, domain: str) -> None:
    agree(*dequantised(kind, zeros, packed, domain))


def test_weights_of_4_bits_in_another_file(tmp_path: Path) -> None:
    model, inputs = dequantised(onnx.TensorProto.INT4, True, True)
    expected = run_graph(import_model(model), inputs)
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="w.bin"
    )
    close(run_graph(import_model(tmp_path / "m.onnx"), inputs), expected)


def test_too_few_weights_of_4_bits() -> None:
    model, _ = dequantised(onnx.TensorProto.INT4, False, True)
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    tensor.raw_data = tensor.raw_data[:-1]
    with pytest.raises(ModelError, match=r"initializer 'w'.* needs 83 bytes, but has 82"):
        import_model(model)
