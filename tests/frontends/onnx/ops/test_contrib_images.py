"""Operators of ONNX Runtime's own domain on images, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError
from tests.frontends.onnx.onnx_support import (
    agree,
    close,
    floats,
    model_of,
    ort_run,
    run_graph,
    single,
)

IMAGE, FILTERS = floats(1, 7, 8, 4), floats(6, 4, 3, 3)


def contrib(operator: str, inputs: dict[str, np.ndarray], **given: object) -> onnx.ModelProto:
    return single(operator, inputs, domain=DOMAIN, **given)  # type: ignore[arg-type]


def first(image: np.ndarray) -> np.ndarray:
    """An image with its channels first."""
    return np.ascontiguousarray(np.moveaxis(image, -1, 1))


def last(image: np.ndarray) -> np.ndarray:
    return np.moveaxis(image, 1, -1)


def refused(model: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        import_model(model)
    return str(caught.value)


# --- windows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("given", [
    {}, {"strides": [2, 1], "pads": [1, 0, 1, 1]}, {"dilations": [2, 1]}, {"ceil_mode": 1,
    "strides": [2, 2]}, {"auto_pad": "SAME_UPPER"},
], ids=str)  # fmt: skip
def test_greatest_elements(kind: type, given: dict) -> None:
    info = np.iinfo(kind)
    x = np.random.default_rng(2).integers(info.min, info.max, (2, 7, 8, 3)).astype(kind)
    agree(contrib("NhwcMaxPool", {"x": x}, kernel_shape=[3, 2], **given), {"x": x})


@pytest.mark.parametrize("given", [
    {}, {"strides": [2, 1], "pads": [1, 0, 1, 1]}, {"group": 2}, {"auto_pad": "SAME_LOWER"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
def test_convolutions(given: dict, bias: bool) -> None:
    """ONNX Runtime has no kernels for CPUs; its Conv is the judge."""
    filters = FILTERS[:, : 4 // given.get("group", 1)]
    constants = {"w": filters} | ({"b": floats(6)} if bias else {})
    model = contrib("NhwcConv", {"x": IMAGE}, constants=constants, **given)
    plain = single("Conv", {"x": first(IMAGE)}, constants=constants, **given)
    expected = last(ort_run(plain, {"x": first(IMAGE)})["y0"])
    close(run_graph(import_model(model), {"x": IMAGE}), {"y0": expected}, rtol=1e-4)


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("kind", ["Relu", "LeakyRelu"])
def test_convolutions_with_an_activation(other: bool, kind: str) -> None:
    inputs = {"x": IMAGE} | ({"z": floats(1, 5, 6, 6)} if other else {})
    given = {"activation_params": [0.2]} if kind == "LeakyRelu" else {}
    order = ["x", "w", "b", *(["z"] if other else [])]
    constants = {"w": FILTERS, "b": floats(6)}
    build = {"constants": constants, "order": order, "activation": kind, **given}
    turned = {n: first(a) for n, a in inputs.items()}
    expected = ort_run(contrib("FusedConv", turned, **build), turned)["y0"]
    model = contrib("NhwcFusedConv", inputs, **build)
    close(run_graph(import_model(model), inputs), {"y0": last(expected)}, rtol=1e-4)


def test_images_without_spatial_axes() -> None:
    told = refused(contrib("NhwcConv", {"x": floats(2, 3)}, constants={"w": FILTERS}))
    expected = "NhwcConv 'node' (opset 1): input number 1 of rank 2 has no spatial axis"
    assert told == expected


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("kinds", [
    (np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8),
])  # fmt: skip
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("given", [{}, {"strides": [2, 1], "pads": [1, 0, 1, 1]}], ids=str)
def test_convolutions_of_8_bits(channels_last: int, kinds: tuple, each: bool, given: dict) -> None:
    draw, (kind, weights) = np.random.default_rng(8).integers, kinds
    x = draw(0, 120, (1, 7, 8, 4)).astype(kind)
    x = x if channels_last else first(x)
    scales = np.linspace(0.01, 0.02, 6).astype(np.float32) if each else np.float32(0.015)
    constants = {
        "xs": np.float32(0.03), "xz": kind(5),
        "w": draw(0, 120, (6, 4, 3, 3)).astype(weights), "ws": scales,
        "wz": np.zeros(6, weights) if each else weights(0),
        "ys": np.float32(0.9), "yz": kind(3), "b": draw(-900, 900, 6).astype(np.int32),
    }  # fmt: skip
    constants = {n: np.asarray(a) for n, a in constants.items()}
    model = contrib(
        "QLinearConv", {"x": x}, constants=constants, channels_last=channels_last, **given
    )
    found, expected = run_graph(import_model(model), {"x": x}), ort_run(model, {"x": x})
    # The factor of ONNX Runtime's kernel is rounded otherwise, so that ties may differ.
    difference = found["y0"].astype(int) - expected["y0"].astype(int)
    assert found["y0"].dtype == kind and np.abs(difference).max() <= 1


@pytest.mark.parametrize("given", [
    {}, {"strides": [2, 1], "output_padding": [1, 0]}, {"group": 2},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pads", [[0] * 4, [1, 0, 1, 1]])
def test_transposed_convolutions(given: dict, bias: bool, pads: list[int]) -> None:
    constants = {"w": floats(4, 6 // given.get("group", 1), 3, 3), "p": np.array(pads)}
    constants |= {"b": floats(6)} if bias else {}
    inputs = {"x": first(IMAGE)}
    model = contrib("ConvTransposeWithDynamicPads", inputs, constants=constants, **given)
    graph = agree(model, inputs, rtol=1e-4)
    if not any(pads):  # they may be omitted, but not in ONNX Runtime
        model.graph.node[0].input[2] = ""
        found = run_graph(import_model(model), inputs)
        close(found, run_graph(graph, inputs))


# --- normalisations ----------------------------------------------------------------------------


def normalised(image: np.ndarray, gamma, beta, groups: int, silu: int) -> np.ndarray:
    """ONNX Runtime's GroupNormalization of an image with channels first, and its SiLU."""
    nodes = [
        helper.make_node(
            "GroupNormalization", ["x", "g", "b"], ["n"], num_groups=groups, epsilon=1e-3
        ),
        helper.make_node("Sigmoid", ["n"], ["s"]),
        helper.make_node("Mul", ["n", "s"], ["m"]),
    ]
    model = model_of(nodes, {"x": image}, ["n", "m"], {"g": gamma, "b": beta}, opset=21)
    return ort_run(model, {"x": image})["m" if silu else "n"]


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize(("skip", "bias"), [
    (None, False), ((2, 5, 6, 8), False), ((2, 5, 6, 8), True), ((2, 1, 1, 8), True),
    ((2, 8), False), ((2, 8), True),
])  # fmt: skip
def test_groups_of_channels(channels_last: int, silu: int, skip: tuple | None, bias: bool) -> None:
    """ONNX Runtime has no kernels for CPUs; its standard operator is the judge."""
    x, gamma, beta = floats(2, 5, 6, 8), floats(8), floats(8)
    other, shift = None if skip is None else floats(*skip), floats(8)
    total = x if other is None else x + (other[:, None, None] if other.ndim == 2 else other)
    total = total + shift if bias else total
    expected = normalised(first(total), gamma, beta, 4, silu)
    ready = (lambda a: a) if channels_last else first
    inputs, operator = {"x": ready(x)}, "GroupNorm"
    constants, order = {"g": gamma, "b": beta}, ["x", "g", "b"]
    if other is not None:
        operator, order = "SkipGroupNorm", [*order, "s"]
        inputs["s"] = other if other.ndim == 2 else ready(other)
        if bias:
            constants["h"], order = shift, [*order, "h"]
    model = contrib(
        operator, inputs, constants=constants, order=order, groups=4, activation=silu,
        epsilon=1e-3, channels_last=channels_last, outputs=1 if other is None else 2,
    )  # fmt: skip
    results = {"y0": last(expected) if channels_last else expected}
    if other is not None:
        results["y1"] = ready(total)
    close(run_graph(import_model(model), inputs), results, rtol=1e-4)


def test_half_floats() -> None:
    x, gamma, beta = floats(2, 5, 6, 8, dtype=np.float16), floats(8), floats(8)
    model = contrib("GroupNorm", {"x": x}, constants={"g": gamma, "b": beta}, groups=2,
                    activation=0, epsilon=1e-3)  # fmt: skip
    expected = last(normalised(first(x.astype(np.float32)), gamma, beta, 2, 0))
    found = run_graph(import_model(model), {"x": x})
    close(found, {"y0": expected.astype(np.float16)}, rtol=2e-3)


def test_channels_that_do_not_fit() -> None:
    model = contrib("GroupNorm", {"x": floats(2, 5, 6, 8), "g": floats(6), "b": floats(8)},
                    groups=2, activation=0)  # fmt: skip
    assert refused(model) == "GroupNorm 'node' (opset 1): input number 2 has shape [6], not [8]"


# --- crops -------------------------------------------------------------------------------------

BOXES = np.array(
    [[0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], [0.3, -0.2, 1.2, 0.5], [0.9, 0.9, 0.1, 0.2]], np.float32
)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 2), (9, 1)])
def test_crops(mode: str, size: tuple[int, int]) -> None:
    inputs = {"x": floats(2, 3, 6, 7), "r": BOXES, "b": np.array([0, 1, 1, 0], np.int32)}
    model = contrib(
        "CropAndResize", inputs, constants={"c": np.array(size, np.int32)}, mode=mode,
        extrapolation_value=5.0,
    )  # fmt: skip
    agree(model, inputs)


def test_crops_that_do_not_fit() -> None:
    inputs = {"x": floats(2, 3, 6, 7), "r": BOXES, "b": np.zeros(3, np.int32)}
    constants = {"c": np.array([3, 4], np.int32)}
    told = refused(contrib("CropAndResize", inputs, constants=constants))
    assert told.endswith(": shapes [2, 3, 6, 7], [4, 4], [3] do not fit")
    inputs["b"] = np.zeros(4, np.int32)
    told = refused(contrib("CropAndResize", inputs, constants=constants, mode="area"))
    assert told.endswith(": crops of size [3, 4] in mode 'area'")
