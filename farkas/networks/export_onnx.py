"""`export_onnx`: an ONNX network as C that needs nothing of Farkas."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farkas.export.exported import Exported, named_after
from farkas.networks.given_shapes import plain_shapes
from frontends.onnx import (
    DynamicShapeError,
    Source,
    Stage,
    given_inputs,
    import_stage,
    never_supported,
    open_model,
)
from poly.errors import ModelError, UnsupportedModelError
from runtime.common.compile_report import Progress

if TYPE_CHECKING:
    from poly.ir.graph import Graph

#: What exported code is for by default: all processors of x86 since 2015, about.
DEFAULT_ISA = "x86-64-v3"


def export_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    isa: str = DEFAULT_ISA,
    name: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write an ONNX network as a C file and a header, which need nothing but the C library.

    >>> fk.export_onnx("resnet50.onnx", "resnet50.c", isa="aarch64")

    The same network gives the same bytes on every machine.  The C runs on one thread.

    Parameters
    ----------
    source : the path of a file, its bytes, or an ``onnx.ModelProto``
    path : of the C file; the header is beside it, with the ending ``.h``
    shapes : sizes of dynamic dimensions, as for `compile_onnx`; all have to be given
    isa : the instruction set that the code is for: ``generic``, ``x86-64-v2``, ``x86-64-v3``,
        ``x86-64-v4``, ``aarch64`` or ``rv64gcv``, with extensions such as ``+avx512_vnni``
    name : prefix of the names in C; by default the name of the file
    weights : a file for the weights, which then are not in the C file: their bytes are passed to
        each run, from memory that is a multiple of 64
    progress : called with (stage, steps done, steps in all, current item)

    Raises
    ------
    ModelError : a file that cannot be read, or is broken; sizes that are open; a network parts of
        which are computed by numpy, or are known only when it runs.
    UnsupportedModelError : nodes that cannot be compiled; the error lists all.
    ArgumentError : `shapes` that do not match the model; an unknown `isa`; a `name` that is no C
        identifier.
    FileError : a file cannot be written; then none of them is.
    """
    name = name or named_after(path)
    made = exported(
        source, name, shapes=shapes, isa=isa, is_separate=weights is not None, progress=progress
    )
    made.write(Path(path), None if weights is None else Path(weights))
    return made


def exported(
    source: str | os.PathLike[str] | bytes | Any,
    name: str,
    *,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    isa: str = DEFAULT_ISA,
    is_separate: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """What `export_onnx` writes; `is_separate` says whether each run is passed the weights."""
    from farkas.export.graph_module import graph_module
    from poly.machine.isa import find_isa

    chosen = find_isa(isa)
    graph = whole_graph(open_model(source), plain_shapes(shapes or {}))
    return Exported.of(graph_module(graph, name, chosen, is_separate, progress), chosen)


def whole_graph(source: Source, shapes: Mapping[str, tuple[int, ...] | int]) -> Graph:
    """The graph of a model whose sizes are fixed.

    Raises
    ------
    ModelError : sizes that are open, or parts that only a run knows.
    UnsupportedModelError : nodes that cannot be compiled.
    """
    try:
        given = given_inputs(source, shapes)
    except DynamicShapeError as error:
        found = never_supported(source, shapes)
        if found:
            raise UnsupportedModelError(found) from None
        raise ModelError(
            f"{error}; exported code has fixed sizes: give all of them, as in "
            "shapes={'batch': 1} or --shape batch=1"
        ) from None
    stage = import_stage(source, given)
    if not stage.is_whole or stage.graph is None:
        raise ModelError(_why_not_whole(stage))
    return stage.graph


def _why_not_whole(stage: Stage) -> str:
    """What keeps a network from being compiled before it runs."""
    reasons = [f"{call.origin}: numpy computes it, and has no C form" for call in stage.opaque]
    demanded = ", ".join(f"'{name}'" for name in sorted(stage.demands))
    if demanded:
        first = stage.rest[0].node if stage.rest else None
        of = f" of {len(stage.rest)} nodes, the first being {first.op_type}" if first else ""
        reasons.append(
            f"the elements of {demanded} decide about shapes{of}: make them initializers of the "
            "model, if they are the same in every run"
        )
    if not reasons:
        reasons = ["its outputs are not computed by kernels alone"]
    return "\n  ".join(["the network cannot be exported:", *reasons])
