"""What passes over loops may ask about a kernel beside the loops themselves."""

from __future__ import annotations

from dataclasses import dataclass

from poly.ir.program import Program


@dataclass(frozen=True)
class KernelContext:
    """The kernel whose loops a pass changes.

    program : what it computes
    block : threads of a block in x, y and z, on a GPU
    shared_bytes : memory that shared buffers may take, on a GPU
    """

    program: Program
    block: tuple[int, int, int] = (1, 1, 1)
    shared_bytes: int = 0
