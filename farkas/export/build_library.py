"""Exported C as a shared or static library, with the weights inside."""

from __future__ import annotations

import tempfile
from pathlib import Path

from codegen.c.module_text import code_text
from codegen.c.weights_text import ALIGNMENT
from farkas.export.compilers import LibraryCompiler
from farkas.export.exported import Exported
from poly.errors import ToolchainError

_FLAGS = ("-std=c11", "-O2", "-g0", "-fPIC", "-fwrapv", "-Wno-psabi")
#: What a shared library is linked with: nothing that a machine with a C library may lack.
_LINKED = ("-static-libgcc", "-Wl,-s", "-Wl,--build-id=none", "-lm")
#: The weights are a file that the assembler reads: as a string they take a compiler a second for
#: each few megabytes.
_INSIDE = """\
__asm__(".pushsection .rodata.fk_weights, \\"a\\"\\n"
        ".balign {alignment}\\n"
        "fk_{name}_weights: .incbin \\"weights.bin\\"\\n"
        ".popsection");
extern const unsigned char weights[{count}]
  __asm__("fk_{name}_weights") __attribute__((visibility("hidden")));
"""


def shared_library(made: Exported, compiler: LibraryCompiler, name: str, more: str = "") -> bytes:
    """A shared library.

    name : by which programs that are linked with it look for it; more : other C, to be in it

    Raises
    ------
    ToolchainError : the compiler fails.
    """
    with tempfile.TemporaryDirectory(prefix="farkas-") as folder:
        sources = _sources(made, Path(folder), more)
        words = (*_FLAGS, *made.flags, *_threads(made), "-shared", *sources, "-o", "library")
        compiler.compile((*words, f"-Wl,-soname,{name}", *_LINKED), Path(folder))
        return _read(Path(folder, "library"))


def static_library(made: Exported, compiler: LibraryCompiler) -> bytes:
    """A static library.

    Raises
    ------
    ToolchainError : the compiler fails, or there is no ``ar``.
    """
    with tempfile.TemporaryDirectory(prefix="farkas-") as folder:
        sources = _sources(made, Path(folder), "")
        words = (*_FLAGS, *made.flags, *_threads(made), "-c", *sources, "-o", f"{made.name}.o")
        compiler.compile(words, Path(folder))
        compiler.archive("library", [f"{made.name}.o"], Path(folder))
        return _read(Path(folder, "library"))


def _threads(made: Exported) -> tuple[str, ...]:
    """The option for threads, if there are any."""
    if made.module.has_openmp:
        return ("-fopenmp",)
    return ("-pthread",) if made.module.has_team else ()


def _sources(made: Exported, folder: Path, more: str) -> list[str]:
    """The names of the files to compile, which are written to a folder."""
    module, files = made.module, {f"{made.name}.h": made.header.encode()}
    inside = bool(module.weights) and not module.is_separate
    count = len(module.weights)
    declared = _INSIDE.format(alignment=ALIGNMENT, name=made.name, count=count) if inside else ""
    files[f"{made.name}.c"] = code_text(module, declared).encode()
    if inside:
        files["weights.bin"] = module.weights
    if more:
        files["in-addition.c"] = more.encode()  # no module has this name
    try:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
    except OSError as error:
        raise ToolchainError(f"cannot write to {folder}: {error.strerror or error}") from None
    return [name for name in files if name.endswith(".c")]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ToolchainError(f"the compiler has made nothing: {error.strerror or error}") from None
