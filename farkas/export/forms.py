"""The forms in which exported code is written: C, a library, a wheel, or WebAssembly."""

from __future__ import annotations

import os
from pathlib import Path

from farkas.console.files import output_folder
from farkas.export.exported import Exported
from poly.errors import ArgumentError

#: By name: what users get.
FORMS = {
    "c": "a C file and a header",
    "shared": "a shared library and a header",
    "static": "a static library and a header",
    "wheel": "a Python package that needs numpy alone",
    "wasm": "a WebAssembly module, and JavaScript that runs it",
}

#: How names of what is written end, where that is always the same.
_SUFFIXES = {"c": ".c", "wasm": ".wasm"}


def check_form(
    form: str,
    path: str | os.PathLike[str],
    *,
    selftest: bool = False,
    weights: bool = False,
    version: bool = False,
    cc: bool = False,
) -> None:
    """Check that a form can be written with some options.

    Raises
    ------
    ArgumentError : there is no such form, or it has none of these options, or the name of what is
        written is that of something else.
    """
    if form not in FORMS:
        raise ArgumentError(f"to is {form!r}; there are {', '.join(FORMS)}")
    if selftest and form != "c":
        raise ArgumentError(f"a selftest is a C program: it is written for 'c', not for {form!r}")
    if weights and form == "wheel":
        raise ArgumentError("a wheel has its weights inside: leave weights out")
    if version and form != "wheel":
        raise ArgumentError(f"a version is for a wheel, not for {form!r}")
    if cc and form == "c":
        raise ArgumentError("C is not compiled: cc is for libraries, wheels and WebAssembly")
    suffix, ends = Path(path).suffix, _SUFFIXES.get(form)
    if ends not in (None, suffix):
        raise ArgumentError(f"{os.fspath(path)} is {FORMS[form]}: end its name in {ends}")
    if form == "wheel" and suffix == ".whl":
        raise ArgumentError(f"{os.fspath(path)} is the folder of a wheel, which names itself")


def write_form(
    made: Exported,
    form: str,
    path: Path,
    weights: Path | None = None,
    version: str | None = None,
    cc: str | None = None,
) -> Exported:
    """Write what was exported in a form other than C, all of its files or none.

    path : of the library or of the WebAssembly module; for a wheel, its folder
    version, cc : see `farkas.export_onnx`

    Raises
    ------
    ArgumentError : a wheel cannot have this name, or version.
    ToolchainError : no compiler, or it fails.
    FileError : a file cannot be written.
    """
    from farkas.export import build_library, build_wasm, build_wheel
    from farkas.export.compilers import find_compiler

    compiler = find_compiler([section.isa for section in made.module.sections], cc)
    if form == "wheel":
        name, data = build_wheel.wheel(made, compiler, version or build_wheel.VERSION)
        with output_folder(path) as folder:
            return made.written({folder / name: data})
    if form == "wasm":
        files: dict[str | Path, bytes] = {path: build_wasm.wasm(made, compiler)}
        beside = os.path.relpath(weights, path.parent) if weights and made.weights else ""
        text = build_wasm.javascript(made, path.name, beside)
        files[path.with_suffix(".mjs")] = text.encode()
        return made.written(files if weights is None else {**files, weights: made.weights})
    if form == "static":
        data = build_library.static_library(made, compiler)
    else:
        data = build_library.shared_library(made, compiler, path.name)
    return made.written({path: data, **made.beside(path, weights)})
