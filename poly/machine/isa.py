"""Instruction sets that code is exported for, as machines: not those of this processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from poly.errors import ArgumentError
from poly.machine.cpu import Machine

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Isa:
    """An instruction set.

    name : as users write it, such as ``x86-64-v3+avx_vnni``
    machine : a processor that has it, of common size, with one core
    architecture : the macro that compilers define for its processors; "" for any
    features : what a processor of this architecture may lack, as compilers call it
    extensions : by the name in Farkas, what may be added to `features`
    flags : with which gcc and clang have to compile for it
    """

    name: str
    machine: Machine
    architecture: str = ""
    features: tuple[str, ...] = ()
    extensions: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def having(self, more: Sequence[str]) -> Isa:
        """The instruction set with extensions.

        Raises
        ------
        ArgumentError : it has none of these names.
        """
        for name in more:
            if name not in self.extensions:
                there = ", ".join(self.extensions) or "none"
                raise ArgumentError(
                    f"there is no extension {name!r} of {self.name}; there are {there}"
                )
        if not more:
            return self
        added = [self.extensions[name] for name in more]
        features = tuple(dict.fromkeys([*self.features, *added]))
        found = tuple(sorted({*self.machine.extensions, *more}))
        machine = replace(self.machine, extensions=found)
        return replace(self, name="+".join([self.name, *more]), machine=machine, features=features)

    def for_threads(self, several: bool) -> Machine:
        """The machine with several cores, or with one."""
        return replace(self.machine, cores=CORES if several else 1)


#: For how many threads work is divided where it is not known how many will share it.
CORES = 4


def _machine(vector_bytes: int, registers: int, *extensions: str) -> Machine:
    return Machine(vector_bytes, registers, 32 * _KIB, 512 * _KIB, 8 * _MIB, 1, extensions)


_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_X86: Mapping[str, str] = {
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512vbmi": "avx512vbmi",
    "avx_vnni": "avxvnni",
}
_ARM: Mapping[str, str] = {"asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16"}

#: By name.
ISAS: Mapping[str, Isa] = {
    x.name: x
    for x in (
        Isa("generic", _machine(16, 16)),
        Isa("x86-64-v2", _machine(16, 16, "sse2"), "__x86_64__", _V2, _X86),
        Isa("x86-64-v3", _machine(32, 16, "avx2", "sse2"), "__x86_64__", _V3, _X86),
        Isa("x86-64-v4", _machine(64, 32, "avx2", "avx512bw", "sse2"), "__x86_64__", _V4, _X86),
        Isa("aarch64", _machine(16, 32), "__aarch64__", (), _ARM),
        Isa("rv64gcv", _machine(16, 32), "__riscv"),
        Isa("wasm", _machine(16, 16), "__wasm_simd128__", flags=("-msimd128",)),
    )
}

#: What others call some of them.
_OTHER_NAMES = {
    "arm64": "aarch64",
    "armv8": "aarch64",
    "neon": "aarch64",
    "riscv": "rv64gcv",
    "riscv64": "rv64gcv",
    "sse4": "x86-64-v2",
    "x86-64": "x86-64-v2",
    "avx2": "x86-64-v3",
    "avx512": "x86-64-v4",
    "wasm32": "wasm",
}

#: What code is exported for by default: all processors of x86 since 2015, about.
DEFAULT_ISA = "x86-64-v3"


def find_isa(name: str) -> Isa:
    """The instruction set of a name, with the extensions that follow it after ``+``.

    Raises
    ------
    ArgumentError : there is none of this name.
    """
    base, *more = name.split("+")
    found = ISAS.get(base)
    if found is None:
        meant = _OTHER_NAMES.get(base.lower(), next(iter(get_close_matches(base, ISAS, 1)), ""))
        advice = f"did you mean {meant!r}?" if meant else f"there are {', '.join(ISAS)}"
        raise ArgumentError(f"there is no instruction set {base!r}; {advice}")
    return found.having(more)


def find_isas(given: str | Sequence[str]) -> tuple[Isa, ...]:
    """The instruction sets of names, each once, those of the most features first.

    given : names, or one text with commas between them

    Raises
    ------
    ArgumentError : there is none of a name, or no name.
    """
    names = [given] if isinstance(given, str) else list(given)
    words = [word.strip() for name in names for word in name.split(",")]
    found = {isa.name: isa for isa in map(find_isa, words)}
    if not found:
        raise ArgumentError(f"no instruction set is named; there are {', '.join(ISAS)}")
    return tuple(sorted(found.values(), key=lambda isa: (-len(isa.features), not isa.architecture)))
