"""`compile_onnx`: an ONNX network to a function of named arrays.

A network of fixed shapes becomes a `Model`, compiled as a whole; any other a `StagedModel`, which
is compiled for the shapes that come.  Both are called in the same way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from farkas.build import CacheLike, CompilerLike, target_of
from farkas.network import Model, Origin
from farkas.staged import StagedModel, with_import
from frontends.onnx import DynamicShapeError, given_inputs, import_stage, unknown_operators
from poly.errors import UnsupportedModelError
from runtime.arguments import check_threads
from runtime.model import Progress, Report, compile_graph

__all__ = ["Model", "Progress", "Report", "StagedModel", "compile_onnx"]


def compile_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    *,
    threads: int | None = None,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    cc: CompilerLike = None,
    cache: CacheLike = None,
    progress: Progress | None = None,
) -> Model | StagedModel:
    """Compile an ONNX network.

    >>> model = fk.compile_onnx("resnet50.onnx")
    >>> outputs = model.run({"data": image})

    Parameters
    ----------
    source : the path of a file, its bytes, or an ``onnx.ModelProto`` (which is not changed)
    threads : threads of a run that does not say; default is every processor.  Such a run uses one
        if the network does less than starting threads takes
    shapes : sizes of dynamic dimensions: the shape of an input by the input's name, or the size
        of a dimension by the dimension's name.  Without them, the model is compiled when arrays
        come, once for each combination of shapes
    cc : the C compiler, by path; default is ``$CC``, then gcc, then clang
    cache : directory of compiled models; default is ``$FARKAS_CACHE_DIR``, then the user's
    progress : called with (stage, steps done, steps in all, what is being worked on)

    Raises
    ------
    ModelError : a file that cannot be read, or is broken, hostile or inconsistent.
    UnsupportedModelError : nodes that cannot be compiled; the error lists all of them.
    ArgumentError : `threads` or `shapes` that do not fit.
    ToolchainError : no C compiler, or it failed.
    CacheError : the cache cannot be used.
    """
    if threads is not None:
        check_threads(threads)
    return _compiled(
        Origin(_compiled, source, target_of(cc, cache, threads), dict(shapes or {}), progress)
    )


def _compiled(origin: Origin) -> Model | StagedModel:
    """Compile what an origin describes; raises as `compile_onnx`."""
    target, shapes, progress = origin.target, origin.shapes, origin.progress
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
        return StagedModel(origin, opened, opened.input_ports(shapes))
    stage = import_stage(opened, given)
    tell("import", 1, 1, "")
    if not stage.is_whole:
        return StagedModel(origin, opened, opened.input_ports(shapes), first=stage)
    assert stage.graph is not None
    took = time.perf_counter() - start
    model = compile_graph(
        stage.graph,
        toolchain=target.toolchain,
        cache=target.cache,
        threads=target.threads,
        progress=progress,
        kind=Model,
    )
    assert isinstance(model, Model), "all shapes are given"
    model.origin = origin
    with_import(model, took)
    return model
