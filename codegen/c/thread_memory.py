"""Arrays of kernels that are too large for the stack: they lie in memory of the thread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from codegen.loops.nodes import Buffer

#: Bytes that the arrays of a function take of the stack at most.  Threads may have little: musl
#: gives them 128 KiB, and whoever calls a kernel has used some of it.
STACK_LIMIT = 32 << 10
#: The C name of that memory.  A library has it once, since a thread runs one kernel at a time.
NAME = "fk_thread_memory"
_ALIGNMENT = 64
_HIDDEN = 'visibility("hidden")'


class ThreadMemory:
    """Places of the arrays of one function, as scopes are entered and left; `bytes` it takes.

    limit : see `STACK_LIMIT`; None: everything is on the stack
    """

    def __init__(self, limit: int | None) -> None:
        self.limit, self.bytes = limit, 0
        self._stack = self._used = 0

    @contextmanager
    def place(self, buffer: Buffer) -> Iterator[int | None]:
        """Where an array begins, in bytes, while its scope lasts; None: on the stack."""
        before = self._stack, self._used
        size = -(-math.prod(buffer.shape) * buffer.dtype.bytes // _ALIGNMENT) * _ALIGNMENT
        offset = None
        if self.limit is None or self._stack + size <= self.limit:
            self._stack += size
        else:
            offset = self._used
            self._used += size
            self.bytes = max(self.bytes, self._used)
        yield offset
        self._stack, self._used = before


def array(kind: str, name: str, shape: tuple[int, ...], offset: int | None) -> str:
    """The declaration of an array on the stack, or at a place in the thread's memory."""
    if offset is None:
        extents = "".join(f"[{n}]" for n in shape)
        return f"{kind} {name}{extents} __attribute__((aligned({_ALIGNMENT})));"
    inner = "".join(f"[{n}]" for n in shape[1:])
    target = f"(*restrict {name}){inner}" if inner else f"*restrict {name}"
    place = f"{NAME} + {offset}" if offset else NAME
    return f"{kind} {target} = fk_pointer({place});"


def definition(count: int, others: bool = False) -> list[str]:
    """The lines that define so many bytes of a thread's memory, none if there are none.

    others : other units of the library use it, too, see `declaration`
    """
    if not count:
        return []
    kind, hidden = ("", f", {_HIDDEN}") if others else ("static ", "")
    attributes = f"__attribute__((aligned({_ALIGNMENT}){hidden}))"
    return [f"{kind}_Thread_local unsigned char {NAME}[{count}] {attributes};"]


def declaration(count: int) -> list[str]:
    """The lines by which a unit uses what another one defines."""
    if not count:
        return []
    return [f"extern _Thread_local unsigned char {NAME}[] __attribute__(({_HIDDEN}));"]
