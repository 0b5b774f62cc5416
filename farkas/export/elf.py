"""What a shared library of Linux needs: other libraries, and versions of glibc."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from poly.errors import ToolchainError

_DYNAMIC, _LOADED = 2, 1
_NEEDED, _STRINGS = 1, 5
#: What comes with glibc.
_OF_GLIBC = re.compile(r"(libc|libm|libmvec|libpthread|ld-linux[\w-]*)\.so\.\d")


def needed_libraries(library: bytes) -> tuple[str, ...]:
    """The names of the libraries that one is linked with.

    Raises
    ------
    ToolchainError : it is not a 64-bit library of Linux.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        raise ToolchainError("the compiler has made no library of Linux for a 64-bit processor")
    segments = list(_segments(library))
    entries = [
        struct.unpack_from("<QQ", library, at)
        for kind, offset, _, size in segments
        if kind == _DYNAMIC
        for at in range(offset, offset + size, 16)
    ]
    address = next((value for tag, value in entries if tag == _STRINGS), 0)
    strings = next(
        (
            offset + address - start
            for kind, offset, start, size in segments
            if kind == _LOADED and start <= address < start + size
        ),
        0,
    )
    places = [strings + value for tag, value in entries if tag == _NEEDED]
    return tuple(library[at : library.index(b"\0", at)].decode() for at in places)


def _segments(library: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The kind, offset, address and size of each segment."""
    (first,) = struct.unpack_from("<Q", library, 32)
    width, count = struct.unpack_from("<HH", library, 54)
    for n in range(count):
        kind, _, offset, start, _, size = struct.unpack_from("<IIQQQQ", library, first + n * width)
        yield kind, offset, start, size


def oldest_glibc(library: bytes) -> tuple[int, int] | None:
    """The oldest glibc that a library runs with, (0, 0) for any; None if it needs something else.

    Raises
    ------
    ToolchainError : see `needed_libraries`.
    """
    if not all(_OF_GLIBC.fullmatch(name) for name in needed_libraries(library)):
        return None
    found = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library)
    return max(((int(a), int(b)) for a, b in found), default=(0, 0))
