"""The records of one machine, in one file, which several processes may read and append to at once.

A record is appended by one call under a lock, so that none is torn or lost if another process
writes, or is killed.  What a killed process left of a line ends at the next record, and is left
out.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from poly.errors import CacheError, TuningError
from runtime.common.arguments import default_threads
from runtime.common.cache import Cache, digest
from runtime.cpu.toolchain import Toolchain
from runtime.tuned.record import (
    MOST_NUMBERS,
    Key,
    Trial,
    Winner,
    read_line,
    short_digest,
    write_line,
)

if TYPE_CHECKING:
    from poly.ir.program import Program
    from poly.machine.cpu import Machine
    from poly.schedule.schedule import Schedule

#: Chooses the directory of the records; else they are in the cache's.
ENVIRONMENT = "FARKAS_RECORDS"
#: How the lines of winners begin.
_WINNER = b'{"kind": "winner"'
_LOG = logging.getLogger("farkas.tuning")


def describe_machine(machine: Machine, toolchain: Toolchain) -> str:
    """A machine, in words: times measured on one hold for all that have the same words."""
    version = ".".join(map(str, toolchain.version))
    return f"{toolchain.cpu}; {machine}; {toolchain.kind} {version}"


def record_file(cache: Cache, description: str) -> RecordFile:
    """The records of a machine, in the directory of a cache or where the environment says.

    description : of the machine, in words
    """
    chosen = os.environ.get(ENVIRONMENT)
    folder = Path(chosen).expanduser().absolute() if chosen else cache.directory / "tuned"
    name = re.sub(r"[^a-z0-9]+", "-", description.partition(";")[0].lower()).strip("-")[:60]
    return RecordFile(folder / f"{name}-{short_digest(description)[:8]}.jsonl", description)


@dataclass(frozen=True)
class Problem:
    """A line that is not a record, by its number, and why."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}"


@dataclass(frozen=True)
class RecordFile:
    """The records of a machine.

    path : of the file, which need not exist; description : of the machine, in words
    """

    path: Path
    description: str

    @property
    def head(self) -> str:
        """The first line of the file."""
        return json.dumps({"kind": "machine", "machine": self.description})

    def winners(self) -> tuple[Winner, ...]:
        """The winners, those written last at the end.  What is not a record is logged."""
        return _winners(*self._state())

    def winner(self, key: Key) -> Winner | None:
        """What was written last for a key."""
        return next((w for w in reversed(self.winners()) if w.key == key), None)

    def read(self) -> tuple[list[Trial | Winner], list[Problem]]:
        """All records, and the lines that are none.  Of a file of another machine, which the first
        line says, that line is the only problem, and there are no records.
        """
        records: list[Trial | Winner] = []
        problems: list[Problem] = []
        for number, line in _lines(self.path):
            try:
                if number == 1:
                    self._check_machine(line)
                else:
                    records.append(read_line(line.decode(errors="replace")))
            except TuningError as error:
                problems.append(Problem(self.path, number, str(error)))
                if number == 1:
                    break
        return records, problems

    def add(self, records: Iterable[Trial | Winner]) -> None:
        """Append records.

        Raises
        ------
        CacheError : the file cannot be written.
        """
        data = "".join(f"{write_line(r)}\n" for r in records).encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = file.seek(0, os.SEEK_END)
                if end == 0:
                    data = self.head.encode() + b"\n" + data
                else:
                    file.seek(end - 1)
                    data = data if file.read(1) == b"\n" else b"\n" + data
                file.write(data)
        except OSError as error:
            raise CacheError(
                f"cannot write the records of tuning to {self.path}: {error.strerror or error}; "
                f"choose another folder with {ENVIRONMENT}"
            ) from error

    def _check_machine(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            if json.loads(line).get("machine") == self.description:
                return
        raise TuningError("these are not records of this machine")

    def _state(self) -> tuple[RecordFile, int, int]:
        try:
            status = self.path.stat()
        except OSError:
            return self, 0, 0
        return self, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=16)
def _winners(file: RecordFile, changed: int, size: int) -> tuple[Winner, ...]:
    """The winners in a file as it is; trials, of which there are many more, are not read."""
    found: list[Winner] = []
    for number, line in _lines(file.path) if size else ():
        try:
            if number == 1:
                file._check_machine(line)
            elif line.startswith(_WINNER):
                record = read_line(line.decode(errors="replace"))
                assert isinstance(record, Winner)
                found.append(record)
        except TuningError as error:
            _LOG.warning("%s", Problem(file.path, number, str(error)))
            if number == 1:
                return ()
    return tuple(found)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, empty ones left out; none if it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line.rstrip(b"\n")


@dataclass(frozen=True)
class TunedSchedules:
    """The schedules that a compilation uses instead of the automatic ones.

    threads : of a call
    """

    file: RecordFile
    threads: int

    @property
    def identity(self) -> str:
        """A digest of all of them: what is compiled with others is something else."""
        winners = [w for w in self.file.winners() if w.key.threads == self.threads]
        scripts = {(w.key.program, w.key.exact): w.script for w in winners}
        texts = sorted(f"{program} {exact} {s}" for (program, exact), s in scripts.items() if s)
        return digest("tuned", *texts) if texts else ""

    def script(self, start: Schedule) -> str | None:
        """The script for a program in its written order; None if it was not tuned, or if nothing
        was faster.
        """
        winner = self.winner(start.program.form.digest, start.exact)
        return None if winner is None else winner.script or None

    def winner(self, program: str, exact: bool) -> Winner | None:
        """What is used of a program: of several sizes that it was measured at, what was recorded
        last.
        """
        asked = (program, exact, self.threads)
        for w in reversed(self.file.winners()):
            if (w.key.program, w.key.exact, w.key.threads) == asked:
                return w
        return None


def tuned_schedules(
    cache: Cache, machine: Machine, toolchain: Toolchain, threads: int | None
) -> TunedSchedules:
    """The schedules that were tuned on a machine.  threads : None: all"""
    file = record_file(cache, describe_machine(machine, toolchain))
    return TunedSchedules(file, default_threads() if threads is None else threads)


def family_of(program: Program) -> str:
    """A digest of a program without its numbers: programs that differ in their sizes share it."""
    return short_digest(re.sub(r"\d+", "#", str(program)))


def numbers_of(program: Program) -> tuple[int, ...]:
    """The numbers of a program, in the order of its text; none if there are too many to record."""
    found = tuple(map(int, re.findall(r"\b\d{1,15}\b", str(program))))
    return found if len(found) <= MOST_NUMBERS else ()
