"""`export_onnx`: an ONNX network as C that needs nothing of Farkas."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from farkas.networks.export_network import export_network

if TYPE_CHECKING:
    from farkas.export.exported import Exported
    from runtime.common.compile_report import Progress


def export_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    values: Mapping[str, Any] | None = None,
    examples: Mapping[str, int] | None = None,
    to: str = "c",
    isa: str | Sequence[str] | None = None,
    threads: str = "none",
    name: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    selftest: bool | Mapping[str, Any] = False,
    version: str | None = None,
    cc: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write an ONNX network as C, a library, a wheel or WebAssembly, which need nothing of Farkas.

    >>> fk.export_onnx("resnet50.onnx", "resnet50.c", isa="aarch64")
    >>> fk.export_onnx("resnet50.onnx", "dist", to="wheel")

    Parameters
    ----------
    source : the path of a file, its bytes, or an ``onnx.ModelProto``
    path : of the file; its header is beside it.  For a wheel, the folder
    to : ``"c"``, ``"shared"``, ``"static"``, ``"wheel"`` (a package with a ``run`` for numpy
        arrays) or ``"wasm"`` (with JavaScript beside it)
    shapes : sizes of dynamic dimensions, as for `compile_onnx`; those that are not given are
        arguments of each run
    examples : what such sizes may be, by name, at least 2; the code is for sizes that compare like
        these, which the header says
    values : arrays for inputs that decide about shapes, by name; a run with others is an error
    isa : the instruction set: ``generic``, ``x86-64-v2``, ``x86-64-v3`` (the default),
        ``x86-64-v4``, ``aarch64``, ``rv64gcv`` or ``wasm``, with extensions such as
        ``+avx512_vnni``; or several, of which a run takes the best that the machine has
    threads : ``"none"``; ``"pthread"``, a team that the caller starts; or ``"openmp"``, a number
    name : prefix of the names in C, and name of the package; by default the name of the file
    weights : a file for the weights, whose bytes are then passed to each run
    selftest : whether to write a program ``NAME_test.c`` as well, which compares with what Farkas
        computes; or arrays for inputs, by name, else made up
    version : of a wheel, by default 0.1.0
    cc : the compiler of libraries, a path or ``"zig"``; the default is the one that is needed
    progress : called with (stage, steps done, steps in all, current item)

    Raises
    ------
    ModelError, UnsupportedModelError : as `compile_onnx`; parts that numpy computes, or that only a
        run knows.
    ArgumentError : `shapes` or `examples` that do not match the model; options that `to` lacks.
    ToolchainError : there is no compiler for a library, or it failed.
    FileError : a file cannot be written; then none of them is.
    """

    run = partial(_computed, source, shapes)
    return export_network(
        source, path, run, weights=weights, selftest=selftest, name=name, to=to, version=version,
        cc=cc, isa=isa, shapes=shapes, values=values, examples=examples, threads=threads,
        progress=progress,
    )  # fmt: skip


def _computed(source: Any, shapes: Any, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Farkas computes on this machine."""
    from farkas.networks.compile_onnx import compile_onnx

    return compile_onnx(source, shapes=shapes, threads=1).run(arrays)
