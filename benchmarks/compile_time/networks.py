"""The networks of suite compile: those of suites E and public, and two of open sizes built here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from benchmarks import models, public
from benchmarks.kernel import Array
from benchmarks.networks import Builder, bert

#: Runs in which the sizes of `inputs` differ, in order.
Runs = tuple[dict[str, Array], ...]


@dataclass(frozen=True)
class Network:
    """A network, and the inputs of its first runs: one for fixed sizes, two for open ones.

    write : writes its file to a folder, and returns its path
    """

    name: str
    is_open: bool
    write: Callable[[Path], Path]
    runs: Callable[[Path], Runs]


def networks() -> tuple[Network, ...]:
    """All networks, those of fixed sizes first."""
    fixed = [
        Network(name, False, partial(models.write, name), partial(_fixed_runs, name))
        for name in models.names()
    ]
    packaged = [
        Network(name, True, partial(public.write, f"{name} 0"), partial(_public_runs, name))
        for name in public.MODELS
    ]
    built = [
        Network("detector", True, partial(_saved, "detector", detector), _detector_runs),
        Network("encoder", True, partial(_saved, "encoder", encoder), _encoder_runs),
    ]
    return (*fixed, *packaged, *built)


def _fixed_runs(name: str, path: Path) -> Runs:
    return (models.task(name, path).inputs,)


def _public_runs(name: str, path: Path) -> Runs:
    model = public.MODELS[name]
    return tuple(model.make(np.random.default_rng(5), size) for size in model.sizes[:2])


def _saved(name: str, make: Callable[[], ModelProto], folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    if not path.exists():
        onnx.save(make(), path)
    return path


# --- open sizes ----------------------------------------------------------------------------------


def detector(seed: int = 0, widths: tuple[int, ...] = (16, 32, 64, 128)) -> ModelProto:
    """Like a one-stage detector: images [N, 3, H, W], two scales of 16 maps each.

    Each step down is a convolution with stride 2 and a residual block of two, with SiLU; the
    coarsest map is enlarged and joined to the one before it.
    """
    build = Builder(seed)

    def conv(x: str, c: int, k: int, r: int, stride: int = 1, active: bool = True) -> str:
        w = build.normal((k, c, r, r), (2 / (c * r * r)) ** 0.5)
        y = build.node(
            "Conv", [x, w, build.normal((k,), 0.1)], kernel_shape=[r, r], strides=[stride] * 2,
            pads=[r // 2] * 4,
        )  # fmt: skip
        return build.node("Mul", [y, build.node("Sigmoid", [y])]) if active else y

    x, channels, maps = "X", 3, []
    for width in widths:
        x = conv(x, channels, width, 3, stride=2)
        inner = conv(conv(x, width, width // 2, 1), width // 2, width, 3)
        x = build.node("Add", [x, inner])
        channels = width
        maps.append(x)
    scales = build.constant(np.array([1, 1, 2, 2], np.float32))
    large = build.node(
        "Resize", [x, "", scales], mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )  # fmt: skip
    joined = build.node("Concat", [large, maps[-2]], axis=1)
    fine = conv(joined, widths[-1] + widths[-2], widths[-2], 3)
    outputs = []
    for y, width in ((fine, widths[-2]), (x, widths[-1])):
        outputs.append(
            build.node("Sigmoid", [conv(conv(y, width, width, 3), width, 16, 1, 1, False)])
        )
    return _open_model("detector", build, {"X": ["N", 3, "H", "W"]}, outputs)


def encoder(layers: int = 2, hidden: int = 256, heads: int = 4, inner: int = 1024) -> ModelProto:
    """The encoder of suite E with fewer layers, for sequences [1, L, hidden] of any length."""
    model = bert(0, layers, hidden, heads, inner, length=0)
    weights = {t.name: t for t in model.graph.initializer}
    for tensor in weights.values():
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.int64 and array.size == 4:  # [0, 0, heads, depth] keeps the length
            array = np.array([0, 0, *array[2:]], np.int64)
        elif array.dtype == np.int64:
            array = np.array([0, 0, hidden], np.int64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.shape.dim[1].dim_param = "L"
    return model


def _open_model(
    name: str, build: Builder, inputs: dict[str, list[str | int]], outputs: list[str]
) -> ModelProto:
    info = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    weights = [numpy_helper.from_array(a, n) for n, a in build.weights.items()]
    graph = helper.make_graph(
        build.nodes,
        name,
        [info(n, shape=s) for n, s in inputs.items()],
        [info(n, shape=[None] * 4) for n in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _detector_runs(path: Path) -> Runs:
    draw = np.random.default_rng(1)
    return tuple({"X": draw.random((1, 3, h, w), np.float32)} for h, w in ((64, 64), (96, 128)))


def _encoder_runs(path: Path) -> Runs:
    draw = np.random.default_rng(1)
    return tuple({"X": draw.random((1, length, 256), np.float32)} for length in (24, 40))
