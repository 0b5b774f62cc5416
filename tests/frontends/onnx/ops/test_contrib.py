"""Operators on floats of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, ort_run, run_graph, single

X = floats(2, 3, 8)
IMAGE, FILTERS = floats(1, 4, 7, 8), floats(6, 4, 3, 3)


def contrib(operator: str, inputs: dict[str, np.ndarray], **given: object) -> onnx.ModelProto:
    return single(operator, inputs, domain=DOMAIN, **given)  # type: ignore[arg-type]


def refused(model: onnx.ModelProto, kind: type[Exception] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        import_model(model)
    return str(caught.value)


@pytest.mark.parametrize("operator", ["Gelu", "QuickGelu", "FastGelu"])
def test_activations(operator: str) -> None:
    agree(contrib(operator, {"x": X}), {"x": X})


def test_the_factor_of_a_quick_gelu() -> None:
    agree(contrib("QuickGelu", {"x": X}, alpha=0.5), {"x": X})


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
def test_a_bias(operator: str) -> None:
    inputs = {"x": X, "b": floats(8)}
    agree(contrib(operator, inputs), inputs)
    inputs["b"] = floats(3, 8)
    told = refused(contrib(operator, inputs))
    assert told == f"{operator} 'node' (opset 1): a bias of shape [3, 8] for [2, 3, 8]"


# --- products ----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.0, 0.125])
@pytest.mark.parametrize(("a", "b"), [
    ((4, 5), (5, 6)), ((2, 3, 4, 5), (2, 3, 5, 6)), ((3, 4, 5), (5, 6)), ((5,), (5, 6)),
    ((4, 5), (5,)),
])  # fmt: skip
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_transposed_products(alpha: float, a: tuple, b: tuple, turned: tuple[int, int]) -> None:
    shapes = [
        (*s[:-2], *s[:-3:-1]) if t and len(s) > 1 else s
        for s, t in zip((a, b), turned, strict=True)
    ]
    inputs = {"a": floats(*shapes[0]), "b": floats(*shapes[1])}
    model = contrib("FusedMatMul", inputs, alpha=alpha, transA=turned[0], transB=turned[1])
    if turned[0] and len(b) == 1:
        # ONNX Runtime reads the matrix as if it were not transposed; numpy is the judge.
        expected = np.float32(alpha) * (inputs["a"].T @ inputs["b"])
        close(run_graph(import_model(model), inputs), {"y0": expected})
    else:
        agree(model, inputs)


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("batch", [(1, 0), (0, 1), (1, 1)])
def test_batches_that_are_not_first(turned: tuple[int, int], batch: tuple[int, int]) -> None:
    shapes = [[2, 3, 4, 5], [2, 3, 5, 6]]
    for shape, t, own in zip(shapes, turned, batch, strict=True):
        if t:
            shape[-2:] = shape[:-3:-1]
        if own:
            shape[:-1] = [shape[-2], *shape[:-2]]
    inputs = {"a": floats(*shapes[0]), "b": floats(*shapes[1])}
    model = contrib(
        "FusedMatMul", inputs, transA=turned[0], transB=turned[1], transBatchA=batch[0],
        transBatchB=batch[1],
    )  # fmt: skip
    agree(model, inputs)


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_transposed_products_under_an_old_name(turned: tuple[int, int]) -> None:
    a, b = (5, 4) if turned[0] else (4, 5), (6, 5) if turned[1] else (5, 6)
    inputs = {"a": floats(*a), "b": floats(*b)}
    given = {"transA": turned[0], "transB": turned[1], "alpha": 0.5}
    agree(contrib("TransposeMatMul", inputs, **given), inputs)


def test_batches_of_matrices_that_are_none() -> None:
    inputs = {"a": floats(4, 5), "b": floats(5, 6)}
    told = refused(contrib("FusedMatMul", inputs, transBatchA=1))
    assert told.startswith("FusedMatMul 'node' (opset 1): transBatch needs two operands")


@pytest.mark.parametrize(("kind", "numbers"), [
    ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 1.0]),
    ("HardSigmoid", [0.3, 0.4]),
])  # fmt: skip
def test_convolutions_with_an_activation(kind: str, numbers: list[float]) -> None:
    given = {"activation_params": numbers} if numbers else {}
    inputs, constants = {"x": IMAGE}, {"w": FILTERS, "b": floats(6)}
    model = contrib(
        "FusedConv", inputs, constants=constants, activation=kind, pads=[1, 0, 1, 2],
        strides=[2, 1], **given,
    )  # fmt: skip
    agree(model, inputs)


@pytest.mark.parametrize("bias", [True, False])
def test_a_sum_before_the_activation(bias: bool) -> None:
    inputs = {"x": IMAGE, "z": floats(1, 6, 5, 6)}
    constants = {"w": FILTERS, "b": floats(6)} if bias else {"w": FILTERS}
    order = ["x", "w", "b" if bias else "", "z"]
    agree(contrib("FusedConv", inputs, constants=constants, order=order, activation="Relu"), inputs)


def test_activations_that_are_none() -> None:
    inputs, constants = {"x": IMAGE}, {"w": FILTERS}
    model = contrib("FusedConv", inputs, constants=constants, activation="Sinh")
    assert "activation 'Sinh'" in refused(model, UnsupportedModelError)
    model = contrib("FusedConv", inputs, constants=constants, activation="Clip")
    assert refused(model) == "FusedConv 'node' (opset 1): 0 numbers for activation Clip"


@pytest.mark.parametrize(("kind", "numbers"), [
    ("Relu", {}), ("Tanh", {}), ("Sigmoid", {}), ("Softplus", {}), ("Softsign", {}),
    ("LeakyRelu", {"alpha": 0.2}), ("Elu", {"alpha": 0.7}), ("ThresholdedRelu", {"alpha": 0.5}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
])  # fmt: skip
def test_gemms_with_an_activation(kind: str, numbers: dict[str, float]) -> None:
    inputs, constants = {"a": floats(8, 4)}, {"b": floats(6, 8), "c": floats(6)}
    given = {f"activation_{n}": v for n, v in numbers.items()}
    model = contrib(
        "FusedGemm", inputs, constants=constants, activation=kind, transA=1, transB=1, alpha=0.5,
        beta=2.0, **given,
    )  # fmt: skip
    agree(model, inputs)


@pytest.mark.parametrize("bias", [False, True])
def test_products_with_gelu(bias: bool) -> None:
    """ONNX Runtime has no kernel for CPUs; the two operators apart are the judge."""
    inputs, constants = {"x": X}, {"w": floats(8, 6)} | ({"b": floats(6)} if bias else {})
    product = {
        "p": ort_run(single("MatMul", inputs, constants={"w": constants["w"]}), inputs)["y0"]
    }
    apart = contrib("FastGelu", product, constants={"b": constants["b"]} if bias else None)
    model = contrib("GemmFastGelu", inputs, constants=constants)
    close(run_graph(import_model(model), inputs), ort_run(apart, product), rtol=1e-4)


# --- normalisations ----------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize(("shape", "inner"), [((2, 1, 1, 5), 1), ((1, 1, 4, 5), 0), ((4, 5), 0)])
def test_biases_of_scores(axis: int, shape: tuple, inner: int) -> None:
    """ONNX Runtime has no kernel for CPUs; its Softmax is the judge."""
    inputs = {"x": floats(2, 3, 4, 5), "b": floats(*shape)}
    model = contrib("BiasSoftmax", inputs, axis=axis, is_inner_broadcast=inner)
    total = {"t": inputs["x"] + inputs["b"]}
    expected = ort_run(single("Softmax", total, opset=11, axis=axis), total)
    close(run_graph(import_model(model), inputs), expected)
    inputs = {"x": floats(4, 5), "b": floats(3, 4, 5)}
    told = refused(contrib("BiasSoftmax", inputs, is_inner_broadcast=0))
    assert told == "BiasSoftmax 'node' (opset 1): a bias of shape [3, 4, 5] for [4, 5]"


@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("total", [False, True])
def test_skip_layer_normalization(simple, skip, bias: bool, beta: bool, total: bool) -> None:
    if simple and beta:
        pytest.skip("the simplified one has no beta")
    inputs = {"x": X, "s": floats(*skip)}
    constants = {"gamma": floats(8), "beta": floats(8), "bias": floats(8)}
    order = ["x", "s", "gamma"] if simple else ["x", "s", "gamma", "beta" if beta else ""]
    order += ["bias"] if bias else []
    constants = {n: a for n, a in constants.items() if n in order}
    operator = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    model = contrib(operator, inputs, constants=constants, order=order, outputs=4, epsilon=1e-5)
    model.graph.node[0].output[:] = ["y0", "", "", "y3"] if total else ["y0"]
    del model.graph.output[1:3]
    if not total:
        del model.graph.output[1:]
    agree(model, inputs)


@pytest.mark.parametrize("shape", [(2, 3, 8), (8,), (2, 8)])
@pytest.mark.parametrize("axis", [-1, 0, None])
def test_simplified_layer_normalization(shape: tuple, axis: int | None) -> None:
    """ONNX Runtime has it in the default domain."""
    inputs, given = {"x": floats(*shape)}, {} if axis is None else {"axis": axis}
    scale = floats(*(shape if axis == 0 else shape[-1:]))
    model = single(
        "SimplifiedLayerNormalization", inputs, constants={"g": scale}, epsilon=1e-3, **given
    )
    agree(model, inputs)


def test_simplified_normalization_of_several_types() -> None:
    x, scale = X.astype(np.float16), floats(8)
    model = single("SimplifiedLayerNormalization", {"x": x}, constants={"g": scale})
    agree(model, {"x": x})
    large, half = {"x": 1e5 * X}, scale.astype(np.float16)
    model = single("SimplifiedLayerNormalization", large, constants={"g": half})
    agree(model, large, rtol=1e-2)
    model = single("SimplifiedLayerNormalization", {"x": X}, constants={"g": scale}, outputs=2)
    assert "in training" in refused(model, UnsupportedModelError)


@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("total", [False, True])
def test_half_floats_whose_sum_is_none(operator: str, total: bool) -> None:
    """Up to 65504 they are finite; what is normalised is their sum in float32."""
    x = np.linspace(20000, 40000, 8, dtype=np.float16).reshape(1, 1, 8)
    constants = {"gamma": floats(8, dtype=np.float16)}
    model = contrib(operator, {"x": x, "s": x}, constants=constants, outputs=4)
    model.graph.node[0].output[:] = ["y0", "", "", "y3"] if total else ["y0"]
    del model.graph.output[1 : 3 if total else 4]
    agree(model, {"x": x, "s": x}, rtol=2e-3)


@pytest.mark.parametrize("opset", [9, 14, 16])
@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_of_earlier_opsets(opset: int, axis: int) -> None:
    """ONNX has it since opset 17; ONNX Runtime's optimiser writes it into any model."""
    constants = {n: floats(*X.shape[axis:]) for n in ("g", "b")}
    model = single("LayerNormalization", {"x": X}, constants=constants, opset=opset, axis=axis)
    agree(model, {"x": X})


def test_a_domain_that_is_not_imported() -> None:
    model = contrib("QuickGelu", {"x": X})
    del model.opset_import[1:]
    agree(model, {"x": X})


def test_empty_lists_are_those_that_are_omitted() -> None:
    model = contrib("FusedConv", {"x": IMAGE}, constants={"w": FILTERS})
    for name in ("pads", "strides"):
        empty = onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
        model.graph.node[0].attribute.append(empty)
    plain = single("Conv", {"x": IMAGE}, constants={"w": FILTERS})
    inputs = {"x": IMAGE}
    close(run_graph(import_model(model), inputs), ort_run(plain, inputs))


def test_skips_that_do_not_fit() -> None:
    inputs = {"x": X, "s": floats(2, 8), "g": floats(8)}
    told = refused(contrib("SkipLayerNormalization", inputs))
    assert told == (
        "SkipLayerNormalization 'node' (opset 1): shapes [2, 8], [2, 3, 8] do not broadcast"
    )
    inputs = {"x": X, "s": X, "g": floats(4)}
    told = refused(contrib("SkipLayerNormalization", inputs))
    assert told == "SkipLayerNormalization 'node' (opset 1): input number 3 has shape [4], not [8]"
    inputs["g"] = floats(8)
    model = contrib("SkipLayerNormalization", inputs, outputs=2)
    assert "in training" in refused(model, UnsupportedModelError)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [None, (2, 5), (1, 5)])
def test_embeddings(segments: bool, mask: bool, positions: tuple | None) -> None:
    draw = np.random.default_rng(5).integers
    inputs = {"ids": draw(20, size=(2, 5)).astype(np.int32)}
    constants = {n: floats(c, 8) for n, c in (("word", 20), ("place", 9), ("segment", 2))}
    constants |= {"gamma": floats(8), "beta": floats(8)}
    order = ["ids", "", "word", "place", "", "gamma", "beta", "", ""]
    if segments:
        inputs["which"] = draw(2, size=(2, 5)).astype(np.int32)
        order[1], order[4] = "which", "segment"
    if mask:
        inputs["mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
        order[7] = "mask"
    if positions:
        inputs["at"] = draw(9, size=positions).astype(np.int32)
        order[8] = "at"
    while not order[-1]:
        order.pop()
    constants = {n: a for n, a in constants.items() if n in order}
    model = contrib(
        "EmbedLayerNormalization", inputs, constants=constants, order=order, outputs=3,
        epsilon=1e-6,
    )  # fmt: skip
    agree(model, inputs)
    # Without a mask there are no words to count.
    found = run_graph(import_model(model), inputs)["y1"]
    np.testing.assert_array_equal(found, [3, 5] if mask else [0, 0])


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embeddings_of_8_bits(kind: type, segments: bool, mask: bool) -> None:
    draw, info = np.random.default_rng(5).integers, np.iinfo(kind)
    inputs = {"ids": draw(20, size=(2, 5)).astype(np.int32)}
    inputs |= {"which": draw(2, size=(2, 5)).astype(np.int32)} if segments else {}
    inputs |= {"mask": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)} if mask else {}
    shapes = {"word": (20, 8), "place": (9, 8), "segment": (2, 8), "gamma": (8,), "beta": (8,)}
    names = [n for n in shapes if segments or n != "segment"]
    constants = {n: draw(info.min, info.max, shapes[n]).astype(kind) for n in names}
    constants |= {f"{n}_s": np.array(0.01 + 0.003 * c, np.float32) for c, n in enumerate(names)}
    constants |= {f"{n}_z": np.array(info.max // 2 + c, kind) for c, n in enumerate(names)}
    order = ["ids", "which", "word", "place", "segment", "gamma", "beta", "mask"]
    order += [f"{n}_{part}" for part in "sz" for n in shapes]
    order = [n if n in inputs or n in constants else "" for n in order]
    model = contrib("QEmbedLayerNormalization", inputs, constants=constants, order=order, outputs=2)
    agree(model, inputs, rtol=1e-4)
    model.graph.node[0].input[8] = ""
    assert "'word_embedding_scale' is missing" in refused(model)


def test_half_floats() -> None:
    """ONNX Runtime has no kernels for some; the same in float32 is the judge."""
    x, b = floats(4, 8, dtype=np.float16), floats(8, dtype=np.float16)
    wide = {"x": x.astype(np.float32), "b": b.astype(np.float32)}
    expected = ort_run(contrib("BiasGelu", wide), wide)["y0"].astype(np.float16)
    found = run_graph(import_model(contrib("BiasGelu", {"x": x, "b": b})), {"x": x, "b": b})
    close(found, {"y0": expected}, rtol=2e-3)
