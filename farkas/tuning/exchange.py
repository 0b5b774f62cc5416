"""Records of tuning to a file, and back: from one user of a machine to another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from farkas.console.files import FileError, write_file
from farkas.targets.base import Target
from farkas.targets.find_target import CacheLike, CompilerLike, target_of
from poly.errors import ArgumentError
from runtime.tuned.record import Winner, write_line
from runtime.tuned.record_file import Problem, RecordFile


class Imported(NamedTuple):
    """What became of the records of a file.

    added : how many are used from now on; known : those for which this machine has as good ones
    problems : lines that are not records
    """

    added: int
    known: int
    problems: list[Problem]


def records_here(
    cc: CompilerLike = None, cache: CacheLike = None, target: str | Target = "cpu"
) -> RecordFile:
    """The records of this machine, or of one of its devices.

    Raises
    ------
    ToolchainError, CacheError : see `farkas.targets.find_target.target_of`.
    ArgumentError : there is no such target, or nothing can be timed on it.
    """
    tuned = target_of(cc, cache, None, target).runner.tuned
    if tuned is None:
        raise ArgumentError(f"{target} has no records: nothing can be timed on it")
    return tuned.file


def export_records(
    path: str | os.PathLike[str],
    cc: CompilerLike = None,
    cache: CacheLike = None,
    target: str | Target = "cpu",
) -> int:
    """Write the winners of this machine to a file; returns how many there are.

    Raises
    ------
    FileError : the file cannot be written.
    """
    file = records_here(cc, cache, target)
    latest = {w.key: w for w in file.winners()}
    lines = [file.head, *(write_line(w) for w in latest.values())]
    write_file(os.fspath(path), "".join(f"{line}\n" for line in lines).encode())
    return len(latest)


def import_records(
    path: str | os.PathLike[str],
    cc: CompilerLike = None,
    cache: CacheLike = None,
    target: str | Target = "cpu",
) -> Imported:
    """Add the winners of a file, of a machine like this one; other lines are left out and named.

    They are not trusted: a schedule is checked again whenever it is used.

    Raises
    ------
    FileError : there is no such file, or it is empty.
    CacheError : they cannot be written.
    """
    here = records_here(cc, cache, target)
    if not Path(path).is_file():
        raise FileError(f"cannot read {os.fspath(path)}: there is no such file")
    found, problems = RecordFile(Path(path), here.description).read()
    if not found and not problems:
        raise FileError(f"{os.fspath(path)} has no records: it is empty, or cannot be read")
    mine = {w.key: w for w in here.winners()}
    winners = [r for r in found if isinstance(r, Winner)]
    better = [w for w in winners if w.key not in mine or not _is_as_good(mine[w.key], w)]
    here.add(better)
    return Imported(len(better), len(winners) - len(better), problems)


def _is_as_good(own: Winner, other: Winner) -> bool:
    """Whether a record of this machine is to stay: it gains as much, or where the two were compared
    with different automatic schedules, is no older.
    """
    return own.gain >= other.gain if own.base == other.base else own.when >= other.when
