"""Attention of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, floats, single

BATCH, ROWS, WIDTH, HEADS, PAST = 2, 5, 6, 2, 3
MASKS = {
    "ends": np.array([3, 5], np.int32),
    "ends and starts": np.array([4, 5, 1, 0], np.int32),
    "columns": np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32),
    "none": np.zeros((BATCH, 1), np.int32),
    "none for all": np.zeros((1, 1), np.int32),
    "matrix": np.random.default_rng(2).integers(2, size=(BATCH, ROWS, ROWS)).astype(np.int32),
}


def attention(
    mask: np.ndarray | None = None,
    past: bool = False,
    extra: tuple | None = None,
    bias: bool = True,
    widths: tuple[int, int, int] = (8, 8, 8),
    outputs: int = 1,
    **attributes: object,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model and its inputs."""
    inputs = {"x": floats(BATCH, ROWS, WIDTH)}
    if mask is not None:
        inputs["mask"] = mask
    if past:
        inputs["past"] = floats(2, BATCH, HEADS, PAST, 4)
    if extra is not None:
        inputs["extra"] = floats(*extra, ROWS, ROWS + PAST * past)
    constants = {"w": floats(WIDTH, sum(widths)), "b": floats(sum(widths))}
    constants = constants if bias else {"w": constants["w"]}
    order = ["x", "w", *(n if n in inputs or n in constants else ""
                         for n in ("b", "mask", "past", "extra"))]  # fmt: skip
    while not order[-1]:
        order.pop()
    if widths != (8, 8, 8):
        attributes["qkv_hidden_sizes"] = widths
    model = single(
        "Attention", inputs, constants=constants, order=order, outputs=outputs, domain=DOMAIN,
        num_heads=HEADS, **attributes,
    )  # fmt: skip
    return model, inputs


@pytest.mark.parametrize("mask", [None, *MASKS])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_masks(mask: str | None, unidirectional: int) -> None:
    found = None if mask is None else MASKS[mask]
    agree(*attention(found, unidirectional=unidirectional), rtol=1e-4)


@pytest.mark.parametrize("attributes", [
    {"scale": 0.3}, {"mask_filter_value": -2.0, "mask": MASKS["columns"]}, {"bias": False},
    {"widths": (8, 8, 4)}, {"extra": (1, 1)}, {"extra": (BATCH, HEADS)},
    {"extra": (1, HEADS), "mask": MASKS["ends"], "unidirectional": 1},
    {"rotary_embedding_dim": 4},
])  # fmt: skip
def test_attributes_and_operands(attributes: dict) -> None:
    agree(*attention(**attributes), rtol=1e-4)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("mask", [False, True])
def test_past_states(unidirectional: int, mask: bool) -> None:
    ones = np.ones((BATCH, ROWS + PAST), np.int32)
    ones[0, 1] = 0
    given = ones if mask else None
    model, inputs = attention(given, past=True, outputs=2, unidirectional=unidirectional)
    agree(model, inputs, rtol=1e-4)


def test_present_states_without_past_ones() -> None:
    agree(*attention(outputs=2), rtol=1e-4)


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("given", [
    {}, {"mask": MASKS["ends"]}, {"mask": MASKS["columns"], "unidirectional": 1}, {"past": True},
])  # fmt: skip
def test_quantised(kind: type, each: bool, given: dict) -> None:
    draw, given = np.random.default_rng(9).integers, dict(given)
    inputs = {"x": draw(0, 255, (BATCH, ROWS, WIDTH)).astype(np.uint8)}
    if "mask" in given:
        inputs["mask"] = given.pop("mask")
    if given.pop("past", False):
        inputs["past"] = floats(2, BATCH, HEADS, PAST, 4)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    constants = {
        "w": draw(low, high, (WIDTH, 24)).astype(kind), "b": floats(24),
        "xs": np.array(0.01, np.float32), "xz": np.array(120, np.uint8),
        "ws": np.linspace(0.005, 0.01, 24).astype(np.float32) if each
        else np.array(0.008, np.float32),
        "wz": np.zeros(24, kind) if each else np.array(3, kind),
    }  # fmt: skip
    order = ["x", "w", "b", "xs", "ws", "mask" if "mask" in inputs else "", "xz", "wz"]
    order += ["past"] if "past" in inputs else []
    model = single(
        "QAttention", inputs, constants=constants, order=order, outputs=2, domain=DOMAIN,
        num_heads=HEADS, **given,
    )  # fmt: skip
    agree(model, inputs, rtol=1e-4)


def refused(model: onnx.ModelProto, kind: type[Exception] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        import_model(model)
    return str(caught.value)


def test_refusals() -> None:
    model, _ = attention(widths=(8, 8, 7))
    assert refused(model) == (
        "Attention 'node' (opset 1): 23 columns do not make queries, keys and values of 2 heads"
    )
    model, _ = attention(np.ones((BATCH, 1, 9, 9), np.int32))
    assert "a mask of shape [2, 1, 9, 9]" in refused(model, UnsupportedModelError)
    model, _ = attention(do_rotary=1)
    assert "Attention with do_rotary" in refused(model, UnsupportedModelError)
    model, _ = attention(widths=(8, 16))  # type: ignore[arg-type]
    assert "qkv_hidden_sizes [8, 16]: three numbers are needed" in refused(model)
    model, _ = attention(extra=(3, HEADS))
    assert "attention_bias of shape [3, 2, 5, 5] for [2, 2, 5, 5]" in refused(model)
    model, _ = attention(past=True)
    model.graph.node[0].input.extend(["", "length"])
    length = onnx.helper.make_tensor_value_info("length", onnx.TensorProto.INT32, [1])
    model.graph.input.append(length)
    assert "Attention with past_sequence_length" in refused(model, UnsupportedModelError)
