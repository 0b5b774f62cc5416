"""Mutated models: only the project's own errors come out, and soon."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper

from frontends.onnx import import_model
from frontends.onnx.model.light_models import load_light
from poly.errors import FarkasError, ModelError
from tests.frontends.onnx.onnx_support import floats, model_of, single

SECONDS = 10.0


def seeds() -> list[onnx.ModelProto]:
    """Small models over many operators."""
    x = {"x": floats(1, 4, 6, 6)}
    vector = np.array([1, -1], np.int64)
    models = [
        single("Conv", x | {"w": floats(4, 2, 3, 3)}, group=2, pads=[1, 1, 1, 1]),
        single("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        single("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, opset=11),
        single("Gemm", {"a": floats(3, 4), "b": floats(4, 5)}, alpha=0.5),
        single("MatMul", {"a": floats(2, 3, 4), "b": floats(4, 5)}),
        single("Softmax", x, axis=1),
        single("Reshape", x, constants={"s": vector}),
        single("Slice", x, constants={"s": vector[:1], "e": vector[1:], "a": vector[:1]}),
        single("Concat", {"a": floats(2, 3), "b": floats(2, 4)}, axis=1),
        single("Split", x, axis=1, outputs=2, opset=11),
        single("Pad", x, constants={"p": np.array([0, 0, 1, 1] * 2)}, mode="reflect"),
        single("Gather", x, constants={"i": vector}, axis=2),
        single("ReduceMean", x, axes=[1, 2], opset=12),
        single("Einsum", {"a": floats(3, 4), "b": floats(4, 5)}, equation="ij,jk->ik"),
        single("Resize", x, constants={"s": np.array([1, 1, 2, 2.5], np.float32)},
               order=["x", "", "s"]),
        single("LRN", x, size=3),
        single("Cast", x, to=7),
        single("Range", {}, constants={"a": np.array(1), "b": np.array(9), "c": np.array(2)}),
        single("ConstantOfShape", {}, constants={"s": np.array([2, 3])}),
        single("Tile", x, constants={"r": np.array([1, 2, 1, 1])}),
        single("ConvTranspose", x | {"w": floats(4, 2, 3, 3)}, strides=[2, 2]),
        single("BatchNormalization", {"x": floats(2, 3, 4), **{k: floats(3) for k in "sbmv"}}),
    ]  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "m"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    constants = {"i": np.array([0, 1]), "m": np.array([-1])}
    models.append(model_of(nodes, x, ["y"], constants))
    return models


def attempt(source: onnx.ModelProto | bytes) -> str:
    """Import something broken: the kind of outcome, which must come soon."""
    start = time.monotonic()
    try:
        import_model(source)
        return "imported"
    except FarkasError as error:
        assert isinstance(error, ModelError), error
        assert "defect of Farkas" not in str(error), error
        return type(error).__name__
    finally:
        assert time.monotonic() - start < SECONDS


@pytest.mark.parametrize("number", range(23))
def test_mutated_bytes(number):
    rng = random.Random(number)
    data = seeds()[number].SerializeToString()
    outcomes = set()
    for _ in range(25):
        broken = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 5))):
            position = rng.randrange(len(broken))
            match rng.randrange(4):
                case 0:
                    broken[position] = rng.randrange(256)
                case 1:
                    broken[position] ^= 1 << rng.randrange(8)
                case 2:
                    del broken[position : position + rng.randrange(1, 9)]
                case 3:
                    broken[position:position] = rng.randbytes(rng.randrange(1, 9))
        outcomes.add(attempt(bytes(broken)))
    assert "ModelError" in outcomes


NUMBERS = [-(2**63), -(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 7, 64, 2**16, 2**31, 2**40, 2**63 - 1]
REALS = [0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan"), 0.5, 3.0]


def _attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    node = rng.choice(model.graph.node)
    if not node.attribute:
        return
    attribute = rng.choice(node.attribute)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
        if rng.random() < 0.3:
            attribute.ints.append(rng.choice(NUMBERS))
    attribute.i = rng.choice(NUMBERS)
    attribute.f = rng.choice(REALS)
    if attribute.s:
        attribute.s = rng.choice([b"", b"\xff\xfe", b"ij,ij->", b"SAME_UPPER", b"edge", b"->" * 50])


def _dims(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = model.graph
    values = [*graph.input, *graph.output]
    dims = rng.choice(values).type.tensor_type.shape.dim
    if dims:
        rng.choice(dims).dim_value = rng.choice(NUMBERS)
    if rng.random() < 0.2:
        dims.add().dim_value = rng.choice(NUMBERS)


def _tensor(rng: random.Random, model: onnx.ModelProto) -> None:
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    match rng.randrange(4):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        case 1:
            tensor.data_type = rng.randrange(-1, 30)
        case 2:
            tensor.raw_data = np.array(
                [rng.choice(NUMBERS) for _ in range(len(tensor.raw_data) // 8)], np.int64
            ).tobytes()
        case _:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]


def _wires(rng: random.Random, model: onnx.ModelProto) -> None:
    node = rng.choice(model.graph.node)
    names = ["", "x", "nowhere", *(o for n in model.graph.node for o in n.output)]
    names += [t.name for t in model.graph.initializer]
    wires = node.input if rng.random() < 0.7 else node.output
    if not wires or rng.random() < 0.2:
        wires.append(rng.choice(names))
    else:
        wires[rng.randrange(len(wires))] = rng.choice(names)


def _operator(rng: random.Random, model: onnx.ModelProto) -> None:
    node = rng.choice(model.graph.node)
    node.op_type = rng.choice([s.name for s in onnx.defs.get_all_schemas()])


def _opset(rng: random.Random, model: onnx.ModelProto) -> None:
    model.opset_import[0].version = rng.choice([*range(1, 30), 10**9, -1])


def _types(rng: random.Random, model: onnx.ModelProto) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    value.type.tensor_type.elem_type = rng.randrange(-1, 30)


MUTATIONS: list[Callable[[random.Random, onnx.ModelProto], None]] = [
    _attribute, _dims, _tensor, _wires, _operator, _opset, _types,
]  # fmt: skip


@pytest.mark.parametrize("number", range(23))
def test_mutated_structure(number):
    rng = random.Random(1000 + number)
    seed = seeds()[number]
    for _ in range(40):
        model = onnx.ModelProto()
        model.CopyFrom(seed)
        for _ in range(rng.choice((1, 1, 2, 3))):
            rng.choice(MUTATIONS)(rng, model)
        if rng.random() < 0.7:  # without claims, mistakes reach the operators
            for output in model.graph.output:
                output.type.tensor_type.ClearField("shape")
        attempt(model)


def test_mutated_network():
    rng = random.Random(5)
    data = load_light("shufflenet")[0].read_bytes()
    for _ in range(20):
        broken = bytearray(data)
        for _ in range(3):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        attempt(bytes(broken))
