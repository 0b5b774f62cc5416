"""`intrinsic`: an instruction from the text of its meaning and a template of C."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from farkas.targets.cpu import CpuRunner
from farkas.targets.find_target import CacheLike, CompilerLike, cpu_target
from frontends.language.parse_program import parse_program
from frontends.language.parser import parse
from frontends.language.syntax import Source
from poly.errors import ArgumentError, LanguageError, Span
from poly.ir.instruction_tables import declare_intrinsic, is_ours
from poly.ir.intrinsics import PLACEHOLDER, VectorIntrinsic, wrong_meaning
from poly.ir.program import Program
from runtime.intrinsics.check import Verdict, check, refusal

_HEADER = re.compile(r"[\w./+-]+\Z", re.ASCII)
_EXAMPLE = "def add8(float32 x[8], float32 y[8]) -> (float32 z[8]) { z[i] = x[i] + y[i] }"


def intrinsic(
    meaning: str,
    template: str,
    *,
    setup: str = "",
    feature: str = "",
    headers: Sequence[str] = (),
    reorders: bool = False,
    cc: CompilerLike = None,
    cache: CacheLike = None,
) -> VectorIntrinsic:
    """Declare an instruction of CPUs, for the step `tensorize` of schedules.

    >>> fk.intrinsic(
    ...     "def add16(float32 x[16], float32 y[16]) -> (float32 z[16]) { z[i] = x[i] + y[i] }",
    ...     "_mm512_storeu_ps({z}, _mm512_add_ps(_mm512_loadu_ps({x}), _mm512_loadu_ps({y})));",
    ...     headers=["immintrin.h"], feature="avx512f")

    It is compiled and compared with its meaning, on this machine and with this compiler, unless it
    was before.  One that differs is refused; one that needs a feature that this machine does not
    have is declared, but not used.  An earlier one of the same name is replaced, but for schedules
    that have it already.

    Parameters
    ----------
    meaning : a definition of one statement, with numbers as extents; its name is the instruction's
    template : C statements, with ``{T}`` for a pointer to the first element of each tensor T
    setup : C text that they need before, outside of functions; headers : those that it includes
    feature : the names by which /proc/cpuinfo lists what it needs, with blanks between them
    reorders : sums of floats may be rounded in another order, or otherwise, than written, and
        subnormal numbers may count as zeros; such an instruction is refused in exact mode
    cc, cache : the C compiler and the cache, as for `compile`

    Raises
    ------
    LanguageError : a mistake in the meaning or the template.
    IntrinsicError : it does something else than its meaning; `witness` says for which operands.
    ArgumentError : an argument of another type.
    ToolchainError : no C compiler.
    """
    made = read_intrinsic(meaning, template, setup, feature, headers, reorders)
    (verdict,) = check_here([made], cc, cache)
    if verdict.refused:
        raise refusal(verdict)
    return declare(verdict)


def check_here(
    intrinsics: Sequence[VectorIntrinsic], cc: CompilerLike, cache: CacheLike
) -> list[Verdict]:
    """Compare instructions with their meaning on this machine.

    Raises
    ------
    ToolchainError : there is no C compiler.
    """
    runner = cpu_target(cc, cache).runner
    assert isinstance(runner, CpuRunner)
    return check(intrinsics, runner.toolchain, runner.cache)


def declare(verdict: Verdict) -> VectorIntrinsic:
    """Make an instruction known that was not refused."""
    known = replace(verdict.intrinsic, checked=verdict.passed)
    declare_intrinsic(known)
    return known


def read_intrinsic(
    meaning: str,
    template: str,
    setup: str = "",
    feature: str = "",
    headers: Sequence[str] = (),
    reorders: bool = False,
) -> VectorIntrinsic:
    """An instruction as `intrinsic` takes it, not compared with its meaning yet.

    Raises
    ------
    LanguageError : a mistake in the meaning or the template.
    ArgumentError : an argument of another type.
    """
    texts = {"meaning": meaning, "template": template, "setup": setup, "feature": feature}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ArgumentError(f"{name} is a {type(value).__name__}, expected a string")
    if not isinstance(reorders, bool):
        raise ArgumentError(f"reorders is a {type(reorders).__name__}, expected True or False")
    program = _meaning(meaning)
    return VectorIntrinsic(
        replace(program, text=None),
        _template(template, program),
        setup,
        " ".join(feature.split()),
        reorders,
        checked=False,
        headers=_headers(headers),
        by_user=True,
    )


def _meaning(text: str) -> Program:
    source = parse(text)
    if source.name is None:
        raise LanguageError(
            "an instruction has a name and declares its tensors", text, Span(0, len(text)),
            f"write it as `{_EXAMPLE}`",
        )  # fmt: skip
    if is_ours(source.name.name):
        message = f"{source.name.name} is an instruction of Farkas; choose another name"
        raise LanguageError(message, text, source.name.span)
    program = parse_program(text)
    problem = wrong_meaning(program)
    if problem:
        raise LanguageError(problem, text, _span_of(source, program))
    return program


def _span_of(source: Source, program: Program) -> Span:
    """What is wrong: a size, the second statement, else the statement."""
    if program.sizes:
        found = re.search(rf"\b{program.sizes[0]}\b", source.text)
        if found is not None:
            return Span(*found.span())
    return source.statements[min(1, len(source.statements) - 1)].span


def _template(text: str, program: Program) -> str:
    """The template as whole statements, if it has all tensors and no other names."""
    if not text.strip():
        raise LanguageError("the template is empty: write C statements, with {T} for each tensor T")
    names = [*program.tensors]
    for found in re.finditer(PLACEHOLDER, text):
        if found[1] not in names:
            raise LanguageError(
                f"{program.name} has no tensor {found[1]}; it has {', '.join(names)}",
                text, Span(*found.span()), "in C, braces around a name need blanks: { x }",
            )  # fmt: skip
    missing = [n for n in names if f"{{{n}}}" not in text]
    if missing:
        raise LanguageError(
            f"the template does not use {missing[0]}", text, Span(0, len(text.rstrip())),
            f"{{{missing[0]}}} stands for a pointer to its first element",
        )  # fmt: skip
    text = text.strip()
    return text if text.endswith((";", "}")) else f"{text};"


def _headers(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ArgumentError(f"headers is a string; pass a list of names, as in [{names!r}]")
    if not isinstance(names, Iterable):
        raise ArgumentError(f"headers is a {type(names).__name__}, expected a list of names")
    found = tuple(names)
    for name in found:
        if not isinstance(name, str) or not _HEADER.match(name):
            raise ArgumentError(f"{name!r} is not the name of a header, as in 'immintrin.h'")
    return found
