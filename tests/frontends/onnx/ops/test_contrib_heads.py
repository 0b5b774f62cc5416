"""MultiHeadAttention of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import farkas as fk
from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, ort_run, run_graph, single

BATCH, ROWS, KEYS, HEADS, WIDTH, PAST = 2, 3, 6, 2, 4, 5
COLUMNS = HEADS * WIDTH
_ORDER = ["q", "k", "v", "b", "mask", "extra", "pk", "pv", "length", "beams"]


def attention(
    inputs: dict[str, np.ndarray], outputs: int = 3, **attributes: object
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model and its inputs."""
    order = [n if n in inputs else "" for n in _ORDER]
    while not order[-1]:
        order.pop()
    model = single(
        "MultiHeadAttention", inputs, order=order, outputs=outputs, domain=DOMAIN,
        **{"num_heads": HEADS} | attributes,
    )  # fmt: skip
    for output in model.graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model, inputs


def operands(keys: int = KEYS, values: int = COLUMNS, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Queries, keys and values, and others."""
    inputs = {"q": floats(BATCH, ROWS, COLUMNS), "k": floats(BATCH, keys, COLUMNS)}
    return inputs | {"v": floats(BATCH, keys, values)} | more


def past() -> dict[str, np.ndarray]:
    return {n: floats(BATCH, HEADS, PAST, WIDTH) for n in ("pk", "pv")}


def mask(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(2, size=shape).astype(np.int32)


@pytest.mark.parametrize("keys", [ROWS, KEYS])
@pytest.mark.parametrize("values", [COLUMNS, 12])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_queries_keys_and_values(keys: int, values: int, bias: bool, outputs: int) -> None:
    more = {"b": floats(2 * COLUMNS + values)} if bias else {}
    agree(*attention(operands(keys, values, **more), outputs), rtol=1e-4)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("more", [False, True])
def test_keys_and_values_in_heads(bias: bool, more: bool) -> None:
    """Only the queries get a bias then."""
    inputs = operands()
    inputs |= {n: floats(BATCH, HEADS, KEYS, WIDTH) for n in ("k", "v")}
    inputs |= {"b": floats(3 * COLUMNS)} if bias else {}
    inputs |= past() if more else {}
    agree(*attention(inputs), rtol=1e-4)


@pytest.mark.parametrize("given", [
    np.array([4, 6], np.int32), np.array([3, 6, 0, 3, 6, 0, 6, 12], np.int32),
    mask(BATCH, KEYS), mask(BATCH, ROWS, KEYS),
], ids=["ends", "ends and more", "columns", "matrix"])  # fmt: skip
@pytest.mark.parametrize("low", [None, -2.0])
def test_masks(given: np.ndarray, low: float | None) -> None:
    attributes = {} if low is None else {"mask_filter_value": low}
    agree(*attention(operands(mask=given), **attributes), rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (1, HEADS), (BATCH, 1), (BATCH, HEADS)])
def test_a_bias_of_scores(shape: tuple[int, int]) -> None:
    extra = floats(*shape, ROWS, KEYS)
    agree(*attention(operands(extra=extra), scale=0.3), rtol=1e-4)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("shape", [None, (BATCH, ROWS + PAST), (BATCH, ROWS, ROWS + PAST)])
def test_past_states(unidirectional: int, shape: tuple | None) -> None:
    inputs = operands(ROWS, **past())
    if shape is not None:
        inputs["mask"] = mask(*shape)
    agree(*attention(inputs, unidirectional=unidirectional), rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_scores(masked: bool) -> None:
    more = {"mask": mask(BATCH, KEYS)} if masked else {}
    agree(*attention(operands(**more), outputs=4), rtol=1e-4)


@pytest.mark.parametrize("count", [2, 3])
def test_operands_that_share_a_tensor(count: int) -> None:
    """ONNX Runtime has no kernel for CPUs; the same operands apart are the judge."""
    inputs = operands(ROWS)
    parts = [inputs[n].reshape(BATCH, ROWS, HEADS, WIDTH) for n in "qkv"]
    packed = np.stack(parts[3 - count :], axis=3)
    given = {"q": packed} if count == 3 else {"q": inputs["q"], "k": packed}
    expected = ort_run(*attention(inputs))
    close(run_graph(import_model(attention(given)[0]), given), expected, rtol=1e-4)
    model, _ = attention(given | {"b": floats(3 * COLUMNS)})
    assert "a bias of operands that share a tensor" in refused(model, UnsupportedModelError)


def test_half_floats() -> None:
    inputs = {n: a.astype(np.float16) for n, a in operands().items()}
    expected = ort_run(*attention({n: a.astype(np.float32) for n, a in inputs.items()}))
    model, _ = attention(inputs)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    found = run_graph(import_model(model), inputs)
    close(found, {n: a.astype(np.float16) for n, a in expected.items()}, rtol=5e-3)


def test_any_size() -> None:
    """One model with open sizes, step by step."""
    model, _ = attention(operands(ROWS, **past(), mask=mask(BATCH, ROWS + PAST)), unidirectional=1)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_param = "batch"
        if value.name in ("q", "k", "v"):
            dims[1].dim_param = "rows"
        elif value.name == "mask":
            dims[1].dim_param = "total"
        else:
            dims[2].dim_param = "past"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    network = fk.compile_onnx(model)
    for batch, rows, earlier in ((2, 3, 4), (3, 1, 7), (1, 1, 8)):
        inputs = {n: floats(batch, rows, COLUMNS) for n in "qkv"}
        inputs |= {n: floats(batch, HEADS, earlier, WIDTH) for n in ("pk", "pv")}
        inputs["mask"] = mask(batch, rows + earlier)
        close(network.run(inputs), ort_run(model, inputs), rtol=1e-4)


def refused(model: onnx.ModelProto, kind: type[Exception] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        import_model(model)
    return str(caught.value)


@pytest.mark.parametrize(("given", "told"), [
    ({"q": floats(BATCH, ROWS, 7)}, "a query of shape [2, 3, 7] for 2 heads"),
    ({"v": floats(BATCH, 4, COLUMNS)},
     "keys and values of shape [2, 6, 8] and [2, 4, 8] for queries [2, 3, 8]"),
    ({"b": floats(COLUMNS)}, "a bias of shape [8] for 24 columns"),
    ({"k": floats(BATCH, KEYS, HEADS, 2, WIDTH)},
     "keys and values are given apart, or in one operand of rank 5"),
    ({"pk": floats(BATCH, HEADS, PAST, WIDTH)}, "past_key and past_value are only given together"),
    (past() | {"pv": floats(BATCH, HEADS, PAST, 3)}, "past states of shape [2, 2, 5, 3]"),
    ({"extra": floats(1, 1, ROWS, ROWS)},
     "attention_bias of shape [1, 1, 3, 3] for [2, 2, 3, 6]"),
    ({"mask": mask(2 * BATCH)}, "a mask of shape [4] for 2 sentences"),
])  # fmt: skip
def test_operands_that_do_not_fit(given: dict[str, np.ndarray], told: str) -> None:
    model, _ = attention(operands() | given)
    assert refused(model) == f"MultiHeadAttention 'node' (opset 1): {told}"


def test_what_is_not_supported() -> None:
    model, _ = attention(operands(), unidirectional=1)
    told = refused(model, UnsupportedModelError)
    assert "unidirectional attention of 3 queries to 6 keys" in told
    model, _ = attention(operands(ROWS, length=np.array([3], np.int32), **past()))
    assert "buffers that are shared" in refused(model, UnsupportedModelError)
    model, _ = attention(operands(mask=mask(BATCH, 7)))
    assert "a mask of shape [2, 7]" in refused(model, UnsupportedModelError)
