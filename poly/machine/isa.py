"""Instruction sets that code is exported for, as machines: not those of this processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from poly.errors import ArgumentError
from poly.machine.cpu import Machine

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Isa:
    """An instruction set.

    name : as users write it, such as ``x86-64-v3+avx_vnni``
    machine : a processor that has it, of common size, with one core
    flags : with which gcc and clang compile for it
    macro : that they define for its processors; "" for any
    extensions : what may be added to it, and how compilers call that
    extended : the flag to which these are appended; "": they are flags themselves
    """

    name: str
    machine: Machine
    flags: tuple[str, ...]
    macro: str
    extensions: Mapping[str, str] = field(default_factory=dict)
    extended: str = ""

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
        flags = ("".join([self.extended, *added]),) if self.extended else (*self.flags, *added)
        found = tuple(sorted({*self.machine.extensions, *more}))
        machine = replace(self.machine, extensions=found)
        return replace(self, name="+".join([self.name, *more]), machine=machine, flags=flags)

    def for_threads(self, several: bool) -> Machine:
        """The machine with several cores, or with one."""
        return replace(self.machine, cores=CORES if several else 1)


#: For how many threads work is divided where it is not known how many will share it.
CORES = 4


def _machine(vector_bytes: int, registers: int, *extensions: str) -> Machine:
    return Machine(vector_bytes, registers, 32 * _KIB, 512 * _KIB, 8 * _MIB, 1, extensions)


_X86: Mapping[str, str] = {
    "avx512_vnni": "-mavx512vnni",
    "avx512_bf16": "-mavx512bf16",
    "avx512vbmi": "-mavx512vbmi",
    "avx_vnni": "-mavxvnni",
}
_ARM: Mapping[str, str] = {"asimddp": "+dotprod", "i8mm": "+i8mm", "bf16": "+bf16"}

#: By name.
ISAS: Mapping[str, Isa] = {
    x.name: x
    for x in (
        Isa("generic", _machine(16, 16), (), ""),
        Isa("x86-64-v2", _machine(16, 16, "sse2"), ("-march=x86-64-v2",), "__SSE4_2__", _X86),
        Isa("x86-64-v3", _machine(32, 16, "avx2", "sse2"), ("-march=x86-64-v3",), "__AVX2__", _X86),
        Isa(
            "x86-64-v4",
            _machine(64, 32, "avx2", "avx512bw", "sse2"),
            ("-march=x86-64-v4", "-mprefer-vector-width=512"),
            "__AVX512BW__",
            _X86,
        ),
        Isa(
            "aarch64", _machine(16, 32), ("-march=armv8-a",), "__aarch64__", _ARM,
            "-march=armv8.2-a",
        ),
        Isa("rv64gcv", _machine(16, 32), ("-march=rv64gc",), "__riscv"),
    )
}  # fmt: skip

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
        raise ArgumentError(f"there is no instruction set {base!r}; there are {', '.join(ISAS)}")
    return found.having(more)
