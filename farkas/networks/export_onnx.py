"""`export_onnx`: an ONNX network as C that needs nothing of Farkas."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farkas.networks.export_network import export_network
from poly.machine.isa import DEFAULT_ISA

if TYPE_CHECKING:
    from farkas.export.exported import Exported
    from runtime.common.compile_report import Progress


def export_onnx(
    source: str | os.PathLike[str] | bytes | Any,
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    values: Mapping[str, Any] | None = None,
    isa: str = DEFAULT_ISA,
    threads: str = "none",
    name: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    selftest: bool | Mapping[str, Any] = False,
    progress: Progress | None = None,
) -> Exported:
    """Write an ONNX network as a C file and a header, which need nothing but the C library.

    >>> fk.export_onnx("resnet50.onnx", "resnet50.c", isa="aarch64")

    The same network gives the same bytes on every machine.

    Parameters
    ----------
    source : the path of a file, its bytes, or an ``onnx.ModelProto``
    path : of the C file; the header is beside it, with the ending ``.h``
    shapes : sizes of dynamic dimensions, as for `compile_onnx`; all have to be given
    values : arrays for inputs that have the same elements in every run, by name: those that decide
        about shapes.  A run that is passed others returns an error
    isa : the instruction set that the code is for: ``generic``, ``x86-64-v2``, ``x86-64-v3``,
        ``x86-64-v4``, ``aarch64`` or ``rv64gcv``, with extensions such as ``+avx512_vnni``
    threads : ``"none"``, one thread; ``"pthread"``, a team of threads of POSIX, which the caller
        starts and passes to runs; or ``"openmp"``, threads of OpenMP, whose number runs are passed
    name : prefix of the names in C; by default the name of the file
    weights : a file for the weights, which then are not in the C file: their bytes are passed to
        each run, from memory that is a multiple of 64
    selftest : whether to write a program ``NAME_test.c`` as well, which runs the code once and
        compares it with what Farkas computes on this machine; or arrays for inputs, by name, which
        are otherwise made up
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

    def run(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        from farkas.networks.compile_onnx import compile_onnx

        return compile_onnx(source, shapes=shapes, threads=1).run(arrays)

    return export_network(
        source, path, run, weights=weights, selftest=selftest, name=name, shapes=shapes,
        values=values, isa=isa, threads=threads, progress=progress,
    )  # fmt: skip
