"""Machines for which programs are compiled here, besides this one.

Flags of the compiler take away what the other machine lacks, so that generated code has the form
for it; code for ARM has a form that any compiler takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poly.machine.cpu import Machine, cpu_flags, host_machine
from tests.differential.harness import Variant


@dataclass(frozen=True)
class Form:
    """A kind of machine.

    vector_bytes, registers, extensions : as of `Machine`
    flags : for the compiler; needs : what this machine must have to run its code
    """

    name: str
    vector_bytes: int
    registers: int
    extensions: tuple[str, ...]
    flags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def machine(self) -> Machine:
        return replace(
            host_machine(), vector_bytes=self.vector_bytes, registers=self.registers,
            extensions=self.extensions,
        )  # fmt: skip

    def compiled(self, variant: Variant) -> Variant:
        """A variant with the flags of this machine."""
        source = variant.source
        return replace(variant, source=replace(source, flags=(*source.flags, *self.flags)))


#: What compiles and runs code for ARM, where they are installed, and the flags of `Form` "ARM".
ARM_COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
ARM_FLAGS = ("-march=armv8.2-a+dotprod+i8mm+bf16",)

_HOST = host_machine()
HOST = Form("this machine", _HOST.vector_bytes, _HOST.registers, _HOST.extensions)

_NARROW = ("-mno-avx512vnni", "-mno-avx512bf16", "-mno-avx512vbmi")
FORMS = (
    HOST,
    Form("AVX-512", 64, 32, ("avx2", "avx512bw", "sse2"), _NARROW, ("avx512bw", "avx512vl")),
    Form("AVX2", 32, 16, ("avx2", "sse2"), ("-march=x86-64-v3",), ("avx2", "f16c")),
    Form("SSE2", 16, 16, ("sse2",), ("-march=x86-64",), ("sse2",)),
    Form("ARM", 16, 32, ("asimddp", "bf16", "i8mm")),
)  # fmt: skip


def runnable() -> tuple[Form, ...]:
    """The machines whose code runs here."""
    return tuple(f for f in FORMS if {*f.needs} <= cpu_flags())
