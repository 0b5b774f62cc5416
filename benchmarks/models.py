"""Suite E: whole networks at batch 1.

Nine come with the onnx package, which has no weights for them: they get seeded random ones that
keep values in scale.  MobileNetV2 and a 12-layer BERT-base encoder at sequence length 128 are
built here (`benchmarks.networks`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from benchmarks.kernel import ELEMENT, Array, aligned
from benchmarks.networks import bert, mobilenetv2
from benchmarks.task import Task
from benchmarks.translate.network import value_shapes
from frontends.onnx.model.light_models import load_light, randomised

#: Operations of convolutions and products only, a multiply-add as two, taps on padding included.
GIGAFLOPS = {
    "bert_base": 22.35,
    "bvlc_alexnet": 1.31,
    "densenet121": 5.67,
    "inception_v1": 2.86,
    "inception_v2": 4.04,
    "mobilenetv2": 0.60,
    "resnet50": 8.18,
    "shufflenet": 0.25,
    "squeezenet": 0.70,
    "vgg19": 39.26,
    "zfnet512": 2.96,
}

_OWN: dict[str, Callable[[], ModelProto]] = {"bert_base": bert, "mobilenetv2": mobilenetv2}


def names() -> tuple[str, ...]:
    """Names of the networks."""
    return tuple(GIGAFLOPS)


def size(name: str) -> tuple[int, int]:
    """Floating-point operations, and bytes, see `count`."""
    return count(bare_model(name))


def bare_model(name: str) -> ModelProto:
    """A network as its source has it: light ones without their weights."""
    return _OWN[name]() if name in _OWN else onnx.load(load_light(name)[0])


def write(name: str, folder: Path) -> Path:
    """Write the file of a network with its weights, if it does not exist; returns its path."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        model = bare_model(name)
        if name not in _OWN:
            model = randomised(model, seed=0)
        part = path.with_suffix(".part")
        onnx.save(model, part)
        part.rename(path)
    return path


def task(name: str, path: Path) -> Task:
    """The task of a network whose file has been written."""
    graph = onnx.load(path).graph
    stored = {t.name for t in graph.initializer}
    draw = np.random.default_rng(0)
    inputs: dict[str, Array] = {}
    for info in graph.input:
        if info.name not in stored:
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            inputs[info.name] = aligned(draw.uniform(0, 1, shape).astype(np.float32))
    return Task(name, "E", path, inputs, tuple(o.name for o in graph.output))


def count(model: ModelProto) -> tuple[int, int]:
    """Floating-point operations of a network, and the bytes of its inputs, weights and outputs.

    Only convolutions and products are counted; bytes are those of their weights, and of the
    network's inputs and outputs.
    """
    shapes = value_shapes(model)
    flops, weights = 0, set()
    for node in model.graph.node:
        if node.op_type == "Conv":
            flops += 2 * prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
        elif node.op_type == "MatMul":
            flops += 2 * prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        elif node.op_type == "Gemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            inner = shapes[node.input[0]][0 if transposed else -1]
            flops += 2 * prod(shapes[node.output[0]]) * inner
        else:
            continue
        weights.add(node.input[1])
    made = {name for node in model.graph.node for name in node.output}
    filled = {n.output[0] for n in model.graph.node if n.op_type == "ConstantOfShape"}
    constant = [n for n in weights if n not in made or n in filled]
    stored = {t.name for t in model.graph.initializer}
    ends = [i.name for i in model.graph.input if i.name not in stored]
    ends += [o.name for o in model.graph.output]
    return flops, ELEMENT * sum(prod(shapes[n]) for n in [*constant, *ends])
