"""Marks of loops and scopes of buffers in a schedule tree."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from poly.ir.intrinsics import Intrinsic


class Mark(StrEnum):
    """The mark of a loop.

    SEQ : a loop; UNROLL : its iterations, one after the other
    PARALLEL : iterations on the threads of a CPU; VECTOR : in lanes
    BLOCK, THREAD : on the blocks of a GPU's grid, on the threads of a block
    REDUCE : on threads of a block, each with a partial result; they are combined after the loops
    """

    SEQ = "seq"
    UNROLL = "unroll"
    PARALLEL = "parallel"
    VECTOR = "vector"
    BLOCK = "block"
    THREAD = "thread"
    REDUCE = "reduce"
    #: Only in generated loops: adjacent elements that one access may move.
    WIDE = "wide"
    #: Only in generated loops: the single iteration that belongs to a thread of a warp.
    OWN_THREAD = "own thread"


@dataclass(frozen=True)
class Tensorized:
    """The mark of a loop of an instruction, which stays what it is if its name is declared anew."""

    intrinsic: Intrinsic

    @property
    def name(self) -> str:
        return self.intrinsic.name

    def __str__(self) -> str:
        return self.name


LoopMark = Mark | Tensorized

#: Marks whose iterations run at once, on threads that share no registers.
CONCURRENT = (Mark.PARALLEL, Mark.BLOCK, Mark.THREAD, Mark.REDUCE)
#: Marks of loops that run on the threads of a block of a GPU.
ON_THREADS = (Mark.THREAD, Mark.REDUCE)


class Scope(StrEnum):
    """The memory of a buffer.

    REGISTER : variables of a thread; LOCAL : an array of a thread
    SHARED : an array of all threads of a block
    FRAGMENT : registers of a warp, for tensor cores
    PARTIAL : a variable of each thread: its contribution to an element that several threads sum
    """

    REGISTER = "register"
    LOCAL = "local"
    SHARED = "shared"
    FRAGMENT = "fragment"
    PARTIAL = "partial"
    #: Only in generated buffers: vectors of accumulators.
    LANES = "lanes"
