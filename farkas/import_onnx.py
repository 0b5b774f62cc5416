"""From an ONNX network to a model: import and compile, and what cannot be compiled yet."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from farkas.recall import Origin, remember
from farkas.staged import StagedModel, with_import
from farkas.target import Target
from frontends.onnx import (
    DynamicShapeError,
    given_inputs,
    import_stage,
    open_model,
    unknown_operators,
)
from poly.errors import UnsupportedModelError
from runtime.compile_graph import compile_graph
from runtime.model import Model
from runtime.report import Progress


def import_and_compile(
    source: str | os.PathLike[str] | bytes | Any,
    shapes: Mapping[str, Sequence[int] | int] | None,
    target: Target,
    origin: Origin | None,
    progress: Progress | None,
) -> Model | StagedModel:
    """What `compile_onnx` does with a network that it has not compiled before.

    origin : by which it is remembered, unless None
    """
    tell = progress or (lambda stage, done, total, what: None)
    start = time.perf_counter()
    shown = os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model"
    tell("import", 0, 1, os.path.basename(shown))
    opened = open_model(source)
    try:
        given = given_inputs(opened, shapes)
    except DynamicShapeError:
        found = unknown_operators(opened)
        if found:
            raise UnsupportedModelError(found) from None
        tell("import", 1, 1, "")
        return StagedModel(opened, opened.input_ports(shapes or {}), target, progress)
    stage = import_stage(opened, given)
    tell("import", 1, 1, "")
    if not stage.is_whole:
        ports = opened.input_ports(shapes or {})
        return StagedModel(opened, ports, target, progress, first=stage)
    assert stage.graph is not None
    took = time.perf_counter() - start
    model = compile_graph(
        stage.graph,
        toolchain=target.toolchain,
        cache=target.cache,
        threads=target.threads,
        progress=progress,
    )
    assert isinstance(model, Model), "all shapes are given"
    with_import(model, took)
    if origin is not None:
        start = time.perf_counter()
        remember(model, origin, target, opened.external_files)
        stages = (*model.report.stages, ("store", time.perf_counter() - start))
        model.report = replace(model.report, stages=stages)
    return model
