"""Values in blocks of channels: which are kept so, and that results stay what they were."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import farkas as fk
from codegen.pipeline import CPU
from frontends.onnx import import_model
from poly.graph_passes.block_layouts import block_values
from poly.graph_passes.fuse_calls import merge_calls
from poly.graph_passes.simplify_graph import eliminate_common_calls, simplify_views
from poly.ir.graph import verify_graph
from runtime.reference.evaluate import evaluate
from tests.frontends.onnx.onnx_support import PAIRS, close, floats, model_of, ort_run, run_graph

node = helper.make_node
Arrays = dict[str, np.ndarray]

#: A convolution of 4 channels in front of what is tested, and one behind it.
FIRST = node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1])
LAST = node("Conv", ["b", "w1"], ["y"], name="last")
CONSTANTS = {"w": floats(4, 4, 3, 3), "w1": floats(4, 4, 1, 1), "k": floats(4)}


def in_blocks(
    nodes: list[onnx.NodeProto],
    outputs: tuple[str, ...] = ("y",),
    channels: int = 4,
    constants: Arrays | None = None,
) -> set[str]:
    """The values of a model, by their names in it, that are kept in blocks of two; the results are
    compared with ONNX Runtime's."""
    inputs = {"x": floats(1, channels, 6, 6)}
    model = model_of(nodes, inputs, list(outputs), CONSTANTS | (constants or {}))
    graph = import_model(model)
    close(run_graph(CPU.optimise(graph, PAIRS, evaluate), inputs), ort_run(model, inputs), 1e-4)
    merged = simplify_views(merge_calls(eliminate_common_calls(simplify_views(graph))))
    blocked = block_values(merged, PAIRS)
    close(run_graph(verify_graph(blocked), inputs), ort_run(model, inputs), 1e-4)
    return {blocked.label(v) for v in blocked.values if blocked.values[v] != merged.values[v]}


def test_between_convolutions() -> None:
    nodes = [FIRST, node("Relu", ["a"], ["b"]), LAST]
    assert in_blocks(nodes) == {"b"}


def test_what_is_added_and_what_it_is_added_to() -> None:
    nodes = [
        FIRST,
        node("Conv", ["a", "w1"], ["c"]),
        node("Add", ["c", "a"], ["s"]),
        node("Relu", ["s"], ["b"]),
        LAST,
    ]
    assert in_blocks(nodes) == {"a", "b"}


@pytest.mark.parametrize(
    "between",
    [
        node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxPool", ["a"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("AveragePool", ["a"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "d"], ["b"], group=4, pads=[1, 1, 1, 1]),
        node("Conv", ["a", "d"], ["b"], group=4, strides=[2, 2]),
        node("Pad", ["a", "p"], ["b"]),
    ],
    ids=lambda n: n.op_type,
)
def test_through_what_looks_at_one_channel_at_a_time(between: onnx.NodeProto) -> None:
    constants = {"d": floats(4, 1, 3, 3), "p": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    assert in_blocks([FIRST, between, LAST], constants=constants) >= {"a", "b"}


def test_parts_of_a_concatenation() -> None:
    nodes = [
        FIRST,
        node("Conv", ["a", "w1"], ["c"]),
        node("Conv", ["a", "w"], ["e"], pads=[1, 1, 1, 1]),
        node("Concat", ["c", "e"], ["b"], axis=1),
        node("Conv", ["b", "w8"], ["y"]),
    ]
    assert in_blocks(nodes, constants={"w8": floats(4, 8, 1, 1)}) == {"a", "c", "e", "b"}


@pytest.mark.parametrize(
    "between",
    [
        [node("Transpose", ["a"], ["b"], perm=[0, 1, 3, 2])],
        [node("Softmax", ["a"], ["b"], axis=1)],
        [node("LRN", ["a"], ["b"], size=3)],
        [node("Reshape", ["a", "to"], ["f"]), node("Reshape", ["f", "back"], ["b"])],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_what_mixes_channels_has_results_as_they_were(between: list[onnx.NodeProto]) -> None:
    constants = {"to": np.array([1, 12, 12]), "back": np.array([1, 4, 6, 6])}
    in_blocks([FIRST, *between, LAST], constants=constants)


def test_outputs_stay_as_they_are() -> None:
    nodes = [FIRST, node("Relu", ["a"], ["b"]), LAST]
    assert in_blocks(nodes, ("b", "y")) == set()
    assert in_blocks([FIRST], ("a",)) == set()


def test_blocks_are_whole() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w1"], ["y"]),
    ]
    odd = {"w": floats(3, 4, 3, 3), "w1": floats(4, 3, 1, 1)}
    assert in_blocks(nodes, constants=odd) == set()
    # Three channels beside four: the concatenation has no blocks, and neither have its parts.
    nodes = [
        FIRST,
        node("Conv", ["a", "w3"], ["c"]),
        node("Conv", ["a", "w1"], ["e"]),
        node("Concat", ["c", "e"], ["b"], axis=1),
        node("Conv", ["b", "w7"], ["y"]),
    ]
    odd = {"w3": floats(3, 4, 1, 1), "w7": floats(4, 7, 1, 1)}
    assert in_blocks(nodes, constants=odd) == {"a"}


def test_few_filters_have_their_lanes_along_the_image() -> None:
    nodes = [FIRST, node("Conv", ["a", "w1x"], ["y"], pads=[1, 1, 1, 1])]
    assert in_blocks(nodes, constants={"w1x": floats(1, 4, 3, 3)}) == set()


def test_networks_without_contractions_stay_as_they_are() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("MaxPool", ["a"], ["y"], kernel_shape=[2, 2]),
    ]
    assert in_blocks(nodes) == set()


@pytest.mark.parametrize("channels", [16, 32, 48, 40])
@pytest.mark.parametrize("batch", [1, 3])
def test_compiled(channels: int, batch: int) -> None:
    c = channels
    constants = {
        "w": floats(c, c, 3, 3) / c,
        "d": floats(c, 1, 3, 3),
        "u": floats(c, c, 1, 1) / c,
        "v": floats(c, 2 * c, 1, 1) / c,
        "k": floats(c),
    }
    nodes = [
        node("Conv", ["x", "w", "k"], ["a"], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "d"], ["e"], group=c, pads=[1, 1, 1, 1]),
        node("Clip", ["e", "zero", "six"], ["f"]),
        node("Conv", ["f", "u"], ["g"]),
        node("Add", ["g", "a"], ["h"]),
        node("Concat", ["h", "f"], ["i"], axis=1),
        node("MaxPool", ["i"], ["j"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Conv", ["j", "v", "k"], ["l"]),
        node("AveragePool", ["l"], ["m"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["m"], ["y"]),
    ]
    constants |= {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
    inputs = {"x": floats(batch, c, 9, 11)}
    model = model_of(nodes, inputs, ["y"], constants)
    compiled = fk.compile_onnx(model)
    close(compiled.run(inputs), ort_run(model, inputs), 1e-4)


def test_views_that_would_be_blocked_along_different_dimensions() -> None:
    """Both have a dimension of which the other one's reader has a block as well."""
    inputs = {"x": floats(32, 3, 14, 14)}
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["p", "s"], ["v"]),
        node("Einsum", ["v", "m"], ["y"], equation="nkcs,kcm->nsm"),
    ]
    constants = {
        "w": floats(64, 3, 1, 1), "s": np.array([16, 2, 64, 49]), "m": floats(2, 64, 32),
    }  # fmt: skip
    model = model_of(nodes, inputs, ["y"], constants)
    close(fk.compile_onnx(model, threads=1).run(inputs), ort_run(model, inputs), 1e-4)


def test_views_with_different_numbers_of_channels() -> None:
    """Of 8 bits: 48 are whole blocks, 24 are not."""
    zero = {"z": np.array(0, np.uint8), "zw": np.array(0, np.int8)}
    scales = {"sx": np.float32(0.02), "sr": np.float32(0.1), "sw": np.float32(0.05)}
    weights = {
        n: np.random.default_rng(3).integers(-30, 30, shape).astype(np.int8)
        for n, shape in {"w1": (48, 16, 1, 1), "w2": (32, 24, 1, 1)}.items()
    }
    nodes = [
        node("QuantizeLinear", ["x", "sx", "z"], ["xq"]),
        node("QLinearConv", ["xq", "sx", "z", "w1", "sw", "zw", "sr", "z"], ["a"]),
        node("Reshape", ["a", "s"], ["v"]),
        node("QLinearConv", ["v", "sr", "z", "w2", "sw", "zw", "sr", "z"], ["b"]),
        node("DequantizeLinear", ["b", "sr", "z"], ["y"]),
    ]
    inputs = {"x": np.abs(floats(1, 16, 14, 14))}
    constants = {**zero, **scales, **weights, "s": np.array([2, 24, 14, 14])}
    model = model_of(nodes, inputs, ["y"], {n: np.asarray(a) for n, a in constants.items()})
    found = fk.compile_onnx(model, threads=1).run(inputs)["y"]
    apart = np.abs(found - ort_run(model, inputs)["y"])
    assert apart.max() < 0.11 and apart.mean() < 1e-3  # a step of 0.1, where it is about halves
