"""What loops and buffers of a schedule tree become."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from poly.ir.intrinsics import INTRINSICS, Intrinsic


class Mark(StrEnum):
    """What a loop becomes.

    SEQ : a loop; UNROLL : its iterations, one after the other
    PARALLEL : iterations on the threads of a CPU; VECTOR : in lanes
    BLOCK, THREAD : on the blocks of a GPU's grid, on the threads of a block
    REDUCE : on threads of a block that each sum up for themselves, and combine what they have
    behind the loops
    """

    SEQ = "seq"
    UNROLL = "unroll"
    PARALLEL = "parallel"
    VECTOR = "vector"
    BLOCK = "block"
    THREAD = "thread"
    REDUCE = "reduce"
    #: Only of generated loops: adjacent elements that one access may move.
    WIDE = "wide"
    #: Only of generated loops: the one iteration that a thread of a warp is in.
    OWN_THREAD = "own thread"


@dataclass(frozen=True)
class Tensorized:
    """The mark of a loop of an instruction of tensor cores."""

    name: str

    @property
    def intrinsic(self) -> Intrinsic:
        """The instruction."""
        return INTRINSICS[self.name]

    def __str__(self) -> str:
        return self.name


LoopMark = Mark | Tensorized

#: Those whose iterations run at once, on threads that share no registers.
CONCURRENT = (Mark.PARALLEL, Mark.BLOCK, Mark.THREAD, Mark.REDUCE)
#: Those that run on the threads of a block of a GPU.
ON_THREADS = (Mark.THREAD, Mark.REDUCE)


class Scope(StrEnum):
    """Where a buffer lies.

    REGISTER : variables of a thread; LOCAL : an array of a thread
    SHARED : an array of all threads of a block
    FRAGMENT : registers of a warp, for tensor cores
    PARTIAL : a variable of each thread, what it contributes to an element that several sum up
    """

    REGISTER = "register"
    LOCAL = "local"
    SHARED = "shared"
    FRAGMENT = "fragment"
    PARTIAL = "partial"
    #: Only of generated buffers: vectors of accumulators.
    LANES = "lanes"
