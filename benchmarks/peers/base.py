"""`Package` and `Peer`: base classes of the measured implementations."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any

from benchmarks.kernel import Array
from benchmarks.task import Task


@dataclass(frozen=True)
class Prepared:
    """A computation that is ready to be called.

    call : runs it and waits until it is done
    fetch : the outputs as numpy arrays, from what `call` returned
    weights : bytes of the weights in memory, if that is known
    """

    call: Callable[[], Any]
    fetch: Callable[[Any], Sequence[Array]]
    weights: int | None = None


class Package(ABC):
    """One implementation; a subclass says what it needs.

    Attributes
    ----------
    name : as shown in the tables
    modules : must be importable
    package : the distribution whose version is shown
    ours : whether it is Farkas
    """

    name: str
    modules: tuple[str, ...] = ()
    package: str = ""
    ours = False

    def missing(self) -> str | None:
        """Why it cannot run, or None if it can."""
        for module in self.modules:
            if util.find_spec(module) is None:
                return f"the module {module} is not installed"
        return None

    def version(self) -> str:
        """The version of its package."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "unknown"

    def load(self) -> None:
        """Import what `prepare` needs; this is not part of the measured time."""
        for module in self.modules:
            importlib.import_module(module)


class Peer(Package):
    """One implementation on a CPU; a subclass says how it prepares a task.

    Attributes
    ----------
    is_slow : takes long to compile, so that ``--quick`` leaves it out
    tunes : takes part only if asked for by its name
    """

    is_slow = False
    tunes = False

    def suits(self, task: Task) -> bool:
        """Whether it takes part in a task."""
        return True

    @abstractmethod
    def prepare(self, task: Task, threads: int) -> Prepared:
        """Compile or load a task, so that the first call is like any other."""
