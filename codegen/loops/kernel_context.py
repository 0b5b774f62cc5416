"""What loop passes may ask about a kernel in addition to its loops."""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.program import Program
from poly.machine.cpu import VECTOR_BYTES


@dataclass(frozen=True)
class KernelContext:
    """The kernel whose loops a pass changes.

    program : the program it computes
    vector_bytes : of the machine's vectors, on a CPU
    block : threads of a block in x, y and z, on a GPU
    shared_bytes : most bytes of shared buffers, on a GPU
    """

    program: Program
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
    vector_bytes: int = VECTOR_BYTES
