"""Files that the command line reads and writes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from poly.errors import FarkasError

Array = np.ndarray[Any, np.dtype[Any]]

#: Programs and scripts are short; anything longer is neither.
MAX_TEXT_BYTES = 1 << 20


class FileError(FarkasError):
    """A file that cannot be read or written."""


def read_text_file(path: str) -> str:
    """The text of a file; ``-`` stands for the standard input.

    Raises
    ------
    FileError : it cannot be read, is not UTF-8, or has more than `MAX_TEXT_BYTES` bytes.
    """
    shown = "the standard input" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_TEXT_BYTES + 1)
    except (OSError, ValueError) as error:
        hint = "; a program itself follows -e" if "[" in path and "=" in path else ""
        raise FileError(f"cannot read {shown}: {_reason(error)}{hint}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise FileError(f"{shown} is longer than {MAX_TEXT_BYTES >> 20} MiB; is it a program?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileError(f"{shown} is not UTF-8 text") from None


def load_array(path: str) -> Array:
    """The array in a ``.npy`` file, in memory; nothing is unpickled.

    Raises
    ------
    FileError : it cannot be read, is not a ``.npy`` file, holds Python objects, or is shorter
        than its header says.
    """
    try:
        with open(path, "rb") as file:
            magic = file.read(len(np.lib.format.MAGIC_PREFIX))
        if magic != np.lib.format.MAGIC_PREFIX:
            raise FileError(f"{path} is not a .npy file; numpy.save writes one")
        # Mapping checks the header against the file before any memory is allocated.
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, EOFError, ValueError) as error:
        raise FileError(f"cannot read {path}: {_reason(error)}") from None
    except MemoryError:
        raise FileError(f"there is not enough memory for {path}") from None


def npy_bytes(array: Array) -> bytes:
    """An array as the content of a ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def check_output(output: str, given: str | None = None) -> None:
    """Find out before minutes of work that a file cannot be written.

    given : the file that is read

    Raises
    ------
    FileError : it is a folder, has none, or is the file that is read.
    """
    path = Path(output)
    is_same = given is not None and os.path.realpath(path) == os.path.realpath(given)
    if is_same and path.is_file():  # a terminal may be both
        raise FileError(f"{output} is what is read, and would be lost; give another file")
    if path.is_dir():
        raise FileError(f"cannot write {output}: it is a folder")
    if not path.absolute().parent.is_dir():
        raise FileError(f"cannot write {output}: there is no folder {path.parent}")


def write_file(path: str | Path, data: bytes) -> None:
    """Write a file as a whole or not at all; an existing one is replaced.

    Other than regular files (such as a pipe) are written to directly.

    Raises
    ------
    FileError : it cannot be written; nothing is left behind.
    """
    write_files({path: data})


def write_files(files: Mapping[str | Path, bytes]) -> None:
    """Write files as `write_file` does, none of them before all have been stored.

    Raises
    ------
    FileError : one cannot be written; nothing is left behind.
    """
    _write_all({path: partial(_put, data) for path, data in files.items()})


def write_stream(path: str | Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file bit by bit; it appears as a whole or not at all.

    Raises
    ------
    FileError : it cannot be written; nothing is left behind.
    """
    _write_all({path: write})


def _put(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def _write_all(files: Mapping[str | Path, Callable[[BinaryIO], None]]) -> None:
    """Write files, each by a function; see `write_files`."""
    stored: list[tuple[str, Path]] = []
    path: str | Path = ""
    try:
        for path, write in files.items():
            target = Path(os.path.realpath(path))
            if target.exists() and not stat.S_ISREG(target.stat().st_mode):
                with target.open("wb") as file:
                    write(file)
                continue
            handle, name = tempfile.mkstemp(prefix=f".{target.name[:64]}-", dir=target.parent)
            stored.append((name, target))
            with os.fdopen(handle, "wb") as file:
                write(file)
                _set_mode(file.fileno(), target)
        while stored:
            name, target = stored[0]
            os.replace(name, target)
            del stored[0]
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write {path}: {_reason(error)}") from None
    finally:
        for name, _ in stored:
            with contextlib.suppress(OSError):
                os.unlink(name)


@contextlib.contextmanager
def output_folder(path: str | Path) -> Iterator[Path]:
    """A folder to write to, created if missing; removed again if what follows fails.

    Raises
    ------
    FileError : it cannot be created, or is a file.
    """
    made: list[Path] = []
    try:
        folder = Path(os.path.abspath(path))
        made += [p for p in (folder, *folder.parents) if not os.path.lexists(p)]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        _remove_empty(made)
        raise FileError(f"cannot make the folder {path}: {_reason(error)}") from None
    try:
        yield Path(path)
    except BaseException:
        _remove_empty(made)
        raise


def _remove_empty(folders: list[Path]) -> None:
    """Remove folders, innermost first, as long as they are empty."""
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            folder.rmdir()


def file_names(names: tuple[str, ...], suffix: str) -> dict[str, str]:
    """A distinct, safe file name for each name from a model file."""
    chosen: dict[str, str] = {}
    for name in names:
        clean = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:100] or "output"
        unique, number = clean, 1
        while unique.lower() + suffix in {c.lower() for c in chosen.values()}:
            number += 1
            unique = f"{clean}_{number}"
        chosen[name] = unique + suffix
    return chosen


def _set_mode(handle: int, target: Path) -> None:
    """Give a new file the permissions of the one that it replaces, or the usual ones."""
    os.fchmod(handle, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())


def _umask() -> int:
    """The mask of new files; Linux says it, elsewhere it is only told when it is set."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.M)
        if found is not None:
            return int(found[1], 8)
    current = os.umask(0o077)
    os.umask(current)
    return current


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _first_line(error)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
