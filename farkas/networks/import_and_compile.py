"""From an ONNX network to a model: import and compile, and what cannot be compiled yet."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from farkas.networks.base import Model, Origin
from farkas.networks.network_cache import Content, remember
from farkas.networks.staged import StagedModel, with_import
from farkas.targets.cpu import CpuRunner
from frontends.onnx import (
    DynamicShapeError,
    given_inputs,
    import_stage,
    unknown_operators,
)
from poly.errors import UnsupportedModelError

if TYPE_CHECKING:
    from farkas.networks.gpu_model import DeviceModel
    from farkas.targets.base import Target


def network_classes(
    target: Target,
) -> tuple[type[Model] | type[DeviceModel], type[StagedModel]]:
    """What a network of fixed shapes becomes, and any other."""
    if isinstance(target.runner, CpuRunner):
        return Model, StagedModel
    from farkas.networks.gpu_model import DeviceModel
    from farkas.networks.staged_gpu import StagedDeviceModel

    return DeviceModel, StagedDeviceModel


def import_and_compile(
    origin: Origin, content: Content | None
) -> Model | DeviceModel | StagedModel:
    """What `compile_onnx` does with a network that it has not compiled before.

    content : by which it is remembered, unless None
    """
    target, shapes, progress = origin.target, origin.shapes, origin.progress
    whole, staged = network_classes(target)
    tell = progress or (lambda stage, done, total, what: None)
    start = time.perf_counter()
    is_file = isinstance(origin.model, (str, os.PathLike))
    tell("import", 0, 1, os.path.basename(os.fspath(origin.model)) if is_file else "the model")
    opened = origin.open()
    try:
        given = given_inputs(opened, shapes)
    except DynamicShapeError:
        found = unknown_operators(opened)
        if found:
            raise UnsupportedModelError(found) from None
        tell("import", 1, 1, "")
        return staged(origin, opened, opened.input_ports(shapes))
    stage = import_stage(opened, given)
    tell("import", 1, 1, "")
    if not stage.is_whole:
        return staged(origin, opened, opened.input_ports(shapes), first=stage)
    assert stage.graph is not None
    took = time.perf_counter() - start
    model: Model | DeviceModel = target.runner.compile(stage.graph, progress, whole)
    assert isinstance(model, whole), "all shapes are given"
    model.origin = origin
    with_import(model, took)
    if content is not None and isinstance(model, Model):
        start = time.perf_counter()
        remember(model, content, opened.external_files)
        stages = (*model.report.stages, ("store", time.perf_counter() - start))
        model.report = replace(model.report, stages=stages)
    return model
