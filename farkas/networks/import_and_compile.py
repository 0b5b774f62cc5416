"""Import and compile an ONNX network, and list what cannot be compiled yet."""

from __future__ import annotations

import os
import time
from dataclasses import replace

from farkas.networks.executable import WholeGraph
from farkas.networks.network import Network, Origin
from farkas.networks.network_cache import Content, files_of, keeper_of
from farkas.networks.stages import Stages
from frontends.onnx import (
    DynamicShapeError,
    given_inputs,
    import_stage,
    never_supported,
)
from poly.errors import UnsupportedModelError
from runtime.network.cpu_model import CpuModel


def import_and_compile(origin: Origin, content: Content | None) -> Network:
    """Compile a network that `compile_onnx` has not found in the cache.

    content : its identity in the cache, None to not store it
    """
    target, shapes, progress = origin.target, origin.shapes, origin.progress
    tell = progress or (lambda stage, done, total, what: None)
    start = time.perf_counter()
    is_file = isinstance(origin.model, (str, os.PathLike))
    tell("import", 0, 1, os.path.basename(os.fspath(origin.model)) if is_file else "the model")
    # A file that changes until here is compiled as it is now, and not kept.
    opened = replace(origin, digest=None).open()
    keeper = None if content is None else keeper_of(content, opened)
    origin = replace(origin, files=keeper.files if keeper else files_of(origin, opened))
    try:
        given = given_inputs(opened, shapes)
    except DynamicShapeError:
        found = never_supported(opened, shapes)
        if found:
            raise UnsupportedModelError(found) from None
        tell("import", 1, 1, "")
        return Network(origin, Stages.of(origin, opened, keeper=keeper))
    stage = import_stage(opened, given, routines=target.runner.routines)
    tell("import", 1, 1, "")
    if not stage.is_whole:
        return Network(origin, Stages.of(origin, opened, keeper=keeper, first=stage))
    assert stage.graph is not None
    took = time.perf_counter() - start
    model = target.runner.compile(stage.graph, progress)
    laps = [("import", took), *model.report.stages]
    if keeper is not None and isinstance(model, CpuModel):
        start = time.perf_counter()
        key = keeper.store(model)
        if key is not None:
            keeper.record(key)
        laps.append(("store", time.perf_counter() - start))
    model.report = replace(model.report, stages=tuple(laps))
    return Network(origin, WholeGraph(model))
