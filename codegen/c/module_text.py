"""The C file of a network or a kernel that needs nothing of Farkas.

The file has one function that runs it, ``NAME_run``, which returns an error code.  It has no state,
allocates nothing, and calls nothing but the C mathematics library and ``string.h``: memory for
intermediate values is the caller's, so that calls at once need one workspace each.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Sequence
from itertools import groupby

from codegen.c.convention import TEAM
from codegen.c.function import header_comment
from codegen.c.header_text import shapes_prototype, workspace_prototype
from codegen.c.instruction_text import definitions
from codegen.c.machine_check import check_headers, machine_check
from codegen.c.module import CODES, Module, Parameter, Step, whole_bytes
from codegen.c.openmp_text import MOST_THREADS, openmp_code, openmp_functions
from codegen.c.prelude import HEADERS, prelude_for
from codegen.c.section_text import (
    architecture_guard,
    is_checked,
    needed_of,
    section_text,
    tag_of,
)
from codegen.c.team_text import team_code, team_functions
from codegen.c.thread_memory import NAME as MEMORY
from codegen.c.weights_text import ALIGNMENT, weights_declared, weights_text
from poly.ir.intervals import LARGEST_SIZE
from poly.machine.isa import Isa


def code_text(module: Module, outside: str = "") -> str:
    """The C file; the weights, if it has them, are at its end.

    outside : declares the weights, if something else defines them
    """
    shared, entry = _threads(module)
    entry += [*(_sized(module) if module.sizes else []), *_run(module), *_error(module)]
    parts, checks = [_body(x, _fuses(module)) for x in module.sections], list[str]()
    own = parts if module.is_plain else []
    prelude = _prelude("\n".join([*shared, *own, *entry]))
    if not module.is_plain:
        parts, checks = _sections(module, parts, set(_NAME.findall("\n".join(shared))))
    lines = [
        "/*", *(f" * {line}".rstrip() for line in module.about), " *",
        f" * Compile it with, say: {command(module)}", " */",
        f'#include "{module.name}.h"', *_team_includes(module), "",
        *_guard(module), HEADERS, *_included(module), prelude,
    ]  # fmt: skip
    weights = "" if module.is_separate or outside else weights_text(module.weights)
    if weights or outside:
        lines += [outside or f"{weights_declared(module.weights)};", ""]
    return "\n".join([*lines, *shared, *parts, *checks, *entry, weights])


def _threads(module: Module) -> tuple[list[str], list[str]]:
    """What functions that share loops use, and what starts threads."""
    if not module.has_team:
        return [], []
    if module.has_openmp:
        return [openmp_code(), *_arguments(module)], [openmp_functions()]
    return [team_code(module.name), *_arguments(module)], [team_functions(module.name)]


def _team_includes(module: Module) -> list[str]:
    if module.has_openmp:
        return ["#ifdef _OPENMP", "#include <omp.h>", "#endif"]
    return ["#include <sched.h>"] if module.has_team else []


def _body(module: Module, may_fuse: bool) -> str:
    """The functions of one instruction set, and one that makes all calls.

    may_fuse : see `_fuses`
    """
    used = definitions(i for f, _ in module.functions for i in f.instructions)
    lines = [line for line in used if not line.startswith(_INCLUDE)]
    for fuses, several in groupby(module.functions, lambda made: made[0].made_from.fuses_products):
        texts = [
            line
            for function, nodes in several
            for line in (header_comment(function.made_from, nodes), function.static_text, "")
        ]
        lines += texts if fuses == may_fuse else [_APART, *texts, _AGAIN]
    return "\n".join([*lines, *module.routines, *_calls(module)])


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


def command(module: Module, cc: str = "cc", files: Sequence[str] = ()) -> str:
    """How to compile the file or, with that of its test, a program.

    files : the module's own name, if left out

    gcc would note how vectors are passed to functions, but all of these are inlined.
    """
    openmp = ["-fopenmp"] if module.has_openmp else []
    words = [*shlex.split(cc), "-O2", "-Wno-psabi", *openmp, *module.flags]
    if len(files) < 2:
        return shlex.join([*words, "-c", *(files or [f"{module.name}.c"])])
    threads = ["-pthread"] if module.has_team and not module.has_openmp else []
    return shlex.join([*words, *threads, *files, "-lm", "-o", module.name])


def _guard(module: Module) -> list[str]:
    """Lines that refuse another machine, and say how arithmetic is meant, whatever the flags."""
    fuses = _fuses(module)
    return [
        *architecture_guard([x.isa for x in module.sections]),
        "#ifdef __GNUC__",
        '#pragma GCC diagnostic ignored "-Wpsabi"',
        "#endif",
        "#ifdef __clang__",
        f"#pragma STDC FP_CONTRACT {'ON' if fuses else 'OFF'}",
        "#elif defined __GNUC__",
        f'#pragma GCC optimize ("fp-contract={"fast" if fuses else "off"}", {_WRAPPING})',
        "#endif",
    ]


def _fuses(module: Module) -> bool:
    """Whether the compiler may fuse products and sums, but for functions that say otherwise."""
    return any(f.made_from.fuses_products for x in module.sections for f, _ in x.functions)


#: Around functions that give the same integers whether or not a machine has fused multiply-adds.
_APART = """#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined __GNUC__
#pragma GCC push_options
#pragma GCC optimize ("fp-contract=off")
#endif"""
_AGAIN = """#ifdef __clang__
#pragma STDC FP_CONTRACT ON
#elif defined __GNUC__
#pragma GCC pop_options
#endif
"""


#: Integers wrap around, and nothing reads errno or exceptions.
_WRAPPING = '"wrapv", "no-math-errno", "no-trapping-math"'
#: Helpers take and return vectors, which has no fixed form where they are longer than those of the
#: machine.  clang warns of helpers that only others use which are not there.
_INLINED = "static inline __attribute__((always_inline, unused)) "


def _sized(module: Module) -> list[str]:
    """A function that checks sizes, and one that says how much workspace they need."""
    given = ", ".join(f"int64_t {size}" for size in module.sizes)
    # Neither sizes nor tensors are so large that their bytes, or those of a few of them, overflow.
    conditions = [f"0 <= {size} && {size} <= INT64_C({LARGEST_SIZE})" for size in module.sizes]
    for port in (*module.inputs, *module.outputs):
        conditions.append(f"{_as_double(port.shape, port.dtype.bytes)} < 0x1p60")
    stored = dict.fromkeys(p for x in module.sections for t in x.temporaries for p in t.parts)
    conditions += [f"{_as_double(part.shape, part.width)} < 0x1p60" for part in stored]
    conditions += (condition for condition, _ in module.conditions)
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
        workspace_prototype(module),
        "{",
        *unused,
        *(["  (void)threads;"] if module.has_team else []),
        f"  if (!fk_is_valid({passed})) return 0;",
        f"  {'' if more else 'const '}uint64_t most = (uint64_t)({first});",
        *(f"  if ((uint64_t)({x}) > most) most = (uint64_t)({x});" for x in more),
        "#if SIZE_MAX < UINT64_MAX",
        "  if (most > SIZE_MAX) return SIZE_MAX;",
        "#endif",
        "  return (size_t)most;",
        "}",
        "",
        shapes_prototype(module),
        "{",
        f"  if (!fk_is_valid({passed})) return {module.prefix}_SIZE;",
        *(
            f"  {p.name}[{d}] = {extent};"
            for p in module.outputs
            for d, extent in enumerate(p.shape)
        ),
        f"  return {module.prefix}_OK;",
        "}",
        "",
    ]


def _total(section: Module) -> str:
    """The bytes of workspace of an instruction set, in C over sizes and the number of threads."""
    parts = [f" + {_up(t.bytes)}" for t in section.temporaries]
    each = " * (int64_t)(threads < 1 ? 1 : threads)" if section.has_team else ""
    parts += [f" + {section.memory}{each}"] if section.memory else []
    return f"{ALIGNMENT - 1}{''.join(parts)}" if parts else "0"


def _as_double(shape: Sequence[int | str], width: int) -> str:
    """Bytes in C, computed so that nothing overflows."""
    known = math.prod(n for n in shape if isinstance(n, int)) * width
    return " * ".join([f"{known}.0", *(f"({n})" for n in shape if isinstance(n, str))])


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
    elif module.has_team:  # one that was stopped, or whose start was refused
        lines.append(f"  if (team != NULL && team->threads < 1) return {p}_THREADS;")
    lines += _workspace(module)
    names = ", ".join(a.name for a in module.arguments)
    if module.has_team:
        given = ", ".join([f"{p}_OK", *(a.name for a in module.arguments)])
        lines.append(f"  struct fk_arguments given = {{{given}}};")
    for section in module.sections:
        calls = "fk_calls" if module.is_plain else f"fk_{tag_of(section.isa)}calls"
        made = [f"  return {calls}({names});"]
        if module.has_team:
            team = "threads" if module.has_openmp else "team"
            made = [f"  fk_run({team}, {calls}, &given);", "  return given.code;"]
        if module.is_plain or not section.isa.architecture:
            return [*lines, *made, "}", ""]
        if is_checked(section.isa):
            made = [f"  if ({_check_name(section.isa)}()) {{", *(f"  {x}" for x in made), "  }"]
        lines += [f"#ifdef {section.isa.architecture}", *made, "#endif"]
    return [*lines, f"  return {p}_MACHINE;", "}", ""]


def _check_name(isa: Isa) -> str:
    return f"fk_has_{tag_of(isa).rstrip('_')}"


def _arguments(module: Module) -> list[str]:
    """What the threads of a team are passed, in one; and what a run returns."""
    fields = [f"  {argument};" for argument in module.arguments]
    return ["struct fk_arguments {", "  int code;", *fields, "};", ""]


def _calls(module: Module) -> list[str]:
    """A function that makes all calls, on each thread if there is a team."""
    if module.has_team:
        lines = ["static void fk_calls(const void *me, void *argument)", "{"]
        lines += [f"  const fk_thread *const {TEAM} = me;", f"  (void){TEAM};"]
        lines.append("  struct fk_arguments *given = argument;")
        lines += [f"  {argument} = given->{argument.name};" for argument in module.arguments]
    else:
        passed = ", ".join(map(str, module.arguments)) or "void"
        lines = [f"static int fk_calls({passed})", "{"]
    lines += [f"  (void){argument.name};" for argument in module.arguments]
    if not module.has_team:
        return [*lines, *_steps(module), f"  return {module.prefix}_OK;", "}", ""]
    return [*lines, *_steps(module), "}", ""]


def _steps(module: Module) -> list[str]:
    """The lines that name the parts of the workspace, and run."""
    lines: list[str] = []
    for t in module.temporaries:
        lines.append(f"  {t.kind} *const {t.name} = ({t.kind} *)work;")
        lines.append(f"  work += {_up(t.bytes)};")
    if module.memory:
        at = f"work + {whole_bytes(module.arena)}" if module.arena else "work"
        own = f" + {TEAM}->number * {module.memory}" if module.has_team else ""
        lines.append(f"  unsigned char *const {MEMORY} = {at}{own};")
    for step in module.steps:
        if step.about:
            lines.append(f"  /* {step.about} */")
        if step.may_fail:
            lines += _attempt(module, step)
        elif not module.has_team or step.is_shared:
            lines.append(f"  {step.text}")
        else:
            lines += [f"  if ({TEAM}->number == 0) {step.text}", f"  fk_wait({TEAM});"]
    return lines


def _attempt(module: Module, step: Step) -> list[str]:
    """A step that may fail.  The threads of a team go on, so that none waits for another."""
    code = f"{module.prefix}_ELEMENT"
    if not module.has_team:
        return [f"  if ({step.text}) return {code};"]
    return [
        f"  if ({TEAM}->number == 0 && {step.text}) given->code = {code};",
        f"  fk_wait({TEAM});",
    ]


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
    threads = ["threads"] if module.has_openmp else threads
    needed = f"{p}_WORKSPACE_BYTES" + (f"((size_t)({threads[0]}))" if threads else "")
    if module.sizes:
        needed = f"{module.name}_workspace_bytes({', '.join([*module.sizes, *threads])})"
    return [
        f"  if (workspace == NULL || workspace_bytes < {needed})",
        f"    return {p}_WORKSPACE;",
        "  unsigned char *const work =",
        f"    (unsigned char *)(((uintptr_t)workspace + {slack}) / {ALIGNMENT} * {ALIGNMENT});",
    ]


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
