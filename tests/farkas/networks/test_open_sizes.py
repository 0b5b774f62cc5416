"""One compilation for all sizes: networks with dynamic dimensions against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import farkas as fk
from codegen.c.function import CFunction, emit_function
from poly.schedule.schedule import Schedule
from runtime.common.cache import ENVIRONMENT
from runtime.cpu.fast_call import never
from runtime.network import generate_kernels as graph_build
from runtime.network.cpu_model import CpuModel
from tests.farkas.open_networks import (
    F,
    L,
    Network,
    ints,
    node,
    one_compilation,
    random_inputs,
    weights,
)

PERCEPTRON = Network(
    [
        node("MatMul", ["x", "w0"], ["a"]), node("Add", ["a", "b0"], ["b"]),
        node("Relu", ["b"], ["c"]), node("MatMul", ["c", "w1"], ["d"]),
        node("Softmax", ["d"], ["y"], axis=-1),
    ],
    {"x": (F, ["batch", 20])}, ["y"],
    {"w0": weights(20, 33), "b0": weights(33), "w1": weights(33, 7)},
    {"batch": (2, 40)},
)  # fmt: skip

CONVOLUTIONS = Network(
    [
        node("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["c", "w1"], ["d"], pads=[1, 1, 1, 1], group=8),
        node("Sigmoid", ["d"], ["e"]), node("Mul", ["d", "e"], ["f"]),
        node("GlobalAveragePool", ["f"], ["g"]), node("Flatten", ["g"], ["h"]),
        node("Gemm", ["h", "w2"], ["y"], transB=1),
    ],
    {"x": (F, ["n", 3, "h", "w"])}, ["y", "f"],
    {"w0": weights(8, 3, 3, 3), "b0": weights(8), "w1": weights(8, 1, 3, 3), "w2": weights(5, 8)},
    {"n": (2, 4), "h": (9, 30), "w": (9, 30)},
)  # fmt: skip

#: Groups of several channels, so that the channels' dimension becomes two.
GROUPS = Network(
    [
        node("Conv", ["x", "w0", "b0"], ["a"], pads=[1, 1, 1, 1], group=2),
        node("Relu", ["a"], ["b"]), node("Conv", ["b", "w1"], ["c"], strides=[2, 2], group=4),
        node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2]),
    ],
    {"x": (F, ["n", 6, "h", "w"])}, ["y", "a"],
    {"w0": weights(8, 3, 3, 3), "b0": weights(8), "w1": weights(12, 2, 2, 2)},
    {"n": (2, 4), "h": (9, 30), "w": (9, 30)},
)  # fmt: skip

#: Self-attention as exporters write it: shapes are computed from the shape of the input.
ATTENTION = Network(
    [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"]), node("Gather", ["s", "one"], ["length"]),
        node("Unsqueeze", ["batch", "at0"], ["b1"]), node("Unsqueeze", ["length", "at0"], ["l1"]),
        node("Concat", ["b1", "l1", "heads"], ["split"], axis=0),
        node("MatMul", ["x", "wq"], ["q0"]), node("MatMul", ["x", "wk"], ["k0"]),
        node("MatMul", ["x", "wv"], ["v0"]),
        node("Reshape", ["q0", "split"], ["q1"]), node("Reshape", ["k0", "split"], ["k1"]),
        node("Reshape", ["v0", "split"], ["v1"]),
        node("Transpose", ["q1"], ["q"], perm=[0, 2, 1, 3]),
        node("Transpose", ["k1"], ["k"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v1"], ["v"], perm=[0, 2, 1, 3]),
        node("MatMul", ["q", "k"], ["scores"]), node("Mul", ["scores", "scale"], ["scaled"]),
        node("Unsqueeze", ["mask", "at12"], ["m1"]), node("Cast", ["m1"], ["m2"], to=F),
        node("Sub", ["onef", "m2"], ["m3"]), node("Mul", ["m3", "low"], ["m4"]),
        node("Add", ["scaled", "m4"], ["masked"]), node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]), node("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]),
        node("Concat", ["b1", "l1", "width"], ["joined"], axis=0),
        node("Reshape", ["o1", "joined"], ["o2"]), node("Add", ["o2", "x"], ["r"]),
        node("LayerNormalization", ["r", "gamma", "beta"], ["y"], axis=-1),
    ],
    {"x": (F, ["batch", "length", 16]), "mask": (L, ["batch", "length"])}, ["y"],
    {
        "zero": np.array(0), "one": np.array(1), "at0": ints(0), "at12": ints(1, 2),
        "heads": ints(4, 4), "width": ints(16), "scale": np.array(0.5, np.float32),
        "onef": np.array(1, np.float32), "low": np.array(-1e4, np.float32),
        "wq": weights(16, 16), "wk": weights(16, 16) * 2, "wv": weights(16, 16) / 2,
        "gamma": weights(16) + 1, "beta": weights(16),
    },
    {"batch": (2, 5), "length": (2, 40)},
)  # fmt: skip

UPSAMPLING = Network(
    [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("ConvTranspose", ["a", "w1"], ["u"], strides=[2, 2]),
        node("Resize", ["x", "", "scales"], ["r"], mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Concat", ["u", "r"], ["c"], axis=1),
        node("Slice", ["c", "starts", "ends", "axes"], ["s"]),
        node("Pad", ["s", "pads"], ["y"], mode="reflect"),
    ],
    {"x": (F, [1, 2, "h", "w"])}, ["y", "c"],
    {
        "w0": weights(4, 2, 3, 3), "w1": weights(4, 3, 2, 2),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "starts": ints(1, 2), "ends": ints(1 << 40, -1), "axes": ints(2, 3),
        "pads": ints(0, 0, 1, 1, 0, 0, 1, 2),
    },
    {"h": (4, 20), "w": (4, 20)},
)  # fmt: skip

SEQUENCE = Network(
    [
        node("Gather", ["table", "tokens"], ["e"]),
        node("Shape", ["tokens"], ["s"]), node("Gather", ["s", "one"], ["n"]),
        node("Range", ["zero", "n", "one"], ["places"]),
        node("Gather", ["ptable", "places"], ["p"]),
        node("Add", ["e", "p"], ["x"]),
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("Conv", ["t", "w"], ["c"], pads=[2, 2], dilations=[2]),
        node("ReduceMean", ["c"], ["m"], axes=[2], keepdims=0),
        node("ReduceMax", ["c"], ["y1"], axes=[2], keepdims=0), node("Add", ["m", "y1"], ["y"]),
        node("CumSum", ["x", "one"], ["z"]),
    ],
    {"tokens": (L, ["batch", "length"])}, ["y", "z"],
    {
        "table": weights(11, 6), "ptable": weights(64, 6), "w": weights(5, 6, 3),
        "zero": np.array(0), "one": np.array(1),
    },
    {"batch": (2, 6), "length": (5, 60)},
)  # fmt: skip

NETWORKS = {
    "perceptron": PERCEPTRON, "convolutions": CONVOLUTIONS, "groups": GROUPS,
    "attention": ATTENTION, "upsampling": UPSAMPLING, "sequence": SEQUENCE,
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_one_compilation_serves_all_sizes(name: str) -> None:
    one_compilation(NETWORKS[name])


@pytest.mark.parametrize(("shape", "other", "nodes"), [
    (["n"], "q0", [node("Slice", ["x", "zero", "last", "zero", "two"], ["y"])]),
    (["a", "b", 3], "a_x_b", [node("Flatten", ["x"], ["f"], axis=2), node("Tanh", ["f"], ["t"]),
                              node("Transpose", ["t"], ["y"])]),
], ids=["quotient", "product"])  # fmt: skip
def test_dimensions_that_are_called_like_derived_sizes(
    shape: list, other: str, nodes: list
) -> None:
    inputs = {"x": (F, shape), "z": (F, [other])}
    constants = {"zero": ints(0), "last": ints(1 << 40), "two": ints(2)}
    sizes = dict.fromkeys((n for n in (*shape, other) if isinstance(n, str)), (2, 20))
    outputs = ["y", "w"]
    one_compilation(
        Network([*nodes, node("Relu", ["z"], ["w"])], inputs, outputs, constants, sizes)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_calls_of_shapes_that_come_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls of a shape are made in one step, also when the arena has moved in between."""
    network, rng = NETWORKS[name], np.random.default_rng(4)
    compiled = fk.compile_onnx(network.model, threads=2)
    small, large = (random_inputs(network, rng) for _ in range(2))
    if sum(a.size for a in small.values()) > sum(a.size for a in large.values()):
        small, large = large, small
    expected = [compiled.run(arrays) for arrays in (small, large)]
    (graph,) = compiled.compiled
    assert isinstance(graph, CpuModel)
    careful = []
    original = CpuModel._given
    monkeypatch.setattr(
        CpuModel, "_given", lambda self, given: careful.append(1) or original(self, given)
    )
    for threads in (None, 1, 2):
        for arrays, wanted in ((large, expected[1]), (small, expected[0])):
            found = compiled.run(arrays, threads)
            for output, array in found.items():
                assert array.tobytes() == wanted[output].tobytes()
                assert not np.shares_memory(array, wanted[output])
    # Where plans are used at all, only a shape whose plan fell with the old arena takes its time.
    assert len(careful) <= 1 or graph._quick is never
    for bad in (
        {n: a.astype(np.float64) for n, a in small.items()},
        {n: a[None] for n, a in small.items()},
        {**small, "unknown": np.zeros(1)},
        dict(list(small.items())[1:]),
    ):
        with pytest.raises(fk.ArgumentError):
            compiled.run(bad)
    (first, *_) = small
    view = {**small, first: np.repeat(small[first], 2, axis=-1)[..., ::2]}
    for output, array in compiled.run(view).items():
        assert array.tobytes() == expected[0][output].tobytes()


def test_loops_without_tiles_where_isl_cannot_generate_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Open sizes stay open."""
    refused = []

    def emit(schedule: Schedule, symbol: str, passes: object, convention: object) -> CFunction:
        if "promote" in str(schedule) and "isolate" in str(schedule):
            refused.append(symbol)
            raise fk.ScheduleError("isl gives up")
        return emit_function(schedule, symbol)

    monkeypatch.setattr(graph_build, "emit_function", emit)
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "cache of what was refused"))
    one_compilation(PERCEPTRON)
    assert refused
