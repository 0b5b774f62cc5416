"""Functions of exported C that ask whether the machine has what a section of the code needs.

On x86 the library of the compiler (libgcc, or compiler-rt) has asked the processor when the program
was loaded, and is read in a nanosecond.  Where it has not (zig's never does) or does not know a
feature, the processor is asked, which takes microseconds on virtual machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poly.machine.isa import Isa


@dataclass(frozen=True)
class _Bit:
    """Where a feature of x86 is found: the leaf and subleaf of CPUID, its register and bit."""

    leaf: tuple[int, int]
    register: str
    number: int


_X86: Mapping[str, _Bit] = {
    "sse3": _Bit((1, 0), "c", 0),
    "ssse3": _Bit((1, 0), "c", 9),
    "fma": _Bit((1, 0), "c", 12),
    "sse4.1": _Bit((1, 0), "c", 19),
    "sse4.2": _Bit((1, 0), "c", 20),
    "popcnt": _Bit((1, 0), "c", 23),
    "avx": _Bit((1, 0), "c", 28),
    "f16c": _Bit((1, 0), "c", 29),
    "bmi": _Bit((7, 0), "b", 3),
    "avx2": _Bit((7, 0), "b", 5),
    "bmi2": _Bit((7, 0), "b", 8),
    "avx512f": _Bit((7, 0), "b", 16),
    "avx512dq": _Bit((7, 0), "b", 17),
    "avx512cd": _Bit((7, 0), "b", 28),
    "avx512bw": _Bit((7, 0), "b", 30),
    "avx512vl": _Bit((7, 0), "b", 31),
    "avx512vbmi": _Bit((7, 0), "c", 1),
    "avx512vnni": _Bit((7, 0), "c", 11),
    "avxvnni": _Bit((7, 1), "a", 4),
    "avx512bf16": _Bit((7, 1), "a", 5),
}
#: What older compilers' libraries do not know.
_NEWER = ("f16c", "avxvnni")
_KNOWS_NEWER = "__clang_major__ >= 19 || (!defined(__clang__) && __GNUC__ >= 11)"
#: The bits of XCR0 that say which registers the system keeps: those of AVX, and of AVX-512.
_KEPT_AVX, _KEPT_AVX512 = 0x6, 0xE6
#: That the system uses XSAVE, without which there is no XCR0.
_OSXSAVE = 27

#: By feature of aarch64: its macro, and its bit in which of Linux's words.
_ARM: Mapping[str, tuple[str, str, int]] = {
    "dotprod": ("__ARM_FEATURE_DOTPROD", "AT_HWCAP", 20),
    "i8mm": ("__ARM_FEATURE_MATMUL_INT8", "AT_HWCAP2", 13),
    "bf16": ("__ARM_FEATURE_BF16_VECTOR_ARITHMETIC", "AT_HWCAP2", 14),
}
#: Atomic instructions, which belong to the architecture that the others extend.
_ATOMICS = ("AT_HWCAP", 8)


def feature_macros(isa: Isa) -> Mapping[str, bool]:
    """What compilers define for features of an architecture, and whether an instruction set has
    them.
    """
    if isa.architecture == "__aarch64__":
        return {macro: name in isa.features for name, (macro, _, _) in _ARM.items()}
    return {f"__{n.upper().replace('.', '_')}__": n in isa.features for n in _X86}


def check_headers(isa: Isa) -> list[str]:
    """The lines that include what its check needs."""
    if isa.architecture == "__aarch64__":
        return ["#ifdef __linux__", "#include <sys/auxv.h>", "#endif"]
    return ["#include <cpuid.h>"]


def machine_check(isa: Isa, name: str) -> str:
    """A function that says whether this machine has the features of an instruction set."""
    about = f"/* Whether this machine has {', '.join(isa.features)}. */"
    lines = _arm(isa.features) if isa.architecture == "__aarch64__" else _x86(isa.features)
    return "\n".join([about, f"static int {name}(void)", "{", *lines, "}", ""])


def _arm(features: Sequence[str]) -> list[str]:
    words: dict[str, int] = {}
    for word, bit in (_ATOMICS, *(_ARM[name][1:] for name in features)):
        words[word] = words.get(word, 0) | 1 << bit
    has = [f"(getauxval({word}) & {bits:#x}ul) == {bits:#x}ul" for word, bits in words.items()]
    told = [f"defined({_ARM[name][0]})" for name in features]
    return [
        "#if defined(__linux__)",
        f"  return {' && '.join(has)};",
        f"#elif {' && '.join(told)}",
        "  return 1; /* says the compiler */",
        "#else",
        "  return 0;",
        "#endif",
    ]


def _x86(features: Sequence[str]) -> list[str]:
    known = " &&\n      ".join(f'__builtin_cpu_supports("{name}")' for name in features)
    newer = any(name in _NEWER for name in features)
    library = [f'  if (__builtin_cpu_supports("sse2")) /* it has asked */\n    return {known};']
    if newer:
        library = [f"#if {_KNOWS_NEWER}", *library, "#endif"]
    lines = [*library, "  unsigned a, b, c, d;"]
    for leaf in sorted({_X86[name].leaf for name in features}):
        lines += _asked(leaf, [_X86[name] for name in features if _X86[name].leaf == leaf])
        if leaf == (1, 0) and "avx" in features:
            kept = _KEPT_AVX512 if "avx512f" in features else _KEPT_AVX
            lines += [
                "  unsigned low, high; /* which registers the system keeps */",
                '  __asm__ volatile ("xgetbv" : "=a"(low), "=d"(high) : "c"(0));',
                f"  if ((low & {kept:#x}u) != {kept:#x}u) return 0;",
            ]
    return [*lines, "  (void)a, (void)b, (void)c, (void)d;", "  return 1;"]


def _asked(leaf: tuple[int, int], bits: Sequence[_Bit]) -> list[str]:
    """Lines that return 0 unless some bits are set."""
    lines = [f"  __cpuid_count({leaf[0]}, {leaf[1]}, a, b, c, d);"]
    if leaf == (7, 1):  # which leaf (7, 0) says whether there is
        lines[:0] = ["  if (a < 1) return 0;"]
    found: dict[str, int] = {}
    for bit in bits:
        found[bit.register] = found.get(bit.register, 0) | 1 << bit.number
        if bit.leaf == (1, 0) and bit.number == _X86["avx"].number:
            found[bit.register] |= 1 << _OSXSAVE
    lines += [f"  if (({r} & {n:#x}u) != {n:#x}u) return 0;" for r, n in found.items()]
    return lines
