"""Digests of the inputs of a result: weight files, and the compiler's own source files."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path

#: Bytes hashed at a time; processors take parts in turn.
PART = 1 << 20


def file_digest(path: str | os.PathLike[str]) -> str | None:
    """The digest of a regular file's content, None if the file cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        return _digest(lambda at, into: os.preadv(descriptor, [into], at), status.st_size)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def data_digest(data: bytes | memoryview) -> str:
    """The digest that a file with this content has."""

    def copy(at: int, into: memoryview) -> int:
        part = data[at : at + PART]
        into[: len(part)] = part
        return len(part)

    return _digest(copy, len(data))


def _digest(read: Callable[[int, memoryview], int], size: int) -> str:
    """A digest of the digests of parts, which all processors compute in parallel.

    read : fills memory from an offset on, and returns the number of bytes
    """
    workers = os.cpu_count() or 1

    def hashed(first: int) -> list[bytes]:
        memory = memoryview(bytearray(PART))
        starts = range(first * PART, size, workers * PART)
        return [hashlib.sha256(memory[: read(at, memory)]).digest() for at in starts]

    whole = hashlib.sha256(size.to_bytes(8, "little"))
    with ThreadPoolExecutor(workers) as pool:
        for column in zip_longest(*pool.map(hashed, range(workers)), fillvalue=b""):
            for found in column:
                whole.update(found)
    return whole.hexdigest()


@cache
def code_digest(*packages: str) -> str:
    """A digest of the source files of packages: other code may make other kernels."""
    found = hashlib.sha256()
    for name in packages:
        for folder in import_module(name).__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                found.update(str(path.relative_to(folder)).encode())
                found.update(path.read_bytes())
    return found.hexdigest()
