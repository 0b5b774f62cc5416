"""Exported C as a WebAssembly module, and JavaScript that runs it on typed arrays."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from codegen.c.module import Module, Parameter
from codegen.c.module_text import code_text
from codegen.c.weights_text import ALIGNMENT
from farkas.export.build_wheel import element_type, fixed_inputs, shown_shape
from farkas.export.compilers import LibraryCompiler
from farkas.export.exported import Exported
from poly.errors import ArgumentError, ToolchainError

#: Functions keep little on the stack: arrays are in the workspace.
_STACK_BYTES = 1 << 18
_FLAGS = (
    "-mexec-model=reactor", "-std=c11", "-O2", "-g0", "-fwrapv", "-Wno-psabi",
    "-Wno-c23-extensions",
    "-Wl,--strip-all", f"-Wl,-z,stack-size={_STACK_BYTES}", "-Wl,--export=__heap_base",
)  # fmt: skip
#: As a string they take a compiler a second for each few megabytes.
_INSIDE = """\
static const _Alignas({alignment}) unsigned char weights[] = {{
#embed "weights.bin"
}};
"""


def wasm(made: Exported, compiler: LibraryCompiler) -> bytes:
    """A WebAssembly module, which imports nothing.

    Raises
    ------
    ToolchainError : the compiler fails.
    """
    module, name = made.module, made.name
    inside = bool(module.weights) and not module.is_separate
    declared = _INSIDE.format(alignment=ALIGNMENT) if inside else ""
    files = {f"{name}.h": made.header.encode(), f"{name}.c": code_text(module, declared).encode()}
    if inside:
        files["weights.bin"] = module.weights
    called = ("run", "error", *(("shapes", "workspace_bytes") if module.sizes else ()))
    exports = tuple(f"-Wl,--export={name}_{one}" for one in called)
    with tempfile.TemporaryDirectory(prefix="farkas-") as folder:
        try:
            for file, data in files.items():
                Path(folder, file).write_bytes(data)
            words = (*_FLAGS, *made.flags, *exports, f"{name}.c", "-o", "made.wasm", "-lm")
            compiler.compile(words, Path(folder))
            return Path(folder, "made.wasm").read_bytes()
        except OSError as error:
            raise ToolchainError(f"cannot compile in {folder}: {error}") from None


def javascript(made: Exported, code: str, weights: str) -> str:
    """The text of a module of JavaScript that loads and runs it.

    code, weights : the paths of the files from that of the text; weights is "" if they are in the
        code, or there are none
    """
    module = made.module
    fixed = {label: list(data) for label, data in fixed_inputs(made).items()}
    text = Path(__file__).with_name("wasm_face.mjs").read_text()
    values = {
        "INPUTS": _table(module, module.inputs),
        "OUTPUTS": _table(module, module.outputs),
        "SIZES": json.dumps([*module.sizes.values()]),
        "CODE": _url(code),
        "WEIGHTS": _url(weights),
        "NAME": made.name,
        "WORKSPACE": str(made.workspace),
        "WEIGHTS_BYTES": str(len(made.weights)),
        "FIXED": json.dumps(fixed),
    }
    # All at once: a label may look like what is replaced.
    text = re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], text)
    return f"// {module.about[0]}\n{text}"


def _url(path: str) -> str:
    return quote(path.replace(os.sep, "/"))


def _table(module: Module, ports: Sequence[Parameter]) -> str:
    """The name, the type and the shape of each, in JavaScript."""
    lines = []
    for port in ports:
        kind = json.dumps(element_type(port))
        shape = json.dumps(shown_shape(module, port))
        name = json.dumps(port.label)
        lines.append(f"  [{name}, {{ type: {kind}, shape: {shape} }}],\n")
    return f"[\n{''.join(lines)}]"


def check_wasm(isas: Sequence[str], threads: str) -> None:
    """Check what WebAssembly is made from.

    Raises
    ------
    ArgumentError : code for another machine, or for threads.
    """
    if any(name not in ("wasm", "generic") for name in isas):
        raise ArgumentError(f"WebAssembly has the instruction set wasm, not {', '.join(isas)}")
    if threads != "none":
        raise ArgumentError("WebAssembly runs on one thread: leave threads out")
