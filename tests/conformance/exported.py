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
from tests.conformance.official import Case, Runner, opened

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


def run(made: Exported, library: Path, inputs: Mapping[str, Array], code: int = 0) -> list[Array]:
    """The outputs of a library for inputs by their names in the network.

    code : what a run is expected to return
    """
    loaded = ctypes.CDLL(str(library))
    given = [np.ascontiguousarray(inputs[label]) for label in made.inputs]
    sizes = [ctypes.c_int64(size) for size in _sizes(made, inputs)]
    team = [ctypes.c_void_p(None)] if made.module.has_team else []
    shapes = [shape for shape, _ in made.results]
    workspace = made.workspace + (made.module.memory if team else 0)
    if sizes:
        if not code:
            shapes = _shapes(made, loaded, sizes)
        needed = getattr(loaded, f"{made.name}_workspace_bytes")
        needed.restype = ctypes.c_size_t
        workspace = needed(*sizes, *(ctypes.c_int(1) for _ in team))
    results = [np.empty(s, dtype) for s, (_, dtype) in zip(shapes, made.results, strict=True)]
    memory = np.full(workspace, 0xA5, np.uint8)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*given, *results, memory)]
    entry = getattr(loaded, f"{made.name}_run")
    found = entry(*sizes, *pointers, ctypes.c_size_t(memory.nbytes), *team)
    assert found == code, f"the run returned {found}"
    return results


def _sizes(made: Exported, inputs: Mapping[str, Array]) -> list[int]:
    """The open sizes, which the shapes of inputs show."""
    ports = made.module.inputs
    shown = (next(p for p in ports if size in p.shape) for size in made.module.sizes)
    return [
        inputs[port.label].shape[port.shape.index(size)]
        for size, port in zip(made.module.sizes, shown, strict=True)
    ]


def _shapes(
    made: Exported, loaded: ctypes.CDLL, sizes: Sequence[ctypes.c_int64]
) -> list[tuple[int, ...]]:
    """The shapes of the outputs, as the library says."""
    arrays = [(ctypes.c_int64 * len(p.shape))() for p in made.module.outputs]
    code = getattr(loaded, f"{made.name}_shapes")(*sizes, *(a for a in arrays if len(a)))
    assert code == 0, f"the shapes returned {code}"
    return [tuple(a) for a in arrays]


def run_apart(
    made: Exported,
    compiler: Sequence[str],
    runner: Sequence[str],
    inputs: Mapping[str, Array],
    folder: Path,
) -> list[Array]:
    """The outputs of a program for another machine, which reads and writes files; fixed sizes.

    runner : the command that runs programs of that machine

    Raises
    ------
    ToolchainError : the compiler refuses the text, or warns.
    """
    made.write(folder / f"{made.name}.c")
    (folder / "main.c").write_text(_program(made))
    program = [f"{made.name}.c", "main.c", "-static", "-lm", "-o", "program"]
    line = (*compiler, *FLAGS, "-Wno-overlength-strings", *made.flags, *program)
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ToolchainError(f"{compiler[0]}: {done.stderr[:2000]}")
    for label, name in made.inputs.items():
        (folder / f"{name}.in").write_bytes(np.ascontiguousarray(inputs[label]).tobytes())
    done = subprocess.run([*runner, "./program"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"the program returned {done.returncode} {done.stderr}"
    found = []
    for name, (shape, dtype) in zip(made.outputs.values(), made.results, strict=True):
        data = (folder / f"{name}.out").read_bytes()
        found.append(np.frombuffer(data, dtype, int(np.prod(shape))).reshape(shape))
    return found


def _program(made: Exported) -> str:
    """A program that runs exported C once on the files NAME.in, and writes the files NAME.out."""
    module, most = made.module, f"{made.name.upper()}_WORKSPACE_BYTES"
    lines = ["#include <stdio.h>", f'#include "{made.name}.h"']
    lines.append(f"static unsigned char workspace[{most} + 1];")
    for port in (*module.inputs, *module.outputs):
        lines.append(f"static {port.kind} {port.name}[{max(1, int(port.count))}];")
    lines += ["int main(void)", "{", "  FILE *file;"]
    for port in module.inputs:
        lines += [
            f'  file = fopen("{port.name}.in", "rb");',
            f"  if (!file || fread({port.name}, 1, sizeof {port.name}, file) > sizeof {port.name})",
            "    return 100;",
            "  fclose(file);",
        ]
    names = [p.name for p in (*module.inputs, *module.outputs)]
    passed = ", ".join([*names, "workspace", "sizeof workspace"])
    lines += [f"  int code = {made.name}_run({passed});", "  if (code) return code;"]
    for port in module.outputs:
        lines += [
            f'  file = fopen("{port.name}.out", "wb");',
            f"  if (!file || !fwrite({port.name}, sizeof {port.name}, 1, file)) return 100;",
            "  fclose(file);",
        ]
    return "\n".join([*lines, "  return 0;", "}", ""])


def check_exported(
    case: Case,
    compilers: Sequence[str],
    isa: str,
    is_open: bool = False,
    runner: Sequence[str] = (),
) -> tuple[str, ...]:
    """Export a case, compile it with each of the compilers, and compare as the suite's runner does.

    is_open : with open sizes for all axes of the inputs that are longer than 1
    runner : the command that runs programs of another machine, for which the compilers are

    Raises
    ------
    FarkasError : it cannot be exported or compiled.
    AssertionError : wrong results.
    """
    names = [info.name for info in case.model.graph.input]
    for inputs, expected in case.sets:
        arrays = {n: np.asarray(a) for n, a in zip(names, inputs, strict=False)}
        made = _exported(case, arrays, isa, is_open)
        for compiler in compilers:
            with tempfile.TemporaryDirectory() as folder:
                words, where = compiler.split(), Path(folder)
                results = (
                    run_apart(made, words, runner, arrays, where)
                    if runner
                    else run(made, build(made, words, where), arrays)
                )
            Runner.assert_similar_outputs(expected, results, case.rtol, case.atol)
    return ()


def _exported(case: Case, arrays: Mapping[str, Array], isa: str, is_open: bool) -> Exported:
    """A case as C for inputs of these shapes; those that decide about shapes are fixed."""
    if not is_open:
        return exported_for(case.model, arrays, isa)
    small = {n: a.shape for n, a in arrays.items() if min(a.shape, default=2) < 2}
    free = {n: a.shape for n, a in arrays.items() if n not in small}
    examples = {f"{n}_{axis}": size for n, s in free.items() for axis, size in enumerate(s)}
    return exported_for(opened(case.model), arrays, isa, small, examples)


def exported_for(
    model: Any,
    arrays: Mapping[str, Array],
    isa: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    examples: Mapping[str, int] | None = None,
) -> Exported:
    """A model as C for inputs of these shapes; those that decide about shapes are fixed.

    shapes : of some inputs, where the sizes of others are open; examples : of open sizes

    Raises
    ------
    FarkasError : it cannot be exported.
    """
    if shapes is None:
        shapes = {n: a.shape for n, a in arrays.items()}
    values: dict[str, Array] = {}
    while True:
        fixed = tuple(f"{n}_" for n in values)
        left = {n: size for n, size in (examples or {}).items() if not n.startswith(fixed)}
        try:
            return exported(model, "m", isa=isa, shapes=shapes, values=values, examples=left)
        except ModelError as error:
            found = {n: a for n, a in arrays.items() if f"'{n}'" in str(error)}
            if "decide about shapes" not in str(error) or found.keys() <= values.keys():
                raise
            values |= found
