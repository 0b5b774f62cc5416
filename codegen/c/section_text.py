"""Sections of a C file, each for one instruction set: their text, and how compilers are told.

A section is text as for a machine that has the instructions.  It is enclosed by what lets gcc and
clang use them, whatever the flags are: for gcc a pragma, for clang an attribute of each function.
clang defines no macros then, so that the text has the answers instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from codegen.c.machine_check import feature_macros
from codegen.c.vector_math import MVEC_PROBE
from poly.machine.isa import Isa

_NAMES = re.compile(r"/\*.*?\*/|\bfk_\w+", re.DOTALL)
_ASKED = re.compile(r"\bdefined\((\w+)\)")


def is_checked(isa: Isa) -> bool:
    """Whether machines of its architecture may lack some of its instructions."""
    return bool(isa.features)


def needed_of(isa: Isa, text: str) -> Isa:
    """The part of an instruction set that a text needs.

    Conversions of 16-bit floats are left out if it has none: older compilers make a program ask the
    processor for them in each run.
    """
    if "__F16C__" in text:
        return isa
    return replace(isa, features=tuple(name for name in isa.features if name != "f16c"))


def tag_of(isa: Isa) -> str:
    """What is added to the names of its section: ``fk_x`` becomes ``fk_v3_x``."""
    return re.sub(r"\W", "_", isa.name.removeprefix("x86-64-")) + "_"


def section_text(text: str, isa: Isa, shared: Collection[str]) -> str:
    """The text of a section among others.

    shared : names that it uses, and does not define
    """
    tag = tag_of(isa)
    # Lines that are not indented define what the whole file sees, and name nothing local.
    lines_ = (line for line in text.splitlines() if not line.startswith((" ", "/*", " *")))
    named = {name for line in lines_ for name in _NAMES.findall(line)}
    seen = {name for name in named if name.startswith("fk_")} - {*shared}

    def renamed(found: re.Match[str]) -> str:
        name = found[0]
        return f"fk_{tag}{name[3:]}" if name in seen else name

    lines = [f"/* --- for {isa.name} --- */", _NAMES.sub(renamed, text)]
    if isa.features:
        lines[1] = _answered(lines[1], isa)
        lines = [*_opened(isa), *lines, *_closed()]
    if isa.architecture:
        lines = [f"#ifdef {isa.architecture}", *lines, "#endif"]
    return "\n".join(lines)


def _answered(text: str, isa: Isa) -> str:
    """What the preprocessor is asked about features, as 1 or 0.

    Functions of glibc on vectors are left to gcc: clang passes vectors as the flags say, and not as
    the attribute does, which is in memory where the function expects registers.
    """
    macros = feature_macros(isa)
    for_gcc = MVEC_PROBE.replace("defined(__GLIBC__)", "defined(__GLIBC__) && !defined(__clang__)")
    text = text.replace(MVEC_PROBE, for_gcc)

    def answer(found: re.Match[str]) -> str:
        return found[0] if found[1] not in macros else str(int(macros[found[1]]))

    return _ASKED.sub(answer, text)


def _opened(isa: Isa) -> list[str]:
    own = ",".join(isa.features)
    gcc = [own]
    if isa.architecture == "__aarch64__":
        gcc = ["+".join(["arch=armv8.2-a", *isa.features])]
    elif isa.machine.vector_bytes == 64:
        gcc = [own, "prefer-vector-width=512"]
    return [
        "#ifdef __clang__",
        f'#pragma clang attribute push(__attribute__((target("{own}"))), apply_to = function)',
        "#elif defined __GNUC__",
        "#pragma GCC push_options",
        f'#pragma GCC target("{",".join(gcc)}")',
        "#endif",
    ]


def _closed() -> list[str]:
    return [
        "#ifdef __clang__", "#pragma clang attribute pop", "#elif defined __GNUC__",
        "#pragma GCC pop_options", "#endif",
    ]  # fmt: skip


def architecture_guard(isas: Sequence[Isa]) -> list[str]:
    """Lines that refuse processors that none of some instruction sets is for."""
    if any(not isa.architecture for isa in isas):
        return [
            "#if defined __BYTE_ORDER__ && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__",
            '#error "this code is for processors that store the least byte first"',
            "#endif",
        ]
    needed = dict.fromkeys(isa.architecture for isa in isas)
    tests = " && ".join(f"!defined({macro})" for macro in needed)
    names = ", ".join(isa.name for isa in isas)
    flags = " ".join(dict.fromkeys(flag for isa in isas for flag in isa.flags))
    advice = f"; compile it with {flags}" if flags else ""
    return [f"#if {tests}", f'#error "this code is for {names}{advice}"', "#endif"]
