"""Machine parameters of a processor: vector width, registers, caches, cores."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

#: The longest vector registers in existence, in bytes; instruction sets with them have masked
#: instructions.
VECTOR_BYTES = 64


#: Extensions of instruction sets with instructions of `poly.ir.instruction_tables`, as
#: /proc/cpuinfo calls them.
EXTENSIONS = tuple(
    "asimddp avx2 avx512_bf16 avx512_vnni avx512bw avx512vbmi avx_vnni bf16 i8mm sse2".split()
)


#: Those whose instructions round sums otherwise than they are written.
ROUNDING = ("avx512_bf16", "bf16")


@dataclass(frozen=True)
class Machine:
    """A processor.

    vector_bytes : width of a vector register, in bytes
    registers : number of vector registers
    l1, l2, l3 : sizes of the data caches that one core sees, in bytes
    cores : number of cores that this process may use
    extensions : those of `EXTENSIONS` that it has
    """

    vector_bytes: int
    registers: int
    l1: int
    l2: int
    l3: int
    cores: int
    extensions: tuple[str, ...] = ()

    @property
    def exact(self) -> Machine:
        """The machine without instructions that round otherwise than is written."""
        kept = tuple(name for name in self.extensions if name not in ROUNDING)
        return replace(self, extensions=kept)

    @property
    def caches(self) -> tuple[tuple[str, int], ...]:
        """Names and bytes of the caches that a core sees, smallest first."""
        return ("L1", self.l1), ("L2", self.l2), ("L3", self.l3)

    @property
    def machine(self) -> Machine:
        """Itself: passes ask for it by this name, over programs and over graphs."""
        return self

    @property
    def parallelism(self) -> int:
        """How many iterations of a loop run at once."""
        return self.cores

    def __str__(self) -> str:
        caches = " / ".join(f"{c >> 10} KiB" for c in (self.l1, self.l2, self.l3))
        return (
            f"{self.cores} cores, {self.registers} vector registers of {self.vector_bytes} bytes, "
            f"caches {caches}"
        )


@cache
def host_machine() -> Machine:
    """The machine that this process runs on; conservative where the system does not say."""
    flags = cpu_flags()
    if "avx512f" in flags:
        vector, registers = 64, 32
    elif "avx2" in flags:
        vector, registers = 32, 16
    else:
        vector, registers = 16, 32 if "asimd" in flags else 16
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    caches = _caches()
    return Machine(
        vector,
        registers,
        caches.get(1, 32 << 10),
        caches.get(2, 512 << 10),
        caches.get(3, 8 << 20),
        cores or 1,
        tuple(name for name in EXTENSIONS if name in flags),
    )


def cpu_flags() -> frozenset[str]:
    """The features of this machine's processor, as /proc/cpuinfo calls them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(match[1].split()) if match else frozenset()


def _caches() -> dict[int, int]:
    found: dict[int, int] = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (index / "type").read_text().strip() == "Instruction":
                continue
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if match:
            found[level] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return found
