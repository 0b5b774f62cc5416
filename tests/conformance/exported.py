"""The official suite through exported C: each case is exported, compiled alone, loaded and run.

``python -m tests.conformance --export gcc --export clang`` runs it.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farkas.export.exported import Exported
from farkas.networks.export_network import exported
from poly.errors import ModelError, ToolchainError
from tests.conformance.official import Case, Runner

Array = np.ndarray[Any, np.dtype[Any]]

#: As anybody may compile it.
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")


def build(made: Exported, compiler: Sequence[str], folder: Path) -> Path:
    """The shared library of exported C.

    Raises
    ------
    ToolchainError : the compiler refuses the text, or warns.
    """
    made.write(folder / f"{made.name}.c")
    library = folder / f"{made.name}.so"
    words = (*compiler, *FLAGS, *made.flags, "-shared", "-fPIC", f"{made.name}.c")
    line = (*words, "-o", library.name, "-lm")
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ToolchainError(f"{compiler[0]}: {done.stderr[:2000]}")
    return library


def run(made: Exported, library: Path, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs of a library for inputs by their names in the network."""
    entry = getattr(ctypes.CDLL(str(library)), f"{made.name}_run")
    given = [np.ascontiguousarray(inputs[label]) for label in made.inputs]
    results = [np.empty(shape, dtype) for shape, dtype in made.results]
    workspace = np.full(made.workspace, 0xA5, np.uint8)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*given, *results, workspace)]
    code = entry(*pointers, ctypes.c_size_t(workspace.nbytes))
    assert code == 0, f"the run returned {code}"
    return results


def check_exported(case: Case, compilers: Sequence[str], isa: str) -> tuple[str, ...]:
    """Export a case, compile it with each of the compilers, and compare as the suite's runner does.

    Raises
    ------
    FarkasError : it cannot be exported or compiled.
    AssertionError : wrong results.
    """
    names = [info.name for info in case.model.graph.input]
    for inputs, expected in case.sets:
        arrays = {n: np.asarray(a) for n, a in zip(names, inputs, strict=False)}
        made = _exported(case, arrays, isa)
        for compiler in compilers:
            with tempfile.TemporaryDirectory() as folder:
                library = build(made, compiler.split(), Path(folder))
                results = run(made, library, arrays)
            Runner.assert_similar_outputs(expected, results, case.rtol, case.atol)
    return ()


def _exported(case: Case, arrays: Mapping[str, Array], isa: str) -> Exported:
    """A case as C for inputs of these shapes; those that decide about shapes are fixed."""
    shapes = {n: a.shape for n, a in arrays.items()}
    values: dict[str, Array] = {}
    while True:
        try:
            return exported(case.model, "m", isa=isa, shapes=shapes, values=values)
        except ModelError as error:
            found = {n: a for n, a in arrays.items() if f"'{n}'" in str(error)}
            if "decide about shapes" not in str(error) or found.keys() <= values.keys():
                raise
            values |= found
