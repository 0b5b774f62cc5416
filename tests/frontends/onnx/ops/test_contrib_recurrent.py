"""DynamicQuantizeLSTM, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from codegen.pipeline import CPU
from frontends.onnx import import_model
from frontends.onnx.ops.contrib_schemas import DOMAIN
from poly.errors import ModelError
from runtime.reference.evaluate import evaluate
from tests.frontends.onnx.onnx_support import PAIRS, close, floats, run_graph, single

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 6, 4
RANDOM = np.random.default_rng(3)
OPTIONAL = {"b": (8 * HIDDEN,), "h": (BATCH, HIDDEN), "c": (BATCH, HIDDEN), "p": (3 * HIDDEN,)}
ORDER = ["x", "w", "r", "b", "lengths", "h", "c", "p", "ws", "wz", "rs", "rz"]


def lstm(
    direction: str = "forward",
    kind: type = np.int8,
    each: bool = False,
    zero: bool = False,
    given: str = "",
    lengths: tuple[int, ...] | None = None,
    stored: bool = True,
    **attributes: object,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model, and its inputs; `given` has a letter for each optional operand."""
    count = 2 if direction == "bidirectional" else 1
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    shape = (count, 4 * HIDDEN) if each else (count,)
    point = (7 if zero else 0) + (128 if kind is np.uint8 else 0)
    values = {
        "w": RANDOM.integers(low, high, (count, INPUTS, 4 * HIDDEN)).astype(kind),
        "r": RANDOM.integers(low, high, (count, HIDDEN, 4 * HIDDEN)).astype(kind),
        "ws": RANDOM.uniform(0.004, 0.006, shape).astype(np.float32),
        "rs": RANDOM.uniform(0.004, 0.006, shape).astype(np.float32),
        "wz": np.full(shape, point, kind), "rz": np.full(shape, point, kind),
    }  # fmt: skip
    values |= {n: floats(count, *OPTIONAL[n], low=-0.5, high=0.5) for n in given}
    if lengths is not None:
        values["lengths"] = np.array(lengths, np.int32)
    inputs = {"x": floats(STEPS, BATCH, INPUTS)}
    if not stored:
        inputs, values = inputs | values, {}
    order = [n if n in values or n in inputs else "" for n in ORDER]
    model = single(
        "DynamicQuantizeLSTM", inputs, constants=values, order=order, outputs=3, domain=DOMAIN,
        hidden_size=HIDDEN, direction=direction, **attributes,
    )  # fmt: skip
    return model, inputs


def check(model: onnx.ModelProto, inputs: dict[str, np.ndarray], rtol: float = 1e-5) -> None:
    """With one thread, ONNX Runtime quantises the states of a batch together."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    expected = dict(zip(("y0", "y1", "y2"), session.run(None, inputs), strict=True))
    graph = import_model(model)
    close(run_graph(graph, inputs), expected, rtol)
    close(run_graph(CPU.optimise(graph, PAIRS, evaluate), inputs), expected, rtol)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("each", [False, True])
def test_directions_types_and_scales(direction: str, kind: type, each: bool) -> None:
    check(*lstm(direction, kind, each))


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_zero_points(kind: type) -> None:
    check(*lstm("bidirectional", kind, zero=True))


@pytest.mark.parametrize("given", ["b", "h", "hc", "p", "bhcp"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_optional_operands(given: str, direction: str) -> None:
    check(*lstm(direction, given=given))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_weights_that_are_computed(direction: str) -> None:
    check(*lstm(direction, each=True, zero=False, given="b", stored=False))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lengths(direction: str) -> None:
    """States of sequences that have ended count in ONNX Runtime for one step more, which may
    change a scale a little."""
    check(*lstm(direction, lengths=(5, 2, 4)), rtol=2e-2)


@pytest.mark.parametrize("attributes", [
    {"clip": 0.5}, {"input_forget": 1}, {"activations": ["HardSigmoid", "Relu", "Tanh"]},
    {"activations": ["HardSigmoid", "Elu", "Tanh"], "activation_alpha": [0.3, 0.7],
     "activation_beta": [0.4]},
])  # fmt: skip
def test_attributes(attributes: dict) -> None:
    check(*lstm(**attributes))


@pytest.mark.parametrize("used", [(0,), (1,), (0, 2), (1, 2)])
def test_outputs_that_are_used(used: tuple[int, ...]) -> None:
    model, inputs = lstm()
    whole = run_graph(import_model(model), inputs)
    outputs = [o for n, o in enumerate(model.graph.output) if n in used]
    names = [f"y{n}" if n in used else "" for n in range(max(used) + 1)]
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    model.graph.node[0].output[:] = names
    close(run_graph(import_model(model), inputs), {n: whole[n] for n in names if n})


@pytest.mark.parametrize(("name", "shape", "message"), [
    ("w", (1, 5, 16), "W has shape [1, 16, 5], expected [1, 16, 6]"),
    ("r", (1, 16), "X, W and R must have rank 3"),
    ("ws", (2,), "W_scale has shape [2], expected [1, 16]"),
    ("rz", (1, 4), "R_zero_point has shape [1, 4], expected [1, 16]"),
])  # fmt: skip
def test_operands_that_do_not_fit(name: str, shape: tuple[int, ...], message: str) -> None:
    model, _ = lstm()
    for tensor in model.graph.initializer:
        if tensor.name == name:
            kind = onnx.numpy_helper.to_array(tensor).dtype
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(shape, kind), name))
    with pytest.raises(ModelError) as caught:
        import_model(model)
    assert str(caught.value) == f"DynamicQuantizeLSTM 'node' (opset 1): {message}"
