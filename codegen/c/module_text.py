"""A network or a kernel as a C file and a header that need nothing of Farkas.

The file has one function with external linkage, ``NAME_run``, which returns an error code.  It has
no state, allocates nothing, and calls nothing but the C mathematics library and ``string.h``:
memory for intermediate values is the caller's, so that calls at once need one workspace each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from codegen.c.convention import TEAM
from codegen.c.function import CFunction, header_comment
from codegen.c.instruction_text import definitions
from codegen.c.openmp_text import MOST_THREADS, openmp_code, openmp_functions
from codegen.c.prelude import prelude_for
from codegen.c.team_text import team_code, team_functions, team_header
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
    ("SIZE", "a size is out of range"),
    ("THREADS", "threads cannot be started, or there are too few or too many"),
)


@dataclass(frozen=True)
class Parameter:
    """A tensor that the caller passes: its name in C, what users call it, its type and shape.

    An extent is a number, or an expression in C over the sizes of the module.
    """

    name: str
    label: str
    dtype: DType
    shape: tuple[int | str, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape, where it is fixed."""
        return tuple(n for n in self.shape if isinstance(n, int))

    @property
    def count(self) -> int | str:
        """The number of its elements."""
        if len(self.extents) == len(self.shape):
            return math.prod(self.extents)
        return " * ".join(f"({n})" for n in self.shape)

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
class Declared:
    """A name in C, and what precedes it in its declaration."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}{self.name}"


@dataclass(frozen=True)
class Step:
    """One call of a function, or the copy of some bytes.

    about : what it computes; text : the C statement; is_shared : all threads of a team run it
    """

    about: str
    text: str
    is_shared: bool = False


@dataclass(frozen=True)
class Temporary:
    """A part of the workspace: its name and C type, its shape as of a `Parameter`, and the bytes of
    an element.
    """

    name: str
    kind: str
    shape: tuple[int | str, ...]
    width: int

    @property
    def bytes(self) -> str:
        """Its bytes, in C."""
        return " * ".join([*(f"({n})" for n in self.shape), str(self.width)])

    @property
    def fixed_bytes(self) -> int:
        """Its bytes, where its shape is fixed."""
        return math.prod(n for n in self.shape if isinstance(n, int)) * self.width


@dataclass(frozen=True, eq=False)
class Module:
    """What a C file is made of.

    name : prefix of its names; about : what it is, in lines
    sizes : those that each run is passed, in C; conditions : what must hold for them, in C
    functions : each with the nodes that call it
    fixed : where in the weights the elements are that an input must have, by its name in C
    steps : in order; they name parameters, temporaries, ``weights`` and ``work``
    arena, bound : bytes that the steps use of ``work``, and the least that any plan would need;
        temporaries : what follows in the workspace
    weights : the bytes of constants; is_separate : whether callers pass these
    has_team : whether a run is passed a team of threads, see `codegen.c.team_text`
    has_openmp : whether it is passed their number instead, see `codegen.c.openmp_text`
    flags : to compile with; macro : defined by compilers for machines with the instructions that
        the text was made for
    """

    name: str
    about: tuple[str, ...]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    functions: tuple[tuple[CFunction, tuple[str, ...]], ...]
    steps: tuple[Step, ...]
    flags: tuple[str, ...]
    macro: str
    sizes: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    temporaries: tuple[Temporary, ...] = ()
    fixed: Mapping[str, int] = field(default_factory=dict)
    arena: int = 0
    bound: int = 0
    weights: bytes = b""
    is_separate: bool = False
    has_team: bool = False
    has_openmp: bool = False

    @property
    def prefix(self) -> str:
        """Of its macros."""
        return self.name.upper()

    @property
    def memory(self) -> int:
        """The bytes that its functions need in addition, one after the other, in each thread."""
        return _whole(max((f.thread_memory for f, _ in self.functions), default=0))

    @property
    def has_workspace(self) -> bool:
        """Whether a run needs any."""
        return bool(self.arena or self.temporaries or self.memory)

    @property
    def workspace(self) -> int:
        """The bytes of the workspace of fixed sizes, wherever it begins.

        The memory of functions is not counted for a team, each thread of which has some.
        """
        own = 0 if self.has_team else self.memory
        taken = [_whole(self.arena), own, *(_whole(t.fixed_bytes) for t in self.temporaries)]
        return sum(taken) + ALIGNMENT - 1 if self.has_workspace else 0

    @property
    def tensors(self) -> tuple[Declared, ...]:
        """What a run is passed in any case: sizes, tensors and weights."""
        given = [Declared("int64_t ", size) for size in self.sizes]
        given += [Declared(f"const {p.kind} *", p.name) for p in self.inputs]
        given += [Declared(f"{p.kind} *", p.name) for p in self.outputs]
        if self.is_separate and self.weights:
            given.append(Declared("const void *", "weights"))
        return tuple(given)

    @property
    def parameters(self) -> tuple[Declared, ...]:
        """What a run is passed."""
        team = [Declared(f"{self.name}_team *", "team")] if self.has_team else []
        team = [Declared("int ", "threads")] if self.has_openmp else team
        own = Declared("void *", "workspace"), Declared("size_t ", "workspace_bytes")
        return (*self.tensors, *own, *team)

    @property
    def arguments(self) -> tuple[Declared, ...]:
        """What the threads of a team are passed."""
        return (*self.tensors, Declared("unsigned char *", "work"))

    @property
    def prototype(self) -> str:
        between = ",\n" + " " * len(f"int {self.name}_run(")
        return f"int {self.name}_run({between.join(map(str, self.parameters))})"


def header_text(module: Module) -> str:
    """The header: what is passed, in which shapes, and what comes back."""
    n, p = module.name, module.prefix
    codes = [f"  {p}_{code} = {k}, /* {what} */" for k, (code, what) in enumerate(CODES)]
    lines = [
        "/*", *(f" * {line}".rstrip() for line in module.about), " */",
        f"#ifndef {p}_H", f"#define {p}_H", "",
        *([] if module.has_openmp or not module.has_team else ["#include <pthread.h>"]),
        "#include <stddef.h>",
        "#include <stdint.h>", "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        *_workspace_declared(module),
        "/* What a run returns. */", "enum {", *codes, "};", "",
        *([] if module.has_openmp or not module.has_team else [team_header(n)]),
        "/*", " * Runs it once.  Tensors are row-major and must not overlap:", " *",
        *(f" *   {line}" for line in _tensors(module)), " *",
        *_weights_comment(module),
        " * The workspace is memory for intermediate values: any content will do, none is kept.",
        " * Calls at once need one each.  On an error nothing was written.",
        *([_THREADS_COMMENT[module.has_openmp]] if module.has_team else []),
        " */", f"{module.prototype};", "",
        "/* What an error code means. */", f"const char *{n}_error(int code);", "",
        "#ifdef __cplusplus", "}", "#endif", "", "#endif", "",
    ]  # fmt: skip
    return "\n".join(lines)


#: What is said of threads, by whether they are OpenMP's.
_THREADS_COMMENT = {
    False: " * Without a team (NULL) it runs on one thread.",
    True: f" * It runs on so many threads, 1 to {MOST_THREADS}; compiled without OpenMP, on one.",
}


def _workspace_declared(module: Module) -> list[str]:
    if module.sizes:
        return [
            "/* Bytes of the workspace for these sizes; 0 as well if they are out of range. */",
            f"{_workspace_prototype(module)};",
            "",
        ]
    p = module.prefix
    more = f" + {module.memory} * (threads)" if module.has_team and module.memory else ""
    return [
        f"/* Bytes of the workspace; any plan needs at least {module.bound}. */",
        f"#define {p}_WORKSPACE_BYTES{'(threads)' if module.has_team else ''} "
        f"{f'({module.workspace}{more})' if more else module.workspace}",
        f"#define {p}_WEIGHTS_BYTES {len(module.weights)}",
        "",
    ]


def _workspace_prototype(module: Module) -> str:
    given = [f"int64_t {size}" for size in module.sizes]
    given += ["int threads"] if module.has_team else []
    return f"size_t {module.name}_workspace_bytes({', '.join(given)})"


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
    setup = definitions(i for f, _ in module.functions for i in f.instructions)
    functions: list[str] = []
    for function, nodes in module.functions:
        functions += [header_comment(function.made_from, nodes), function.static_text, ""]
    body = [*(_sized(module) if module.sizes else []), *_run(module), *_error(module)]
    if module.has_team:
        own = module.has_openmp
        functions[:0] = [openmp_code() if own else team_code(module.name)]
        body[:0] = [openmp_functions() if own else team_functions(module.name), *_calls(module)]
    helpers = prelude_for("\n".join([*setup, *functions, *body]))
    prelude = helpers.replace("static inline ", _INLINED)
    lines = [
        "/*", *(f" * {line}".rstrip() for line in module.about), " *",
        f" * Compile it with, say: {command(module)}", " */",
        f'#include "{module.name}.h"', *_team_includes(module), "",
        *_guard(module), prelude, *setup,
    ]  # fmt: skip
    weights = weights_text(module)
    if weights:
        lines += [f"{_weights(module)};", ""]
    return "\n".join([*lines, *functions, *body, weights])


def _team_includes(module: Module) -> list[str]:
    if module.has_openmp:
        return ["#ifdef _OPENMP", "#include <omp.h>", "#endif"]
    return ["#include <sched.h>"] if module.has_team else []


def command(module: Module) -> str:
    """How to compile the file.

    gcc would note how vectors are passed to functions, but all of these are inlined.
    """
    openmp = ["-fopenmp"] if module.has_openmp else []
    words = ["cc", "-O2", "-Wno-psabi", *openmp, *module.flags, "-c", f"{module.name}.c"]
    return " ".join(words)


def _guard(module: Module) -> list[str]:
    """Lines that refuse another machine, and say how arithmetic is meant, whatever the flags."""
    lines = []
    if module.macro:
        flags = " ".join(module.flags)
        lines = [f"#ifndef {module.macro}", f'#error "compile this with {flags}"', "#endif"]
    exact = any(f.made_from.exact for f, _ in module.functions)
    contract = ("off", "OFF") if exact else ("fast", "ON")
    return [
        *lines,
        "#ifdef __GNUC__",
        '#pragma GCC diagnostic ignored "-Wpsabi"',
        "#endif",
        "#ifdef __clang__",
        f"#pragma STDC FP_CONTRACT {contract[1]}",
        "#elif defined __GNUC__",
        f'#pragma GCC optimize ("fp-contract={contract[0]}", {_WRAPPING})',
        "#endif",
    ]


#: Integers wrap around, and nothing reads errno or exceptions.
_WRAPPING = '"wrapv", "no-math-errno", "no-trapping-math"'
#: Helpers take and return vectors, which has no fixed form where they are longer than those of the
#: machine.  clang warns of helpers that only others use which are not there.
_INLINED = "static inline __attribute__((always_inline, unused)) "


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


def _sized(module: Module) -> list[str]:
    """A function that checks sizes, and one that says how much workspace they need."""
    given = ", ".join(f"int64_t {size}" for size in module.sizes)
    conditions = [f"{size} >= 0" for size in module.sizes]
    conditions += module.conditions
    # No tensor is so large that its bytes, or those of a few of them, overflow.
    for port in (*module.inputs, *module.outputs):
        conditions.append(f"{_as_double(port.shape, port.dtype.bytes)} < 0x1p60")
    conditions += [f"{_as_double(t.shape, t.width)} < 0x1p60" for t in module.temporaries]
    unused = [f"  (void){size};" for size in module.sizes]
    parts = [f" + {_up(t.bytes)}" for t in module.temporaries]
    each = " * (threads < 1 ? 1 : threads)" if module.has_team else ""
    parts += [f" + {module.memory}{each}"] if module.memory else []
    total = f"{ALIGNMENT - 1}{''.join(parts)}" if parts else "0"
    passed = ", ".join(module.sizes)
    return [
        f"static int fk_is_valid({given})",
        "{",
        *(f"  if (!({c})) return 0;" for c in conditions),
        "  return 1;",
        "}",
        "",
        _workspace_prototype(module),
        "{",
        *unused,
        *(["  (void)threads;"] if module.has_team else []),
        f"  return fk_is_valid({passed}) ? (size_t)({total}) : 0;",
        "}",
        "",
    ]


def _as_double(shape: Sequence[int | str], width: int) -> str:
    """Bytes in C, computed so that nothing overflows."""
    return " * ".join([*(f"(double)({n})" for n in shape), f"{width}.0"])


def _up(bytes_: str) -> str:
    """Bytes in C, rounded up to a multiple of the alignment."""
    return f"(({bytes_}) + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"


def _run(module: Module) -> list[str]:
    """The entry point."""
    p = module.prefix
    lines = [module.prototype, "{"]
    if module.sizes:
        lines.append(f"  if (!fk_is_valid({', '.join(module.sizes)})) return {p}_SIZE;")
    for port in (*module.inputs, *module.outputs):
        lines += _checked(port, p)
    if module.is_separate and module.weights:
        lines.append(f"  if (weights == NULL) return {p}_NULL;")
        lines.append(f"  if ((uintptr_t)weights % {ALIGNMENT} != 0) return {p}_ALIGNMENT;")
    for port in module.inputs:
        if port.name in module.fixed:
            given = f"(const unsigned char *)weights + {module.fixed[port.name]}"
            count = math.prod(port.extents) * port.dtype.bytes
            lines.append(f"  if (memcmp({port.name}, {given}, {count}) != 0) return {p}_VALUE;")
    if module.has_openmp:
        lines.append(f"  if (threads < 1 || threads > {MOST_THREADS}) return {p}_THREADS;")
    lines += _workspace(module)
    if module.has_team:
        names = ", ".join(a.name for a in module.arguments)
        lines += [
            f"  struct fk_arguments given = {{{names}}};",
            f"  fk_run({'threads' if module.has_openmp else 'team'}, fk_calls, &given);",
        ]
    else:
        lines += _steps(module)
    return [*lines, f"  return {p}_OK;", "}", ""]


def _calls(module: Module) -> list[str]:
    """A function that makes all calls, on each thread of a team."""
    fields = [f"  {argument};" for argument in module.arguments]
    lines = ["struct fk_arguments {", *fields, "};", ""]
    lines += ["static void fk_calls(const void *me, void *argument)", "{"]
    lines += [f"  const fk_thread *const {TEAM} = me;", "  struct fk_arguments *given = argument;"]
    for argument in module.arguments:
        lines += [f"  {argument} = given->{argument.name};", f"  (void){argument.name};"]
    lines.append(f"  (void){TEAM};")
    return [*lines, *_steps(module), "}", ""]


def _steps(module: Module) -> list[str]:
    """The lines that name the parts of the workspace, and run."""
    lines: list[str] = []
    for t in module.temporaries:
        lines.append(f"  {t.kind} *const {t.name} = ({t.kind} *)work;")
        lines.append(f"  work += {_up(t.bytes)};")
    if module.memory:
        at = f"work + {_whole(module.arena)}" if module.arena else "work"
        own = f" + {TEAM}->number * {module.memory}" if module.has_team else ""
        lines.append(f"  unsigned char *const {MEMORY} = {at}{own};")
    for step in module.steps:
        if step.about:
            lines.append(f"  /* {step.about} */")
        if not module.has_team or step.is_shared:
            lines.append(f"  {step.text}")
        else:
            lines += [f"  if ({TEAM}->number == 0) {step.text}", f"  fk_wait({TEAM});"]
    return lines


def _checked(port: Parameter, prefix: str) -> list[str]:
    """Lines that check a pointer."""
    if port.count == 0:
        return [f"  (void){port.name};"]
    some = "" if isinstance(port.count, int) else f"{port.count} != 0 && "
    lines = [f"  if ({some}{port.name} == NULL) return {prefix}_NULL;"]
    width = port.dtype.bytes
    if width > 1:
        lines.append(f"  if ((uintptr_t){port.name} % {width} != 0) return {prefix}_ALIGNMENT;")
    return lines


def _workspace(module: Module) -> list[str]:
    """Lines that check the workspace."""
    if not module.has_workspace:
        named = ["  unsigned char *work = workspace;"] if module.has_team else []
        return [*named, "  (void)workspace;", "  (void)workspace_bytes;"]
    p, slack = module.prefix, ALIGNMENT - 1
    threads = ["team == NULL ? 1 : team->threads"] if module.has_team else []
    threads = ["threads"] if module.has_openmp else threads
    needed = f"{p}_WORKSPACE_BYTES" + (f"((size_t)({threads[0]}))" if threads else "")
    if module.sizes:
        needed = f"{module.name}_workspace_bytes({', '.join([*module.sizes, *threads])})"
    changes = module.temporaries and not module.has_team
    return [
        f"  if (workspace == NULL || workspace_bytes < {needed})",
        f"    return {p}_WORKSPACE;",
        f"  unsigned char *{'' if changes else 'const '}work =",
        f"    (unsigned char *)(((uintptr_t)workspace + {slack}) / {ALIGNMENT} * {ALIGNMENT});",
    ]


def _whole(count: int) -> int:
    """Bytes, rounded up to a multiple of the alignment."""
    return -(-count // ALIGNMENT) * ALIGNMENT


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
