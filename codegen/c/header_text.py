"""The header of a C file that is exported: what is passed, in which shapes, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.c.function import comment_safe
from codegen.c.module import CODES, Module
from codegen.c.openmp_text import MOST_THREADS
from codegen.c.team_text import team_header


def header_text(module: Module) -> str:
    """The header: what is passed, in which shapes, and what comes back."""
    n, p = module.name, module.prefix
    codes = [f"  {p}_{code} = {k}, /* {what} */" for k, (code, what) in enumerate(CODES)]
    lines = [
        "/*", *(f" * {line}".rstrip() for line in module.about), " */",
        f"#ifndef {p}_H", f"#define {p}_H", "",
        *([] if module.has_openmp or not module.has_team else ["#include <pthread.h>"]),
        "#include <stddef.h>", "#include <stdint.h>", "",
        "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        *_workspace_declared(module),
        "/* What a run returns. */", "enum {", *codes, "};", "",
        *([] if module.has_openmp or not module.has_team else [team_header(n)]),
        "/*", " * Runs it once.  Tensors are row-major and must not overlap:", " *",
        *(f" *   {line}" for line in _tensors(module)), " *",
        *_weights_comment(module),
        " * The workspace is memory for intermediate values: any content will do, none is kept.",
        " * Calls at once need one each.  On an error nothing was written"
        + (f", but for {p}_ELEMENT." if any(s.may_fail for s in module.steps) else "."),
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
        conditions = [f" *   {shown}" for _, shown in module.conditions]
        rule = [" *", " * Sizes are in range if", " *", *conditions] if conditions else []
        return [
            "/*", " * Bytes of the workspace for these sizes; 0 as well if they are out of range.",
            *rule, " */",
            f"{workspace_prototype(module)};", "",
            "/* The shapes of the outputs for these sizes; an error code. */",
            f"{shapes_prototype(module)};", "",
            *([f"#define {module.prefix}_WEIGHTS_BYTES {len(module.weights)}", ""]
              if module.weights else []),
        ]  # fmt: skip
    p = module.prefix
    more = f" + {module.memory} * (size_t)(threads)" if module.has_team and module.memory else ""
    return [
        f"/* Bytes of the workspace; any plan needs at least {module.bound}. */",
        f"#define {p}_WORKSPACE_BYTES{'(threads)' if module.has_team else ''} "
        f"{f'({module.workspace}{more})' if more else module.workspace}",
        f"#define {p}_WEIGHTS_BYTES {len(module.weights)}",
        "",
    ]


def workspace_prototype(module: Module) -> str:
    given = [f"int64_t {size}" for size in module.sizes]
    given += ["int threads"] if module.has_team else []
    return f"size_t {module.name}_workspace_bytes({', '.join(given)})"


def shapes_prototype(module: Module) -> str:
    given = [f"int64_t {size}" for size in module.sizes]
    given += [f"int64_t {p.name}[{len(p.shape)}]" for p in module.outputs if p.shape]
    return f"int {module.name}_shapes({', '.join(given)})"


def _tensors(module: Module) -> Iterator[str]:
    for size, label in module.sizes.items():
        if label != size:
            yield f"size {size}, called '{in_comment(label)}'"
    for what, ports in (("input", module.inputs), ("output", module.outputs)):
        for port in ports:
            shape = "".join(f"[{n}]" for n in port.described or port.shape) or " (one element)"
            label = "" if port.label == port.name else f", called '{in_comment(port.label)}'"
            always = ", always with the same elements" if port.name in module.fixed else ""
            yield f"{what} {port.name}{shape}{port.shown}{label}{always}"


def in_comment(label: str) -> str:
    """A label of a model for a comment: one line of ASCII without marks of comments."""
    return comment_safe(label.encode("unicode_escape", "replace").decode("ascii"))


def _weights_comment(module: Module) -> list[str]:
    if not (module.is_separate and module.weights):
        return []
    return [f" * The weights are the bytes of the file {module.name}.bin.", " *"]
