"""RNN, GRU and LSTM against ONNX Runtime and, where it is no judge, numpy."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

import farkas as fk
from frontends.onnx import import_model
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

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
FUNCTIONS = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
    "HardSigmoid", "Elu", "Softsign", "Softplus",
)  # fmt: skip


def recurrent(
    operator: str,
    sizes: tuple[int, int, int, int] = (5, 3, 4, 6),
    *,
    direction: str = "forward",
    given: str = "bhc",
    lengths: list[int] | None = None,
    outputs: tuple[bool, ...] = (True, True, True),
    constant: bool = True,
    dtype: type = np.float32,
    opset: int = 14,
    **attributes: object,
) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model of one node and its inputs; `given` says which of B, initial_h, initial_c and P
    there are, `constant` whether weights are initializers.
    """
    steps, batch, inputs, hidden = sizes
    d, g = 2 if direction == "bidirectional" else 1, GATES[operator]
    first = attributes.get("layout", 0) == 1
    state = (batch, d, hidden) if first else (d, batch, hidden)
    x = floats(*((batch, steps) if first else (steps, batch)), inputs, dtype=dtype)
    weights = {
        "W": floats(d, g * hidden, inputs, dtype=dtype),
        "R": floats(d, g * hidden, hidden, low=-1, high=1, dtype=dtype),
    }
    arrays = {"X": x}
    if "b" in given:
        weights["B"] = floats(d, 2 * g * hidden, dtype=dtype)
    if lengths is not None:
        arrays["L"] = np.array(lengths, np.int32)
    if "h" in given:
        arrays["H"] = floats(*state, dtype=dtype)
    if operator == "LSTM":
        if "c" in given:
            arrays["C"] = floats(*state, dtype=dtype)
        if "p" in given:
            weights["P"] = floats(d, 3 * hidden, dtype=dtype)
    every = {**arrays, **weights}
    names = [n if n in every else "" for n in "XWRBLHCP"]
    while not names[-1]:
        names.pop()
    results = [f"y{n}" if has else "" for n, has in enumerate(outputs[: 1 + STATES[operator]])]
    node = helper.make_node(
        operator, names, results, name="node", hidden_size=hidden, direction=direction, **attributes
    )
    own = arrays if constant else every
    model = model_of([node], own, [r for r in results if r], weights if constant else None, opset)
    return model, own


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [5, 1, 3]])
@pytest.mark.parametrize("given", ["", "bhc", "bp"])
def test_directions(operator, direction, lengths, given):
    agree(*recurrent(operator, direction=direction, lengths=lengths, given=given))


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_weights_that_are_inputs(operator, direction):
    agree(*recurrent(operator, direction=direction, constant=False, given="bhcp"))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [2, 4, 5]])
@pytest.mark.parametrize("given", ["h", "bh"])
@pytest.mark.parametrize("constant", [True, False])
def test_gru_with_linear_before_reset(direction, lengths, given, constant):
    agree(
        *recurrent(
            "GRU", direction=direction, lengths=lengths, given=given, constant=constant,
            linear_before_reset=1,
        )
    )  # fmt: skip


@pytest.mark.parametrize("given", ["bhc", "bhcp"])
@pytest.mark.parametrize("clip", [{}, {"clip": 0.4}])
def test_lstm_with_input_forget(given, clip):
    agree(*recurrent("LSTM", given=given, input_forget=1, **clip))


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_clip(operator, direction):
    agree(*recurrent(operator, direction=direction, clip=0.3))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("numbers", [{}, {"activation_alpha": [0.7], "activation_beta": [0.3]}])
def test_activations(name, numbers):
    """ONNX Runtime's RNN has three of them, its GRU all; some defaults of it are 0."""
    if name in ("Affine", "ThresholdedRelu", "ScaledTanh") and not numbers:
        return
    agree(*recurrent("GRU", activations=["Sigmoid", name], **numbers), rtol=1e-4)
    agree(*recurrent("GRU", activations=[name.lower(), "Tanh"], clip=0.8, **numbers), rtol=1e-4)
    if name in ("Relu", "Tanh", "Sigmoid"):
        agree(*recurrent("RNN", activations=[name]))


@pytest.mark.parametrize(
    ("name", "alpha", "beta"),
    [("Affine", 1.0, 0.0), ("ThresholdedRelu", 1.0, 0.0), ("ScaledTanh", 1.0, 1.0)],
)
def test_numbers_that_are_not_given_are_those_of_the_operators(name, alpha, beta):
    model, inputs = recurrent("GRU", activations=[name, "Tanh"])
    full, _ = recurrent(
        "GRU", activations=[name, "Tanh"], activation_alpha=[alpha], activation_beta=[beta]
    )
    _take_weights(full, model)
    close(run_graph(import_model(model), inputs), ort_run(full, inputs), 1e-4)


def _take_weights(to: ModelProto, source: ModelProto) -> None:
    del to.graph.initializer[:]
    to.graph.initializer.extend(source.graph.initializer)


def test_numbers_go_to_the_functions_that_have_them():
    agree(
        *recurrent(
            "LSTM", direction="bidirectional", clip=2.0,
            activations=["Sigmoid", "LeakyRelu", "Affine", "HardSigmoid", "Tanh", "ScaledTanh"],
            activation_alpha=[0.1, 0.9, 0.3, 0.8], activation_beta=[0.05, 0.4, 1.1],
        ),
        rtol=1e-4,
    )  # fmt: skip
    agree(
        *recurrent("GRU", direction="bidirectional",
                   activations=["HardSigmoid", "Elu", "Sigmoid", "Softsign"],
                   activation_alpha=[0.3], activation_beta=[0.6]),
        rtol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("operator", GATES)
def test_every_choice_of_outputs(operator):
    for wanted in product([True, False], repeat=1 + STATES[operator]):
        if any(wanted):
            model, inputs = recurrent(operator, direction="bidirectional", outputs=wanted)
            graph = agree(model, inputs)
            assert len(graph.outputs) == sum(wanted)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [5, 1, 3]])
def test_batch_first_is_a_transposition(operator, direction, lengths):
    """ONNX Runtime has no layout 1."""
    model, inputs = recurrent(
        operator, direction=direction, given="bhcp", lengths=lengths, layout=1
    )
    plain = ModelProto()
    plain.CopyFrom(model)
    for a in plain.graph.node[0].attribute:
        if a.name == "layout":
            a.i = 0
    turned = {k: a.swapaxes(0, 1) if k in "XHC" else a for k, a in inputs.items()}
    for info in plain.graph.input:
        dims = helper.make_tensor_value_info(
            info.name, info.type.tensor_type.elem_type, turned[info.name].shape
        )
        info.CopyFrom(dims)
    for info in plain.graph.output:
        info.type.tensor_type.ClearField("shape")
    expected = ort_run(plain, turned)
    order = {"y0": (2, 0, 1, 3), "y1": (1, 0, 2), "y2": (1, 0, 2)}
    expected = {k: a.transpose(order[k]) for k, a in expected.items()}
    close(run_graph(import_model(model), inputs), expected)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("opset", [7, 14, 22])
def test_opsets(operator, opset):
    agree(*recurrent(operator, opset=opset))


@pytest.mark.parametrize("operator", GATES)
def test_the_first_opset(operator):
    model, inputs = recurrent(operator, opset=1, output_sequence=1)
    now, _ = recurrent(operator)
    _take_weights(now, model)
    close(run_graph(import_model(model), inputs), ort_run(now, inputs))


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (4, 0, 3, 4), (3, 2, 0, 4), (1, 1, 1, 1)])
def test_extents_of_nothing(operator, sizes):
    model, inputs = recurrent(operator, sizes, direction="bidirectional")
    found = run_graph(import_model(model), inputs)
    steps, batch, _, hidden = sizes
    assert found["y0"].shape == (steps, 2, batch, hidden)
    if not steps:
        np.testing.assert_array_equal(found["y1"], inputs["H"])


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize(
    ("dtype", "rtol"), [(np.float64, 1e-12), (np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)]
)
def test_other_types_compute_in_float32_or_better(operator, dtype, rtol):
    model, inputs = recurrent(operator, dtype=dtype, given="bhcp", opset=22, constant=False)
    wide = {k: a.astype(np.float64) for k, a in inputs.items()}
    doubles, _ = recurrent(operator, dtype=np.float64, given="bhcp", opset=22, constant=False)
    expected = run_graph(import_model(doubles), wide)
    if dtype == np.float64:
        singles, _ = recurrent(operator, given="bhcp", constant=False)
        narrow = {k: a.astype(np.float32) for k, a in inputs.items()}
        expected = {k: a.astype(np.float64) for k, a in ort_run(singles, narrow).items()}
        rtol = 1e-5
    found = run_graph(import_model(model), inputs)
    for name, array in expected.items():
        assert found[name].dtype == dtype
        np.testing.assert_allclose(
            found[name].astype(np.float64), array, rtol=rtol, atol=rtol * np.abs(array).max()
        )


def test_lengths_that_are_known_and_full_leave_no_mask():
    model, inputs = recurrent("LSTM", lengths=[5, 5, 5])
    full = inputs.pop("L")
    model.graph.initializer.append(helper.make_tensor("L", TensorProto.INT32, [3], full))
    (info,) = [i for i in model.graph.input if i.name == "L"]
    model.graph.input.remove(info)
    graph = agree(model, inputs)
    assert "select" not in str(graph)


def test_the_inputs_are_one_product_outside_of_the_steps():
    model, _ = recurrent("LSTM", (7, 2, 4, 6))
    (call,) = import_model(model).nodes
    sums = [s for s in call.program.statements if s.reductions]
    assert [(s.step, s.reductions) for s in sums] == [("", ("i",)), ("t", ("k",))]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any(data):
    operator = data.draw(st.sampled_from(sorted(GATES)))
    sizes = tuple(data.draw(st.integers(1, high)) for high in (4, 3, 5, 5))
    direction = data.draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    d = 2 if direction == "bidirectional" else 1
    has = "".join(c for c in "bhcp" if data.draw(st.booleans()))
    attributes: dict[str, Any] = {}
    if data.draw(st.booleans()):
        attributes["clip"] = data.draw(st.sampled_from([0.25, 1.0, 3.0]))
    if data.draw(st.booleans()):
        count = {"RNN": 1, "GRU": 2, "LSTM": 3}[operator] * d
        names = st.sampled_from(
            ["Tanh", "Sigmoid"]
            if operator == "RNN"
            else ["Tanh", "Sigmoid", "Softsign", "HardSigmoid", "ScaledTanh"]
        )
        attributes["activations"] = data.draw(st.lists(names, min_size=count, max_size=count))
        if "ScaledTanh" in attributes["activations"]:
            # Not to rely on defaults that differ.
            attributes["activation_alpha"] = [0.4] * count
            attributes["activation_beta"] = [0.7] * count
    if operator == "GRU":
        attributes["linear_before_reset"] = data.draw(st.integers(0, 1))
    if operator == "LSTM":
        attributes["input_forget"] = data.draw(st.integers(0, 1))
    lengths = None
    if data.draw(st.booleans()):
        lengths = data.draw(
            st.lists(st.integers(1, sizes[0]), min_size=sizes[1], max_size=sizes[1])
        )
    model, inputs = recurrent(
        operator, sizes, direction=direction, given=has, lengths=lengths,
        constant=data.draw(st.booleans()), **attributes,
    )  # fmt: skip
    agree(model, inputs, rtol=1e-4)


@pytest.mark.parametrize("operator", GATES)
def test_compiled(operator):
    long, wide = (9, 1, 20, 33), (4, 8, 16, 48)
    for sizes, direction, lengths in (
        (long, "forward", None), (wide, "bidirectional", None), (long, "reverse", [3]),
    ):  # fmt: skip
        model, inputs = recurrent(operator, sizes, direction=direction, lengths=lengths)
        compiled = fk.compile_onnx(model)
        for threads in (1, 2):
            close(compiled.run(inputs, threads=threads), ort_run(model, inputs), 1e-4)


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_compiled_for_any_number_of_steps_and_sequences(operator, direction):
    model, _ = recurrent(operator, (4, 2, 6, 20), direction=direction, given="bh", lengths=[4, 3])
    opened = {"X": ("time", "batch", None), "L": ("batch",), "H": (None, "batch", None)}
    for info in model.graph.input:
        for dim, name in zip(info.type.tensor_type.shape.dim, opened[info.name], strict=True):
            if name is not None:
                dim.dim_param = name
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    compiled = fk.compile_onnx(model)
    for steps, batch in ((4, 2), (1, 1), (5, 9)):
        lengths = [steps - n % 2 for n in range(batch)]
        _, inputs = recurrent(
            operator, (steps, batch, 6, 20), direction=direction, given="bh", lengths=lengths
        )
        for threads in (1, 2):
            close(compiled.run(inputs, threads=threads), ort_run(model, inputs), 1e-4)


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "changes", "message"),
    [
        ("LSTM", {"direction": "both"}, "direction = 'both' does not exist"),
        ("GRU", {"activations": ["Tanh"]}, "1 activations, but 2 functions are needed"),
        ("RNN", {"activations": ["Tan"]}, "no activation function 'Tan'"),
        ("RNN", {"clip": -1.0}, "clip = -1.0 is not positive"),
        ("RNN", {"layout": 2}, "layout = 2 does not exist"),
        ("RNN", {"hidden_size": 5}, "hidden_size is 5, but R is for 6"),
    ],
)
def test_attributes_that_make_no_sense(operator, changes, message):
    model, _ = recurrent(operator)
    (node,) = model.graph.node
    kept = [a for a in node.attribute if a.name not in changes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in changes.items())])
    with pytest.raises(ModelError, match=message):
        import_model(model)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("X", (5, 3), "rank 3"),
        ("W", (1, 24, 5), r"W has shape \[1, 24, 5\], expected \[1, 24, 4\]"),
        ("R", (2, 24, 6), "R has shape"),
        ("B", (1, 24), r"B has shape \[1, 24\], expected \[1, 48\]"),
        ("L", (4,), r"sequence_lens has shape \[4\], expected \[3\]"),
        ("H", (3, 1, 6), "initial_h has shape"),
        ("C", (1, 3, 5), "initial_c has shape"),
        ("P", (1, 24), "P has shape"),
    ],
)
def test_operands_that_do_not_fit(name, shape, message):
    model, _ = recurrent("LSTM", constant=False, lengths=[1, 2, 3], given="bhcp")
    for info in model.graph.input:
        if info.name == name:
            number = info.type.tensor_type.elem_type
            info.CopyFrom(helper.make_tensor_value_info(name, number, shape))
    with pytest.raises(ModelError, match=message):
        import_model(model)


def test_lengths_beyond_the_sequence():
    model, _ = recurrent("RNN", lengths=[5, 6, 5])
    (info,) = [i for i in model.graph.input if i.name == "L"]
    model.graph.input.remove(info)
    model.graph.initializer.append(helper.make_tensor("L", TensorProto.INT32, [3], [5, 6, 5]))
    with pytest.raises(ModelError, match="sequence_lens are not between 0 and 5"):
        import_model(model)


@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
def test_of_constants_alone(operator: str) -> None:
    """What is computed at compile time runs step by step, too."""
    gates = GATES[operator]
    constants = {"x": floats(3, 1, 2), "w": floats(1, 2 * gates, 2), "r": floats(1, 2 * gates, 2)}
    model = single(operator, {}, constants=constants, outputs=2, hidden_size=2)
    graph = agree(model, {})
    assert not graph.nodes
