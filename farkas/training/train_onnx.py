"""`train_onnx`: compile a training step of an ONNX network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farkas.networks.given_shapes import plain_shapes
from farkas.targets.base import Target
from farkas.targets.find_target import CacheLike, CompilerLike, target_of
from farkas.training.step_graph import StepGraph, step_graph
from farkas.training.trainer import CompiledStep, Network, Trainer
from farkas.training.training import Training
from poly.errors import ArgumentError, GradientError
from poly.ir.graph import Graph
from runtime.common.arguments import check_threads
from runtime.common.compile_report import Progress

if TYPE_CHECKING:
    from frontends.onnx import Source


def train_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    training: Training,
    *,
    threads: int | None = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    cc: CompilerLike = None,
    cache: CacheLike = None,
    progress: Progress | None = None,
    target: str | Target = "cpu",
) -> Trainer:
    """Compile a training step of an ONNX network: the loss, its gradients, and what weights become.

    >>> trainer = fk.train_onnx("net.onnx", fk.Training("cross_entropy", fk.Adam(1e-3)),
    ...                         shapes={"batch": 64})
    >>> loss = trainer.step({"image": images, "labels": labels})

    Parameters
    ----------
    source : the path of a file, its bytes, or an ``onnx.ModelProto`` (which is not changed)
    training : what it is trained for, and how
    shapes : sizes of dynamic dimensions, see `compile_onnx`.  Where some are left open, the step is
        compiled for each shape of a batch when the first one comes
    threads, cc, cache, progress, target : as for `compile_onnx`

    Raises
    ------
    GradientError : a node on the way to a weight that has no gradient.
    ModelError, UnsupportedModelError, ToolchainError, CacheError : see `compile_onnx`.
    ArgumentError : a loss, a rule or names that do not fit the network.
    """
    from frontends.onnx import open_model

    if threads is not None:
        check_threads(threads)
    where = target_of(cc, cache, threads, target)
    where.runner.prepare()
    opened = open_model(source)
    floats = {n: a for n, a in opened.weights().items() if a.size}
    names = _chosen(floats, training)
    trained = opened.training(names, training.seed)
    fixed = plain_shapes(shapes)

    def step_at(of_batch: Mapping[str, tuple[int, ...]]) -> CompiledStep:
        graph = whole_graph(trained, {**fixed, **of_batch})
        made = _step_of(graph, training, names, trained.running)
        models = tuple(where.runner.compile(p.graph, progress) for p in made.parts)
        return CompiledStep(made, models)

    inputs = tuple(i.name for i in opened.inputs if i.name not in opened.initializers)
    is_open = _is_open(trained, fixed)
    network = Network(inputs, floats, step_at, opened.file_with, trained.step, is_open)
    return Trainer(training, network)


def _step_of(
    graph: Graph, training: Training, names: Sequence[str], running: Mapping[str, str]
) -> StepGraph:
    """The graphs of a step for an imported network.

    running : the outputs that statistics become, by their initializers
    """
    values = {graph.label(v): v for v in (*graph.inputs, *graph.outputs)}
    weights = {n: values[n] for n in names if n in values and n not in running}
    return step_graph(graph, training, weights, {n: values[o] for n, o in running.items()})


def _is_open(source: Source, shapes: Mapping[str, tuple[int, ...] | int]) -> bool:
    """Whether the network leaves shapes of inputs open."""
    from frontends.onnx import DynamicShapeError, given_inputs

    try:
        given_inputs(source, shapes)
    except DynamicShapeError:
        return True
    return False


def whole_graph(source: Source, shapes: Mapping[str, tuple[int, ...] | int]) -> Graph:
    """The graph of a network whose sizes are known.

    Raises
    ------
    GradientError : a node that is computed apart from the graph.
    ArgumentError : shapes depend on elements.
    ModelError, UnsupportedModelError : see `compile_onnx`.
    """
    from frontends.onnx import given_inputs, import_stage

    stage = import_stage(source, given_inputs(source, shapes))
    if stage.opaque:
        raise GradientError(f"{stage.opaque[0].origin} has no gradient: it is no comprehension")
    if stage.graph is None or not stage.is_whole:
        raise ArgumentError("the network has shapes that depend on elements, and cannot be trained")
    return stage.graph


def _chosen(floats: Mapping[str, Any], training: Training) -> list[str]:
    if training.of is None:
        return list(floats)
    for name in training.of:
        if name not in floats:
            raise ArgumentError(
                f"there is no initializer {name!r} of floats; there are {', '.join(floats)}"
            )
    return list(training.of)
