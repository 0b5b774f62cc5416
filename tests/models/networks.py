"""What the tests of whole networks share: compiling a light model, and measuring it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import farkas as fk
from farkas.cli.demo import relative_error
from frontends.onnx.model.light_models import load_light, randomised
from tests.frontends.onnx.onnx_support import ort_run

Arrays = Mapping[str, np.ndarray]

#: Largest error of an output, relative to its largest magnitude.
TOLERANCE = 1e-3

NAMES = (
    "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 "
    "zfnet512"
).split()


@dataclass(frozen=True)
class Measured:
    """One light model: compiled cold and from the cache, checked by both oracles."""

    name: str
    nodes: int
    kernels: int
    calls: int
    cold: float
    cached: float
    stored_error: float
    random_error: float
    milliseconds: float

    def __str__(self) -> str:
        return (
            f"{self.name:<14}{self.nodes:>6}{self.kernels:>9}{self.calls:>7}{self.cold:>9.1f}"
            f"{self.cached:>10.2f}{self.stored_error:>11.1e}{self.random_error:>11.1e}"
            f"{self.milliseconds:>10.1f}"
        )


HEADING = (
    f"{'network':<14}{'nodes':>6}{'kernels':>9}{'calls':>7}{'cold s':>9}{'cached s':>10}"
    f"{'stored':>11}{'random':>11}{'ms a run':>10}"
)


def measure(name: str, cache: Path) -> Measured:
    """Compile a light model into an empty cache, run it, and do it again from the cache."""
    path, inputs, expected = load_light(name)
    cold, model = _compiled(path, cache)
    assert not model.report.from_cache
    stored_error = relative_error(model.run(inputs), expected)
    cached, again = _compiled(path, cache)
    assert again.report.from_cache
    assert relative_error(again.run(inputs), expected) == stored_error
    random_error = random_weights_error(path, inputs, cache)
    return Measured(
        name,
        len(onnx.load(path).graph.node),
        model.report.kernels,
        model.report.calls,
        cold,
        cached,
        stored_error,
        random_error,
        1e3 * _median_run(model, inputs),
    )


def random_weights_error(path: Path, inputs: Arrays, cache: Path, seed: int = 1) -> float:
    """The error against ONNX Runtime with random weights and random inputs."""
    model = randomised(onnx.load(path), seed)
    draw = np.random.default_rng(seed)
    images = {n: draw.uniform(0, 1, a.shape).astype(a.dtype) for n, a in inputs.items()}
    expected = ort_run(model, images)
    for array in expected.values():
        # Weights that saturate the network would hide mistakes like constant ones do.
        assert np.isfinite(array).all() and len(np.unique(array)) > 0.4 * array.size
    return relative_error(fk.compile_onnx(model, cache=cache).run(images), expected)


def _compiled(path: Path, cache: Path) -> tuple[float, fk.Network]:
    start = time.perf_counter()
    model = fk.compile_onnx(path, cache=cache)
    return time.perf_counter() - start, model


def _median_run(model: fk.Network, inputs: Arrays) -> float:
    times = []
    model.run(inputs)
    for _ in range(5):
        start = time.perf_counter()
        model.run(inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
