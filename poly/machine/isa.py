"""Instruction sets that code is exported for, as machines: not those of this processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from poly.errors import ArgumentError
from poly.machine.cpu import EXTENSIONS, Machine

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Isa:
    """An instruction set.

    name : as users write it, such as ``x86-64-v3+avx_vnni``
    machine : a processor that has it, of common size, with one core
    flags : with which gcc and clang compile for it
    macro : that they define for its processors; "" for any
    """

    name: str
    machine: Machine
    flags: tuple[str, ...]
    macro: str

    def for_threads(self, several: bool) -> Machine:
        """The machine with several cores, or with one."""
        return replace(self.machine, cores=CORES if several else 1)


#: For how many threads work is divided where it is not known how many will share it.
CORES = 4


def _machine(vector_bytes: int, registers: int, *extensions: str) -> Machine:
    return Machine(vector_bytes, registers, 32 * _KIB, 512 * _KIB, 8 * _MIB, 1, extensions)


#: By name.
ISAS: Mapping[str, Isa] = {
    x.name: x
    for x in (
        Isa("generic", _machine(16, 16), (), ""),
        Isa("x86-64-v2", _machine(16, 16, "sse2"), ("-march=x86-64-v2",), "__SSE4_2__"),
        Isa("x86-64-v3", _machine(32, 16, "avx2", "sse2"), ("-march=x86-64-v3",), "__AVX2__"),
        Isa(
            "x86-64-v4",
            _machine(64, 32, "avx2", "avx512bw", "sse2"),
            ("-march=x86-64-v4", "-mprefer-vector-width=512"),
            "__AVX512BW__",
        ),
        Isa("aarch64", _machine(16, 32), ("-march=armv8-a",), "__aarch64__"),
        Isa("rv64gcv", _machine(16, 32), ("-march=rv64gc",), "__riscv"),
    )
}

#: What code is exported for by default: all processors of x86 since 2015, about.
DEFAULT_ISA = "x86-64-v3"

#: What compilers call the extensions that may be added to a name.
_FLAGS: Mapping[str, str] = {
    "avx512_vnni": "-mavx512vnni",
    "avx512_bf16": "-mavx512bf16",
    "avx512vbmi": "-mavx512vbmi",
    "avx_vnni": "-mavxvnni",
    "asimddp": "-march=armv8.2-a+dotprod",
    "i8mm": "-march=armv8.2-a+dotprod+i8mm",
    "bf16": "-march=armv8.2-a+bf16",
}


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
    for extension in more:
        if extension not in EXTENSIONS or extension not in _FLAGS:
            raise ArgumentError(
                f"there is no extension {extension!r}; there are {', '.join(_FLAGS)}"
            )
    extensions = tuple(sorted({*found.machine.extensions, *more}))
    flags = (*found.flags, *(_FLAGS[x] for x in more))
    return replace(
        found, name=name, machine=replace(found.machine, extensions=extensions), flags=flags
    )
