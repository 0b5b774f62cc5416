"""Processors that tests schedule for, whatever runs them."""

from __future__ import annotations

from dataclasses import replace

import farkas as fk
from codegen.pipeline import CPU
from poly.machine.cpu import Machine

#: Two cores with 32 vector registers of 64 bytes, and caches of 32 KiB, 1 MiB and 32 MiB.
AVX512 = Machine(64, 32, 32 << 10, 1 << 20, 32 << 20, 2)
ONE_CORE = replace(AVX512, cores=1)
#: With sums of four products of bytes.
VNNI = replace(AVX512, extensions=("avx512_vnni", "avx512bw"))


def automatic(text: str, machine: Machine = AVX512) -> str:
    """The script of the automatic schedule of a program."""
    return str(CPU.automatic(CPU.prepare(fk.parse(text), machine), machine).schedule)
