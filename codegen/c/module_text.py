"""A network or a kernel as a C file and a header that need nothing of Farkas.

The file has one function with external linkage, ``NAME_run``, which returns an error code.  It has
no state, allocates nothing, and calls nothing but the C mathematics library and ``string.h``:
memory for intermediate values is the caller's, so that calls at once need one workspace each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from codegen.c.convention import TEAM
from codegen.c.function import CFunction, header_comment
from codegen.c.instruction_text import definitions
from codegen.c.machine_check import check_headers, machine_check
from codegen.c.prelude import HEADERS, prelude_for
from codegen.c.section_text import (
    architecture_guard,
    is_checked,
    needed_of,
    section_text,
    tag_of,
)
from codegen.c.team_text import team_code, team_functions, team_header
from codegen.c.thread_memory import NAME as MEMORY
from codegen.c.type_names import C_TYPES, PATTERNS
from codegen.c.weights_text import ALIGNMENT, weights_declared, weights_text
from poly.ir.dtypes import DType
from poly.machine.isa import Isa

#: What a run returns, in order from 0, and what it means.
CODES = (
    ("OK", "no error"),
    ("NULL", "a pointer to a tensor that has elements, or to the weights, is null"),
    ("ALIGNMENT", "a pointer is not a multiple of the size of the elements there"),
    ("WORKSPACE", "the workspace is null or too small"),
    ("VALUE", "an input whose elements are fixed has others"),
    ("SIZE", "a size is out of range"),
    ("THREADS", "threads cannot be started, or there are too few or too many"),
    ("MACHINE", "the machine lacks instructions that the code needs"),
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
    isa : the instruction set that the functions are for
    others : the same for other instruction sets, of fewer features, with the same weights
    """

    name: str
    about: tuple[str, ...]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    functions: tuple[tuple[CFunction, tuple[str, ...]], ...]
    steps: tuple[Step, ...]
    isa: Isa
    sizes: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    temporaries: tuple[Temporary, ...] = ()
    fixed: Mapping[str, int] = field(default_factory=dict)
    arena: int = 0
    bound: int = 0
    weights: bytes = b""
    is_separate: bool = False
    has_team: bool = False
    others: tuple[Module, ...] = ()

    @property
    def sections(self) -> tuple[Module, ...]:
        """For each instruction set, from that of the most features to that of the least."""
        return (replace(self, others=()), *self.others)

    @property
    def is_plain(self) -> bool:
        """Whether there is one section, which every machine of its architecture can run."""
        return not self.others and not is_checked(self.isa)

    @property
    def flags(self) -> tuple[str, ...]:
        """Those with which to compile it."""
        return self.isa.flags if self.is_plain else ()

    @property
    def prefix(self) -> str:
        """Of its macros."""
        return self.name.upper()

    @property
    def memory(self) -> int:
        """The bytes that its functions need in addition, one after the other, in each thread."""
        functions = (f for section in self.sections for f, _ in section.functions)
        return _whole(max((f.thread_memory for f in functions), default=0))

    @property
    def has_workspace(self) -> bool:
        """Whether a run needs any."""
        return any(x.arena or x.temporaries or x.memory for x in self.sections)

    @property
    def workspace(self) -> int:
        """The bytes of the workspace of fixed sizes, wherever it begins.

        The memory of functions is not counted for a team, each thread of which has some.
        """
        needed = []
        for x in self.sections:
            own = 0 if x.has_team else x.memory
            needed.append(
                sum([_whole(x.arena), own, *(_whole(t.fixed_bytes) for t in x.temporaries)])
            )
        return max(needed) + ALIGNMENT - 1 if self.has_workspace else 0

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
        *(["#include <pthread.h>"] if module.has_team else []), "#include <stddef.h>",
        "#include <stdint.h>", "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        *_workspace_declared(module),
        "/* What a run returns. */", "enum {", *codes, "};", "",
        *([team_header(n)] if module.has_team else []),
        "/*", " * Runs it once.  Tensors are row-major and must not overlap:", " *",
        *(f" *   {line}" for line in _tensors(module)), " *",
        *_weights_comment(module),
        " * The workspace is memory for intermediate values: any content will do, none is kept.",
        " * Calls at once need one each.  On an error nothing was written.",
        *([" * Without a team (NULL) it runs on one thread."] if module.has_team else []),
        " */", f"{module.prototype};", "",
        "/* What an error code means. */", f"const char *{n}_error(int code);", "",
        "#ifdef __cplusplus", "}", "#endif", "", "#endif", "",
    ]  # fmt: skip
    return "\n".join(lines)


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


def code_text(module: Module, outside: str = "") -> str:
    """The C file; the weights, if it has them, are at its end.

    outside : declares the weights, if something else defines them
    """
    shared = [team_code(module.name), *_arguments(module)] if module.has_team else []
    entry = [team_functions(module.name)] if module.has_team else []
    entry += [*(_sized(module) if module.sizes else []), *_run(module), *_error(module)]
    parts, checks = [_body(x) for x in module.sections], list[str]()
    own = parts if module.is_plain else []
    prelude = _prelude("\n".join([*shared, *own, *entry]))
    if not module.is_plain:
        parts, checks = _sections(module, parts, set(_NAME.findall("\n".join(shared))))
    lines = [
        "/*", *(f" * {line}".rstrip() for line in module.about), " *",
        f" * Compile it with, say: {command(module)}", " */",
        f'#include "{module.name}.h"', *(["#include <sched.h>"] if module.has_team else []), "",
        *_guard(module), HEADERS, *_included(module), prelude,
    ]  # fmt: skip
    weights = "" if module.is_separate or outside else weights_text(module.weights)
    if weights or outside:
        lines += [outside or f"{weights_declared(module.weights)};", ""]
    return "\n".join([*lines, *shared, *parts, *checks, *entry, weights])


def _body(module: Module) -> str:
    """The functions of one instruction set, and one that makes all calls."""
    used = definitions(i for f, _ in module.functions for i in f.instructions)
    lines = [line for line in used if not line.startswith(_INCLUDE)]
    for function, nodes in module.functions:
        lines += [header_comment(function.made_from, nodes), function.static_text, ""]
    return "\n".join([*lines, *_calls(module)])


def _sections(
    module: Module, bodies: Sequence[str], names: Collection[str]
) -> tuple[list[str], list[str]]:
    """The bodies of several instruction sets, each with the helpers that it uses; and functions
    that check for each whether the machine has it.

    names : what they use and do not define
    """
    parts, checks = [], []
    for section, body in zip(module.sections, bodies, strict=True):
        text = f"{_prelude(body)}\n{body}"
        isa = needed_of(section.isa, text)
        parts.append(section_text(text, isa, names))
        if is_checked(isa):
            check = machine_check(isa, _check_name(isa))
            checks.append(f"#ifdef {isa.architecture}\n{check}#endif\n")
    return parts, checks


def _prelude(text: str) -> str:
    """The helpers that a text uses."""
    return prelude_for(text).removeprefix(HEADERS).replace("static inline ", _INLINED)


#: Of what a file defines for itself.
_NAME = re.compile(r"\bfk_\w+")
_INCLUDE = "#include <"


def _included(module: Module) -> list[str]:
    """The headers of users' instructions and of checks."""
    used = definitions(i for x in module.sections for f, _ in x.functions for i in f.instructions)
    lines = [line for line in used if line.startswith(_INCLUDE)]
    checked = {x.isa.architecture: x.isa for x in module.sections if is_checked(x.isa)}
    for architecture, isa in checked.items():
        lines += [f"#ifdef {architecture}", *check_headers(isa), "#endif"]
    return lines


def command(module: Module) -> str:
    """How to compile the file.

    gcc would note how vectors are passed to functions, but all of these are inlined.
    """
    return " ".join(["cc", "-O2", "-Wno-psabi", *module.flags, "-c", f"{module.name}.c"])


def _guard(module: Module) -> list[str]:
    """Lines that refuse another machine, and say how arithmetic is meant, whatever the flags."""
    exact = any(f.made_from.exact for f, _ in module.functions)
    contract = ("off", "OFF") if exact else ("fast", "ON")
    return [
        *architecture_guard([x.isa for x in module.sections]),
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


def _sized(module: Module) -> list[str]:
    """A function that checks sizes, and one that says how much workspace they need."""
    given = ", ".join(f"int64_t {size}" for size in module.sizes)
    conditions = [f"{size} >= 0" for size in module.sizes]
    conditions += module.conditions
    # No tensor is so large that its bytes, or those of a few of them, overflow.
    for port in (*module.inputs, *module.outputs):
        conditions.append(f"{_as_double(port.shape, port.dtype.bytes)} < 0x1p60")
    stored = dict.fromkeys((t.shape, t.width) for x in module.sections for t in x.temporaries)
    conditions += [f"{_as_double(*one)} < 0x1p60" for one in stored]
    unused = [f"  (void){size};" for size in module.sizes]
    passed = ", ".join(module.sizes)
    first, *more = dict.fromkeys(map(_total, module.sections))
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
        f"  if (!fk_is_valid({passed})) return 0;",
        f"  {'' if more else 'const '}size_t most = (size_t)({first});",
        *(f"  if ((size_t)({x}) > most) most = (size_t)({x});" for x in more),
        "  return most;",
        "}",
        "",
    ]


def _total(section: Module) -> str:
    """The bytes of workspace of an instruction set, in C over sizes and the number of threads."""
    parts = [f" + {_up(t.bytes)}" for t in section.temporaries]
    each = " * (threads < 1 ? 1 : threads)" if section.has_team else ""
    parts += [f" + {section.memory}{each}"] if section.memory else []
    return f"{ALIGNMENT - 1}{''.join(parts)}" if parts else "0"


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
    lines += _workspace(module)
    names = ", ".join(a.name for a in module.arguments)
    if module.has_team:
        lines.append(f"  struct fk_arguments given = {{{names}}};")
    for section in module.sections:
        calls = "fk_calls" if module.is_plain else f"fk_{tag_of(section.isa)}calls"
        call = f"fk_run(team, {calls}, &given);" if module.has_team else f"{calls}({names});"
        made = [f"  {call}", f"  return {p}_OK;"]
        if module.is_plain or not section.isa.architecture:
            return [*lines, *made, "}", ""]
        if is_checked(section.isa):
            made = [f"  if ({_check_name(section.isa)}()) {{", *(f"  {x}" for x in made), "  }"]
        lines += [f"#ifdef {section.isa.architecture}", *made, "#endif"]
    return [*lines, f"  return {p}_MACHINE;", "}", ""]


def _check_name(isa: Isa) -> str:
    return f"fk_has_{tag_of(isa).rstrip('_')}"


def _arguments(module: Module) -> list[str]:
    """What the threads of a team are passed, in one."""
    fields = [f"  {argument};" for argument in module.arguments]
    return ["struct fk_arguments {", *fields, "};", ""]


def _calls(module: Module) -> list[str]:
    """A function that makes all calls, on each thread if there is a team."""
    if module.has_team:
        lines = ["static void fk_calls(const void *me, void *argument)", "{"]
        lines += [f"  const fk_thread *const {TEAM} = me;", f"  (void){TEAM};"]
        lines.append("  struct fk_arguments *given = argument;")
        lines += [f"  {argument} = given->{argument.name};" for argument in module.arguments]
    else:
        passed = ", ".join(map(str, module.arguments)) or "void"
        lines = [f"static void fk_calls({passed})", "{"]
    lines += [f"  (void){argument.name};" for argument in module.arguments]
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
        return ["  unsigned char *work = workspace;", "  (void)workspace_bytes;"]
    p, slack = module.prefix, ALIGNMENT - 1
    threads = ["team == NULL ? 1 : team->threads"] if module.has_team else []
    needed = f"{p}_WORKSPACE_BYTES" + (f"((size_t)({threads[0]}))" if threads else "")
    if module.sizes:
        needed = f"{module.name}_workspace_bytes({', '.join([*module.sizes, *threads])})"
    return [
        f"  if (workspace == NULL || workspace_bytes < {needed})",
        f"    return {p}_WORKSPACE;",
        "  unsigned char *const work =",
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
