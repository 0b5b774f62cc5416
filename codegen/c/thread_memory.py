"""Thread-local memory for kernel arrays that are too large for the stack."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from codegen.loops.nodes import Buffer

#: Most bytes of stack that a function's arrays take.  Threads may have little: musl gives them
#: 128 KiB, and the kernel's caller has used some of it.
STACK_LIMIT = 32 << 10
#: The C name of that memory.  A library has one, since a thread runs one kernel at a time.
NAME = "fk_thread_memory"
_ALIGNMENT = 64
_HIDDEN = 'visibility("hidden")'


class ThreadMemory:
    """Offsets of one function's arrays as scopes are entered and left; `bytes` is the total.

    limit : see `STACK_LIMIT`; None: everything is on the stack
    """

    def __init__(self, limit: int | None) -> None:
        self.limit, self.bytes = limit, 0
        self._stack = self._used = 0

    @contextmanager
    def reserve(self, buffer: Buffer) -> Iterator[int | None]:
        """The byte offset of an array while its scope lasts; None: it is on the stack."""
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
    """Declare an array on the stack, or at an offset in the thread's memory."""
    if offset is None:
        extents = "".join(f"[{n}]" for n in shape)
        return f"{kind} {name}{extents} __attribute__((aligned({_ALIGNMENT})));"
    inner = "".join(f"[{n}]" for n in shape[1:])
    target = f"(*restrict {name}){inner}" if inner else f"*restrict {name}"
    address = f"{NAME} + {offset}" if offset else NAME
    return f"{kind} {target} = fk_pointer({address});"


def definition(count: int, others: bool = False) -> list[str]:
    """The lines that define `count` bytes of thread memory; none if `count` is 0.

    others : other units of the library use it as well, see `declaration`
    """
    if not count:
        return []
    kind, hidden = ("", f", {_HIDDEN}") if others else ("static ", "")
    attributes = f"__attribute__((aligned({_ALIGNMENT}){hidden}))"
    return [f"{kind}_Thread_local unsigned char {NAME}[{count}] {attributes};"]


def declaration(count: int) -> list[str]:
    """The lines that declare thread memory which another unit defines."""
    if not count:
        return []
    return [f"extern _Thread_local unsigned char {NAME}[] __attribute__(({_HIDDEN}));"]
