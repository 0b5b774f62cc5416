"""Records of tuning to a file, and back: from one user of a machine to another."""

from __future__ import annotations

import os
from pathlib import Path

from farkas.console.files import FileError, write_file
from farkas.targets.cpu import CpuRunner
from farkas.targets.find_target import CacheLike, CompilerLike, cpu_target
from poly.machine.cpu import Machine
from runtime.tuned.record import Winner, write_line
from runtime.tuned.record_file import Problem, RecordFile, record_file


def records_here(cc: CompilerLike = None, cache: CacheLike = None) -> RecordFile:
    """The records of this machine.

    Raises
    ------
    ToolchainError, CacheError : see `farkas.targets.find_target.cpu_target`.
    """
    target = cpu_target(cc, cache)
    runner = target.runner
    assert isinstance(runner, CpuRunner) and isinstance(target.machine, Machine)
    return record_file(runner.cache, target.machine, runner.toolchain)


def export_records(
    path: str | os.PathLike[str], cc: CompilerLike = None, cache: CacheLike = None
) -> int:
    """Write the winners of this machine to a file; returns how many there are.

    Raises
    ------
    FileError : the file cannot be written.
    """
    file = records_here(cc, cache)
    latest = {w.key: w for w in file.winners()}
    lines = [file.head, *(write_line(w) for w in latest.values())]
    write_file(os.fspath(path), "".join(f"{line}\n" for line in lines).encode())
    return len(latest)


def import_records(
    path: str | os.PathLike[str], cc: CompilerLike = None, cache: CacheLike = None
) -> tuple[int, list[Problem]]:
    """Add the winners of a file, of a machine like this one; other lines are left out and named.

    They are not trusted: a schedule is checked again whenever it is used.

    Raises
    ------
    FileError : there is no such file.
    CacheError : they cannot be written.
    """
    here = records_here(cc, cache)
    if not Path(path).is_file():
        raise FileError(f"cannot read {os.fspath(path)}: there is no such file")
    found, problems = RecordFile(Path(path), here.description).read()
    if any(p.line == 1 for p in problems):
        return 0, problems
    winners = [r for r in found if isinstance(r, Winner)]
    here.add(winners)
    return len(winners), problems
