"""A network or a kernel as a C file and a header that need nothing of Farkas.

The file has one function with external linkage, ``NAME_run``, which returns an error code.  It has
no state, allocates nothing, and calls nothing but the C mathematics library and ``string.h``:
memory for intermediate values is the caller's, so that calls at once need one workspace each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from codegen.c.function import CFunction, header_comment
from codegen.c.instruction_text import definitions
from codegen.c.prelude import prelude_for
from codegen.c.thread_memory import NAME as MEMORY
from codegen.c.type_names import C_TYPES, PATTERNS
from poly.ir.dtypes import DType

#: Alignment of storage in the workspace and among the weights, in bytes.
ALIGNMENT = 64
#: What a run returns, in order from 0, and what it means.
CODES = (
    ("OK", "no error"),
    ("NULL", "a pointer to a tensor that has elements, or to the weights, is null"),
    ("ALIGNMENT", "a pointer is not a multiple of the size of the elements there"),
    ("WORKSPACE", "the workspace is null or too small"),
    ("VALUE", "an input whose elements are fixed has others"),
)


@dataclass(frozen=True)
class Parameter:
    """A tensor that the caller passes: its name in C, what users call it, its type and shape."""

    name: str
    label: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """The C type of its elements."""
        return "uint16_t" if self.dtype.name in PATTERNS else C_TYPES[self.dtype.name]

    @property
    def shown(self) -> str:
        """What an element is, where its C type does not say so."""
        if self.dtype.name in PATTERNS:
            return f" of {self.dtype.name}, as its bits"
        return " of truth values, 0 or 1" if self.dtype.kind == "b" else ""


@dataclass(frozen=True)
class Step:
    """One call of a function, or the copy of some bytes.

    about : what it computes; text : the C statement
    """

    about: str
    text: str


@dataclass(frozen=True, eq=False)
class Module:
    """What a C file is made of.

    name : prefix of its names; about : what it is, in lines
    functions : each with the nodes that call it
    fixed : where in the weights the elements are that an input must have, by its name in C
    steps : in order; they name parameters, ``weights`` and ``work``
    workspace, bound : bytes of the workspace, and the least that any plan would need
    weights : the bytes of constants; is_separate : whether callers pass these
    flags : to compile with; macro : defined by compilers for machines with the instructions that
        the text was made for
    """

    name: str
    about: tuple[str, ...]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    functions: tuple[tuple[CFunction, tuple[str, ...]], ...]
    fixed: Mapping[str, int]
    steps: tuple[Step, ...]
    workspace: int
    bound: int
    weights: bytes
    is_separate: bool
    flags: tuple[str, ...]
    macro: str

    @property
    def prefix(self) -> str:
        """Of its macros."""
        return self.name.upper()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The declarations of what a run is passed."""
        given = [f"const {p.kind} *{p.name}" for p in self.inputs]
        given += [f"{p.kind} *{p.name}" for p in self.outputs]
        if self.is_separate and self.weights:
            given.append("const void *weights")
        return (*given, "void *workspace", "size_t workspace_bytes")

    @property
    def prototype(self) -> str:
        between = ",\n" + " " * len(f"int {self.name}_run(")
        return f"int {self.name}_run({between.join(self.parameters)})"


def header_text(module: Module) -> str:
    """The header: what is passed, in which shapes, and what comes back."""
    n, p = module.name, module.prefix
    codes = [f"  {p}_{code} = {k}, /* {what} */" for k, (code, what) in enumerate(CODES)]
    lines = [
        "/*", *(f" * {line}".rstrip() for line in module.about), " */",
        f"#ifndef {p}_H", f"#define {p}_H", "", "#include <stddef.h>", "#include <stdint.h>", "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        "/* Bytes of the workspace; any plan needs at least " f"{module.bound}. */",
        f"#define {p}_WORKSPACE_BYTES {module.workspace}",
        f"#define {p}_WEIGHTS_BYTES {len(module.weights)}", "",
        "/* What a run returns. */", "enum {", *codes, "};", "",
        "/*", " * Runs it once.  Tensors are row-major and must not overlap:", " *",
        *(f" *   {line}" for line in _tensors(module)), " *",
        *_weights_comment(module),
        " * The workspace is memory for intermediate values: any content will do, none is kept.",
        " * Calls at once need one each.  On an error nothing was written.",
        " */", f"{module.prototype};", "",
        "/* What an error code means. */", f"const char *{n}_error(int code);", "",
        "#ifdef __cplusplus", "}", "#endif", "", "#endif", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _tensors(module: Module) -> Iterator[str]:
    for what, ports in (("input", module.inputs), ("output", module.outputs)):
        for port in ports:
            shape = "".join(f"[{n}]" for n in port.shape) or " (one element)"
            label = "" if port.label == port.name else f", called '{port.label}'"
            always = ", always with the same elements" if port.name in module.fixed else ""
            yield f"{what} {port.name}{shape}{port.shown}{label}{always}"


def _weights_comment(module: Module) -> list[str]:
    if not (module.is_separate and module.weights):
        return []
    return [f" * The weights are the bytes of the file {module.name}.bin.", " *"]


def code_text(module: Module) -> str:
    """The C file; the weights, if it has them, are at its end."""
    memory = max((f.thread_memory for f, _ in module.functions), default=0)
    setup = definitions(i for f, _ in module.functions for i in f.instructions)
    functions: list[str] = []
    for function, nodes in module.functions:
        functions += [header_comment(function.made_from, nodes), function.static_text, ""]
    body = [*_run(module, memory), *_error(module)]
    helpers = prelude_for("\n".join([*setup, *functions, *body]))
    prelude = helpers.replace("static inline ", _INLINED)
    lines = [
        "/*", *(f" * {line}".rstrip() for line in module.about), " *",
        f" * Compile it with, say: {command(module)}", " */",
        f'#include "{module.name}.h"', "", *_guard(module), prelude, *setup,
    ]  # fmt: skip
    weights = weights_text(module)
    if weights:
        lines += [f"{_weights(module)};", ""]
    return "\n".join([*lines, *functions, *body, weights])


def command(module: Module) -> str:
    """How to compile the file."""
    return " ".join(["cc", "-O2", *module.flags, "-c", f"{module.name}.c"])


def _guard(module: Module) -> list[str]:
    """Lines that refuse another machine, and say how arithmetic is meant, whatever the flags."""
    lines = []
    if module.macro:
        flags = " ".join(module.flags)
        lines = [f"#ifndef {module.macro}", f'#error "compile this with {flags}"', "#endif"]
    return [*lines, *_ARITHMETIC]


#: Helpers take and return vectors, which has no fixed form where they are longer than those of the
#: machine.  clang warns of helpers that only others use which are not there.
_INLINED = "static inline __attribute__((always_inline, unused)) "
#: Products and sums may be fused, which -std=c11 forbids in gcc; integers wrap around, and nothing
#: reads errno.  No vector is passed between files.
_ARITHMETIC = (
    "#ifdef __GNUC__",
    '#pragma GCC diagnostic ignored "-Wpsabi"',
    "#ifndef __clang__",
    '#pragma GCC optimize ("fp-contract=fast", "wrapv", "no-math-errno", "no-trapping-math")',
    "#endif",
    "#endif",
)


def weights_text(module: Module) -> str:
    """The definition of the weights, as a string of their bytes; "" if the caller passes them."""
    if module.is_separate or not module.weights:
        return ""
    whole = len(module.weights) // ROW * ROW
    lines = _OCTAL[np.frombuffer(module.weights[:whole], np.uint8)].reshape(-1, 4 * ROW)
    quotes = np.full((len(lines), 1), ord('"'), np.uint8)
    ends = np.full((len(lines), 1), ord("\n"), np.uint8)
    text = np.hstack([quotes, lines, quotes, ends]).tobytes().decode()
    rest = _OCTAL[np.frombuffer(module.weights[whole:], np.uint8)].tobytes().decode()
    return f'{_weights(module)} =\n{text}"{rest}";\n'


def _weights(module: Module) -> str:
    return f"static const _Alignas({ALIGNMENT}) unsigned char weights[{len(module.weights) + 1}]"


#: Bytes of weights in a line.
ROW = 256
#: For each byte, how a string has it.
_OCTAL = np.array([[*f"\\{byte:03o}".encode()] for byte in range(256)], np.uint8)


def _run(module: Module, memory: int) -> list[str]:
    """The entry point."""
    p = module.prefix
    slack = ALIGNMENT - 1
    lines = [module.prototype, "{"]
    for port in (*module.inputs, *module.outputs):
        if port.count:
            lines.append(f"  if ({port.name} == NULL) return {p}_NULL;")
            if port.dtype.bytes > 1:
                lines.append(
                    f"  if ((uintptr_t){port.name} % {port.dtype.bytes} != 0) return {p}_ALIGNMENT;"
                )
        else:
            lines.append(f"  (void){port.name};")
    if module.is_separate and module.weights:
        lines.append(f"  if (weights == NULL) return {p}_NULL;")
        lines.append(f"  if ((uintptr_t)weights % {ALIGNMENT} != 0) return {p}_ALIGNMENT;")
    if not module.workspace:
        lines += ["  (void)workspace;", "  (void)workspace_bytes;"]
    else:
        lines += [
            f"  if (workspace == NULL || workspace_bytes < {p}_WORKSPACE_BYTES)",
            f"    return {p}_WORKSPACE;",
            "  unsigned char *const work =",
            f"    (unsigned char *)(((uintptr_t)workspace + {slack}) / {ALIGNMENT} * {ALIGNMENT});",
        ]
    for port in module.inputs:
        if port.name in module.fixed and port.count:
            given = f"(const unsigned char *)weights + {module.fixed[port.name]}"
            count = port.count * port.dtype.bytes
            lines.append(f"  if (memcmp({port.name}, {given}, {count}) != 0) return {p}_VALUE;")
    if memory:
        lines.append(f"  unsigned char *const {MEMORY} = work + {_memory_at(module, memory)};")
    for step in module.steps:
        if step.about:
            lines.append(f"  /* {step.about} */")
        lines.append(f"  {step.text}")
    return [*lines, f"  return {p}_OK;", "}", ""]


def _memory_at(module: Module, memory: int) -> int:
    """Where the memory of functions is in the workspace: at its end."""
    return module.workspace - (ALIGNMENT - 1) - -(-memory // ALIGNMENT) * ALIGNMENT


def _error(module: Module) -> list[str]:
    cases = [f'  case {module.prefix}_{code}: return "{what}";' for code, what in CODES]
    return [
        f"const char *{module.name}_error(int code)",
        "{",
        "  switch (code) {",
        *cases,
        '  default: return "not an error code";',
        "  }",
        "}",
        "",
    ]


def workspace_bytes(arena: int, functions: Mapping[str, CFunction]) -> int:
    """The bytes of a workspace with an arena and the memory of functions; 0 if neither is needed.

    It may begin anywhere.
    """
    memory = max((f.thread_memory for f in functions.values()), default=0)
    total = sum(-(-n // ALIGNMENT) * ALIGNMENT for n in (arena, memory))
    return total + ALIGNMENT - 1 if total else 0
