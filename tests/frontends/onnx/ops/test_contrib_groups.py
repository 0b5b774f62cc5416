"""GroupQueryAttention of ONNX Runtime's own domain, compared with it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import farkas as fk
from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError, UnsupportedModelError
from tests.frontends.onnx.onnx_support import agree, close, floats, ort_run, run_graph, single

HEADS, GROUPS, WIDTH = 4, 2, 32
_ORDER = ["q", "k", "v", "pk", "pv", "ends", "total", "cos", "sin", "places", "extra", "sink"]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def operands(
    batch: int, rows: int, past: int, total: int, ends: list[int] | None = None,
    packed: bool = False, **more: np.ndarray,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The inputs, without constants."""
    if packed:
        inputs = {"q": floats(batch, rows, (HEADS + 2 * GROUPS) * WIDTH)}
    else:
        inputs = {"q": floats(batch, rows, HEADS * WIDTH)}
        inputs |= {n: floats(batch, rows, GROUPS * WIDTH) for n in "kv"}
    if past:
        inputs |= {n: floats(batch, GROUPS, past, WIDTH) for n in ("pk", "pv")}
    lengths = [total] * batch if ends is None else ends
    return inputs | {"ends": ints(*lengths) - 1, "total": np.array(total, np.int32)} | more


def attention(
    inputs: dict[str, np.ndarray], turned: int = 0, outputs: int = 3, **attributes: object
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model, whose total length is a constant, and its inputs."""
    constants = {"total": inputs["total"]}
    inputs = {n: a for n, a in inputs.items() if n != "total"}
    if turned:
        angles = floats(12, turned // 2)
        constants |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        attributes["do_rotary"] = 1
    order = [n if n in inputs or n in constants else "" for n in _ORDER]
    while not order[-1]:
        order.pop()
    model = single(
        "GroupQueryAttention", inputs, constants=constants, order=order, outputs=outputs,
        domain=DOMAIN, **{"num_heads": HEADS, "kv_num_heads": GROUPS} | attributes,
    )  # fmt: skip
    return model, inputs


#: Rows that are new, earlier ones, all, and those of each sentence.
STEPS = {
    "prompt": (2, 3, 0, 3), "prompt in a buffer": (2, 3, 5, 3), "token": (2, 1, 5, 6),
    "tokens of sentences": (3, 1, 5, 6, [4, 6, 2]), "token in a buffer": (2, 1, 7, 4, [4, 3]),
    "chunk": (1, 3, 5, 8), "chunk in a buffer": (1, 3, 9, 7), "long chunk": (1, 5, 2, 7),
    "full buffer": (2, 1, 7, 7), "prompt that fills its buffer": (2, 5, 5, 5),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("attributes", [
    {}, {"turned": WIDTH}, {"local_window_size": 2}, {"softcap": 0.7, "scale": 0.4},
    {"smooth_softmax": 1, "turned": 16, "rotary_interleaved": 1}, {"causal": 0},
], ids=str)  # fmt: skip
def test_steps(step: str, packed: bool, attributes: dict) -> None:
    agree(*attention(operands(*STEPS[step], packed=packed), **attributes), rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (1, HEADS), (2, 1), (2, HEADS)])
@pytest.mark.parametrize("sink", [False, True])
def test_biases_of_scores(shape: tuple[int, int], sink: bool) -> None:
    more = {"extra": floats(*shape, 1, 6)} | ({"sink": floats(HEADS)} if sink else {})
    agree(*attention(operands(2, 1, 5, 6, [4, 6], **more), softcap=0.5), rtol=1e-4)


@pytest.mark.parametrize("groups", [1, HEADS])
def test_groups(groups: int) -> None:
    inputs = operands(2, 1, 5, 6)
    inputs |= {n: floats(2, 1, groups * WIDTH) for n in "kv"}
    inputs |= {n: floats(2, groups, 5, WIDTH) for n in ("pk", "pv")}
    agree(*attention(inputs, kv_num_heads=groups), rtol=1e-4)


def test_positions_that_are_given() -> None:
    inputs = operands(2, 1, 5, 6, places=np.array([[3], [9]]))
    agree(*attention(inputs, turned=WIDTH), rtol=1e-4)


def test_prompts_that_are_padded() -> None:
    """Rows behind the end of a sentence have no meaning."""
    inputs = operands(2, 4, 0, 4, [2, 4])
    model, inputs = attention(inputs, turned=WIDTH)
    found, expected = run_graph(import_model(model), inputs), ort_run(model, inputs)
    for values in (found, expected):
        values["y0"][0, 2:] = 0
    close(found, expected, rtol=1e-4)


def test_half_floats() -> None:
    inputs = {n: a.astype(np.float16) if a.dtype == np.float32 else a
              for n, a in operands(2, 1, 5, 6).items()}  # fmt: skip
    agree(*attention(inputs), rtol=5e-3)


def test_any_size() -> None:
    """A model with open sizes, whose total length is that of a mask."""
    model, _ = attention(operands(2, 3, 4, 7))
    graph = model.graph
    del graph.initializer[:]
    make = onnx.helper.make_node
    nodes = [
        make("Shape", ["mask"], ["shape"], start=1, end=2),
        make("Cast", ["shape"], ["total"], to=onnx.TensorProto.INT32),
        *graph.node,
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input.append(
        onnx.helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, ["batch", "total"])
    )
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_param = "batch"
        if value.name in ("q", "k", "v"):
            dims[1].dim_param = "rows"
        elif value.name in ("pk", "pv"):
            dims[2].dim_param = "past"
    for output in graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        output.type.tensor_type.ClearField("shape")
    network = fk.compile_onnx(model)
    for batch, rows, past in ((1, 3, 4), (2, 1, 5), (3, 1, 6), (1, 2, 2)):
        inputs = operands(batch, rows, past, past + rows)
        del inputs["total"]
        inputs["mask"] = np.ones((batch, past + rows), np.int64)
        close(network.run(inputs), ort_run(model, inputs), rtol=1e-4)


def refused(model: onnx.ModelProto, kind: type[Exception] = ModelError) -> str:
    with pytest.raises(kind) as caught:
        import_model(model)
    return str(caught.value)


@pytest.mark.parametrize(("given", "attributes", "told"), [
    ({}, {"kv_num_heads": 3}, "4 heads of queries, 3 of keys and values"),
    ({"q": floats(2, 1, 63)}, {}, "63 columns do not make 4 heads"),
    ({"k": floats(2, 2, 64)}, {}, "keys or values of shape [2, 2, 64], not [2, 1, 64]"),
    ({"pk": floats(2, 2, 5, 8)}, {}, "past states of shape [2, 2, 5, 8] and [2, 2, 5, 32]"),
    ({"total": np.array(9, np.int32)}, {},
     "total_sequence_length is 9, but there are 5 earlier states and 1 new"),
    ({"ends": ints(1, 2, 3)}, {}, "seqlens_k of shape [3]"),
    ({"sink": floats(3)}, {}, "head_sink of shape [3] for 4 heads"),
    ({}, {"do_rotary": 1}, "do_rotary needs cos_cache and sin_cache, of rank 2"),
    ({"extra": floats(2, 3, 1, 6)}, {}, "attention_bias of shape [2, 3, 1, 6] for [2, 4, 1, 6]"),
    ({}, {"causal": 0, "local_window_size": 2},
     "a window (local_window_size) needs causal attention"),
])  # fmt: skip
def test_operands_that_do_not_fit(given: dict, attributes: dict, told: str) -> None:
    model, _ = attention(operands(2, 1, 5, 6) | given, **attributes)
    assert refused(model) == f"GroupQueryAttention 'node' (opset 1): {told}"


@pytest.mark.parametrize(("attributes", "told"), [
    ({"sliding_window_cache": 1, "local_window_size": 3}, "sliding_window_cache"),
    ({"qk_output": 1, "outputs": 4}, "qk_output"), ({"k_quant_type": "PER_TENSOR"}, "8-bit states"),
])  # fmt: skip
def test_what_is_not_supported(attributes: dict, told: str) -> None:
    model, _ = attention(operands(2, 1, 5, 6), **attributes)
    assert f"GroupQueryAttention with {told}" in refused(model, UnsupportedModelError)
